package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
)

// Findings judges what was seen. It asks nobody.
func (s *Survey) Findings() report.Findings {
	list := slices.Concat(s.judgeHosts(), s.JudgeRegistries(), s.judgeNodes(), s.judgePods())
	if s.Kubernetes && len(s.Nodes) > 0 {
		list = slices.Concat(list, s.judgeKubeadm(), s.judgeMarks(), s.judgeTokens(), s.judgeServices(), s.judgeLeases())
	}
	return slices.Concat(list, s.judgeComponents(), s.judgeCertificates(), s.judgeClasses())
}

func (s *Survey) judgeHosts() report.Findings {
	var list report.Findings
	for _, h := range s.Hosts {
		switch {
		case !h.Wanted:
		case h.Err != nil:
			list = append(list, Finding(lookReachable, h.Name, report.Failed, h.Err.Error()))
		case h.Node && !h.Member:
			list = append(list, Finding(LookMember, h.Name, report.Failed, "nothing was installed on it, or not to the end"))
		default:
			list = append(list, Finding(lookReachable, h.Name, report.OK, ""))
		}
	}
	return list
}

func (s *Survey) judgeNodes() report.Findings {
	if s.Nodes == nil {
		return nil
	}
	var list report.Findings
	for _, h := range s.Hosts {
		if !h.Node || h.Left {
			continue
		}
		n := kube.FindNode(s.Nodes, h.Name)
		if n == nil {
			if h.Wanted {
				list = append(list, Finding(LookNodes, h.Name, report.Failed, "it is not a node of the cluster"))
			}
			continue
		}
		list = append(list, s.judgeNode(n)...)
	}
	for _, n := range s.Nodes {
		if !slices.ContainsFunc(s.Hosts, func(h Surveyed) bool { return h.Name == n.Name }) {
			list = append(list, Finding(LookNodes, n.Name, report.Warning, "it is a node, and not in the inventory"))
		}
	}
	return list
}

func (s *Survey) judgeNode(n *corev1.Node) report.Findings {
	list := report.Findings{Finding(LookNodes, n.Name, report.OK, "")}
	if !kube.IsNodeReady(n) && !s.ownNetwork {
		list[0] = Finding(LookNodes, n.Name, report.Failed, "not ready: "+kube.NodeCondition(n, corev1.NodeReady).Message)
	}
	for _, pressure := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if c := kube.NodeCondition(n, pressure); c.Status == corev1.ConditionTrue {
			list = append(list, Finding(LookNodes, n.Name, report.Warning, string(pressure)+": "+c.Message))
		}
	}
	version := n.Status.NodeInfo.KubeletVersion
	switch {
	case s.Version != "" && version != s.Version:
		list = append(list, Finding(lookVersions, n.Name, report.Failed, fmt.Sprintf("it runs kubelet %s, not %s", version, s.Version)))
	case version != s.Nodes[0].Status.NodeInfo.KubeletVersion:
		list = append(list, Finding(lookVersions, n.Name, report.Warning,
			fmt.Sprintf("it runs kubelet %s, and %s %s", version, s.Nodes[0].Name, s.Nodes[0].Status.NodeInfo.KubeletVersion)))
	default:
		list = append(list, Finding(lookVersions, n.Name, report.OK, version))
	}
	return list
}

// Left tells whether the run goes on without a node.
func (s *Survey) left(node string) bool {
	return slices.ContainsFunc(s.Hosts, func(h Surveyed) bool { return h.Left && h.Name == node })
}

// lost counts the nodes that the run goes on without.
func (s *Survey) lost() int {
	n := 0
	for _, node := range s.Nodes {
		if s.left(node.Name) {
			n++
		}
	}
	return n
}

// judgePods looks at all pods; those outside of Kubernetes' own namespaces are the operator's, and only worth a warning.
func (s *Survey) judgePods() report.Findings {
	if s.Pods == nil {
		return nil
	}
	var list report.Findings
	for _, p := range s.Pods {
		if s.left(p.Spec.NodeName) || kube.IsPodOver(&p) || kube.IsPodReady(&p) || proves(&p) {
			continue
		}
		state := report.Warning
		if slices.Contains(s.System, p.Namespace) && !s.ownNetwork {
			state = report.Failed
		}
		list = append(list, Finding(LookPods, p.Spec.NodeName, state, fmt.Sprintf("pod %s/%s is not ready: %s", p.Namespace, p.Name, kube.NotReadyReason(&p))))
	}
	if list == nil {
		list = report.Findings{Finding(LookPods, "", report.OK, fmt.Sprintf("%d pods", len(s.Pods)))}
	}
	return list
}

// judgeKubeadm looks at what kubeadm init leaves in the cluster.
func (s *Survey) judgeKubeadm() report.Findings {
	has := func(id, object, key string) report.Finding {
		o, ok := s.Objects[object].(*corev1.ConfigMap)
		switch {
		case !ok:
			return Finding(id, "", report.Failed, object+" is not there")
		case strings.TrimSpace(o.Data[key]) == "":
			return Finding(id, "", report.Failed, object+" has no "+key)
		}
		return Finding(id, "", report.OK, "")
	}
	list := report.Findings{
		has(lookKubeadm, "ConfigMap/kubeadm-config", "ClusterConfiguration"),
		has(lookKubelet, "ConfigMap/kubelet-config", "kubelet"),
		has(lookInfo, "ConfigMap/cluster-info", "kubeconfig"),
	}
	var lacking []string
	for _, name := range append(KubeadmRoles(), SignerRole, SignerBinding) {
		if _, ok := s.Objects[name]; !ok {
			lacking = append(lacking, name)
		}
	}
	if len(lacking) > 0 {
		return append(list, Finding(lookRoles, "", report.Failed, "not there: "+strings.Join(lacking, ", ")))
	}
	return append(list, Finding(lookRoles, "", report.OK, ""))
}

// judgeMarks looks at what kubeadm writes on nodes.
func (s *Survey) judgeMarks() report.Findings {
	var list report.Findings
	for _, n := range s.Nodes {
		i := slices.IndexFunc(s.Hosts, func(h Surveyed) bool { return h.Name == n.Name && h.Node })
		if i < 0 {
			continue
		}
		h := s.Hosts[i]
		if h.ControlPlane {
			list = append(list, judgeControlPlane(h, &n))
		}
		switch {
		case h.Runtime != "" || n.Annotations[socketRecord] != "":
			list = append(list, Finding(lookRuntime, h.Name, report.OK, cmp.Or(h.Runtime, n.Annotations[socketRecord])))
		case h.Err == nil:
			list = append(list, Finding(lookRuntime, h.Name, report.Failed, "neither "+instanceFile+" nor the node's annotation "+socketRecord+" has it"))
		}
	}
	return list
}

func judgeControlPlane(h Surveyed, n *corev1.Node) report.Finding {
	var lacking []string
	for _, l := range []string{kube.ControlPlaneLabel, ExcludeLabel} {
		if _, ok := n.Labels[l]; !ok {
			lacking = append(lacking, "the label "+l)
		}
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == kube.ControlPlaneLabel && t.Effect == corev1.TaintEffectNoSchedule
	})
	if !tainted && !h.Worker {
		lacking = append(lacking, "the taint "+kube.ControlPlaneLabel+":NoSchedule")
	}
	if len(lacking) > 0 {
		return Finding(lookControl, h.Name, report.Failed, "it lacks "+strings.Join(lacking, ", "))
	}
	return Finding(lookControl, h.Name, report.OK, "")
}

func (s *Survey) judgeTokens() report.Findings {
	var eternal []string
	valid := 0
	for _, t := range s.Tokens {
		end, err := time.Parse(time.RFC3339, t.Expires)
		switch {
		case t.Expires == "" || err != nil:
			eternal = append(eternal, t.Name)
		case end.After(s.Now):
			valid++
		}
	}
	if len(eternal) > 0 {
		return report.Findings{Finding(lookTokens, "", report.Warning, "without an end: "+strings.Join(eternal, ", "))}
	}
	return report.Findings{Finding(lookTokens, "", report.OK, fmt.Sprintf("%d are valid now, each with an end", valid))}
}

func (s *Survey) judgeServices() report.Findings {
	var list report.Findings
	dns, ok := s.Objects["Deployment/coredns"].(*appsv1.Deployment)
	switch ready, want := kube.Replicas(dns); {
	case !ok:
		list = append(list, Finding(lookCoreDNS, "", report.Warning, "kube-system has no deployment coredns"))
	case ready < want && s.ownNetwork:
		list = append(list, Finding(lookCoreDNS, "", report.Warning, "it waits for a pod network"))
	case ready == 0:
		list = append(list, Finding(lookCoreDNS, "", report.Failed, "none of its pods is ready"))
	case ready < want:
		list = append(list, Finding(lookCoreDNS, "", report.Warning, fmt.Sprintf("%d of %d pods are ready", ready, want)))
	default:
		list = append(list, Finding(lookCoreDNS, "", report.OK, fmt.Sprintf("%d pods", ready)))
	}
	proxy, ok := s.Objects["DaemonSet/kube-proxy"].(*appsv1.DaemonSet)
	if !ok {
		return append(list, Finding(lookProxy, "", report.Warning, "kube-system has no daemon set kube-proxy; some pod networks stand in for it"))
	}
	ready, want := int(proxy.Status.NumberReady), int(proxy.Status.DesiredNumberScheduled)
	if ready+s.lost() < want || want < len(s.Nodes) {
		return append(list, Finding(lookProxy, "", report.Failed, fmt.Sprintf("%d of %d nodes have one that is ready", ready, max(want, len(s.Nodes)))))
	}
	return append(list, Finding(lookProxy, "", report.OK, ""))
}

// leaseEnd is how old a lease may be: components renew it every 2 s and lose it after 15 (--leader-elect-lease-duration).
const leaseEnd = time.Minute

func (s *Survey) judgeLeases() report.Findings {
	var idle []string
	for _, name := range Leased() {
		lease, _ := s.Objects[name].(*coordinationv1.Lease)
		_, component, _ := strings.Cut(name, "/")
		switch holder, renewed := kube.Holder(lease); {
		case holder == "":
			idle = append(idle, "nobody holds the lease of "+component)
		case s.Now.Sub(renewed) > leaseEnd:
			idle = append(idle, fmt.Sprintf("%s, which holds the lease of %s, has not renewed it since %s", holder, component, renewed.UTC().Format(metav1.RFC3339Micro)))
		}
	}
	if len(idle) > 0 {
		return report.Findings{Finding(LookLeases, "", report.Failed, strings.Join(idle, "; "))}
	}
	return report.Findings{Finding(LookLeases, "", report.OK, "")}
}

func (s *Survey) judgeComponents() report.Findings {
	var list report.Findings
	leaders, asked, members := 0, 0, 0
	for _, h := range s.Hosts {
		if h.Etcd {
			members++
		}
		if !h.Member || h.Err != nil {
			continue
		}
		if h.ControlPlane {
			list = append(list, Judged(LookAPI, h.Name, h.API))
		}
		if !h.Asked {
			continue
		}
		asked++
		err := h.EtcdErr
		if err == nil && !h.Metrics.HasLeader {
			err = errors.New("it knows no leader")
		}
		list = append(list, Judged(lookEtcd, h.Name, err))
		if h.Metrics.Leader {
			leaders++
		}
	}
	if asked == 0 {
		return list
	}
	if leaders > 1 || leaders == 0 && asked == members {
		return append(list, Finding(lookAgreement, "", report.Failed, fmt.Sprintf("%d of %d members say that they lead", leaders, asked)))
	}
	return append(list, Finding(lookAgreement, "", report.OK, ""))
}

func Judged(id, host string, err error) report.Finding {
	if err != nil {
		return Finding(id, host, report.Failed, strings.TrimSpace(err.Error()))
	}
	return Finding(id, host, report.OK, "")
}

// renewWithin is when the end of a certificate is near: kubeadm's last a year, and kubeadm upgrade renews them.
const renewWithin = 30 * 24 * time.Hour

func (s *Survey) judgeCertificates() report.Findings {
	var list report.Findings
	for i := range s.Hosts {
		h := &s.Hosts[i]
		state, worst := report.OK, ""
		for j := range h.Certificates {
			c := &h.Certificates[j]
			left := c.Expires.Sub(s.Now)
			c.Days = int(left.Hours() / 24)
			text := fmt.Sprintf("%s (%s) ends on %s", c.File, c.Subject, c.Expires.UTC().Format(time.DateOnly))
			switch {
			case left <= 0:
				state, worst = report.Failed, text
			case left < renewWithin && state == report.OK:
				state, worst = report.Warning, text
			}
		}
		if len(h.Certificates) > 0 {
			list = append(list, Finding(lookCertificates, h.Name, state, worst))
		}
	}
	return list
}

// defaults returns the names of the default storage classes.
func (s *Survey) defaults() []string {
	var names []string
	for _, c := range s.Classes {
		if c.Annotations[DefaultClass] == "true" {
			names = append(names, c.Name)
		}
	}
	return names
}

func (s *Survey) judgeClasses() report.Findings {
	switch names := s.defaults(); {
	case len(s.Classes) == 0:
		return nil
	case len(names) > 1:
		return report.Findings{Finding(lookStorage, "", report.Warning, "defaults are "+strings.Join(names, ", "))}
	default:
		return report.Findings{Finding(lookStorage, "", report.OK, strings.Join(names, ""))}
	}
}
