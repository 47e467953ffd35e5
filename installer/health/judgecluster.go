package installer

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

// findings judges what was seen. It asks nobody.
func (s *survey) findings() report.Findings {
	list := slices.Concat(s.judgeHosts(), s.judgeRegistries(), s.judgeNodes(), s.judgePods())
	if s.kubernetes && len(s.nodes) > 0 {
		list = slices.Concat(list, s.judgeKubeadm(), s.judgeMarks(), s.judgeTokens(), s.judgeServices(), s.judgeLeases())
	}
	return slices.Concat(list, s.judgeComponents(), s.judgeCertificates(), s.judgeClasses())
}

func (s *survey) judgeHosts() report.Findings {
	var list report.Findings
	for _, h := range s.hosts {
		switch {
		case !h.wanted:
		case h.err != nil:
			list = append(list, finding(lookReachable, h.name, report.Failed, h.err.Error()))
		case h.node && !h.member:
			list = append(list, finding(lookMember, h.name, report.Failed, "nothing was installed on it, or not to the end"))
		default:
			list = append(list, finding(lookReachable, h.name, report.OK, ""))
		}
	}
	return list
}

func (s *survey) judgeNodes() report.Findings {
	if s.nodes == nil {
		return nil
	}
	var list report.Findings
	for _, h := range s.hosts {
		if !h.node || h.left {
			continue
		}
		n := kube.FindNode(s.nodes, h.name)
		if n == nil {
			if h.wanted {
				list = append(list, finding(lookNodes, h.name, report.Failed, "it is not a node of the cluster"))
			}
			continue
		}
		list = append(list, s.judgeNode(n)...)
	}
	for _, n := range s.nodes {
		if !slices.ContainsFunc(s.hosts, func(h surveyed) bool { return h.name == n.Name }) {
			list = append(list, finding(lookNodes, n.Name, report.Warning, "it is a node, and not in the inventory"))
		}
	}
	return list
}

func (s *survey) judgeNode(n *corev1.Node) report.Findings {
	list := report.Findings{finding(lookNodes, n.Name, report.OK, "")}
	if !kube.IsNodeReady(n) && !s.ownNetwork {
		list[0] = finding(lookNodes, n.Name, report.Failed, "not ready: "+kube.NodeCondition(n, corev1.NodeReady).Message)
	}
	for _, pressure := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if c := kube.NodeCondition(n, pressure); c.Status == corev1.ConditionTrue {
			list = append(list, finding(lookNodes, n.Name, report.Warning, string(pressure)+": "+c.Message))
		}
	}
	version := n.Status.NodeInfo.KubeletVersion
	switch {
	case s.version != "" && version != s.version:
		list = append(list, finding(lookVersions, n.Name, report.Failed, fmt.Sprintf("it runs kubelet %s, not %s", version, s.version)))
	case version != s.nodes[0].Status.NodeInfo.KubeletVersion:
		list = append(list, finding(lookVersions, n.Name, report.Warning,
			fmt.Sprintf("it runs kubelet %s, and %s %s", version, s.nodes[0].Name, s.nodes[0].Status.NodeInfo.KubeletVersion)))
	default:
		list = append(list, finding(lookVersions, n.Name, report.OK, version))
	}
	return list
}

// left tells whether the run goes on without a node.
func (s *survey) left(node string) bool {
	return slices.ContainsFunc(s.hosts, func(h surveyed) bool { return h.left && h.name == node })
}

// lost counts the nodes that the run goes on without.
func (s *survey) lost() int {
	n := 0
	for _, node := range s.nodes {
		if s.left(node.Name) {
			n++
		}
	}
	return n
}

// judgePods looks at all pods; those outside of Kubernetes' own namespaces are the operator's, and only worth a warning.
func (s *survey) judgePods() report.Findings {
	if s.pods == nil {
		return nil
	}
	var list report.Findings
	for _, p := range s.pods {
		if s.left(p.Spec.NodeName) || kube.IsPodOver(&p) || kube.IsPodReady(&p) || proves(&p) {
			continue
		}
		state := report.Warning
		if slices.Contains(s.system, p.Namespace) && !s.ownNetwork {
			state = report.Failed
		}
		list = append(list, finding(lookPods, p.Spec.NodeName, state, fmt.Sprintf("pod %s/%s is not ready: %s", p.Namespace, p.Name, kube.NotReadyReason(&p))))
	}
	if list == nil {
		list = report.Findings{finding(lookPods, "", report.OK, fmt.Sprintf("%d pods", len(s.pods)))}
	}
	return list
}

// judgeKubeadm looks at what kubeadm init leaves in the cluster.
func (s *survey) judgeKubeadm() report.Findings {
	has := func(id, object, key string) report.Finding {
		o, ok := s.objects[object].(*corev1.ConfigMap)
		switch {
		case !ok:
			return finding(id, "", report.Failed, object+" is not there")
		case strings.TrimSpace(o.Data[key]) == "":
			return finding(id, "", report.Failed, object+" has no "+key)
		}
		return finding(id, "", report.OK, "")
	}
	list := report.Findings{
		has(lookKubeadm, "ConfigMap/kubeadm-config", "ClusterConfiguration"),
		has(lookKubelet, "ConfigMap/kubelet-config", "kubelet"),
		has(lookInfo, "ConfigMap/cluster-info", "kubeconfig"),
	}
	var lacking []string
	for _, name := range append(kubeadmRoles(), signerRole, signerBinding) {
		if _, ok := s.objects[name]; !ok {
			lacking = append(lacking, name)
		}
	}
	if len(lacking) > 0 {
		return append(list, finding(lookRoles, "", report.Failed, "not there: "+strings.Join(lacking, ", ")))
	}
	return append(list, finding(lookRoles, "", report.OK, ""))
}

// judgeMarks looks at what kubeadm writes on nodes.
func (s *survey) judgeMarks() report.Findings {
	var list report.Findings
	for _, n := range s.nodes {
		i := slices.IndexFunc(s.hosts, func(h surveyed) bool { return h.name == n.Name && h.node })
		if i < 0 {
			continue
		}
		h := s.hosts[i]
		if h.controlPlane {
			list = append(list, judgeControlPlane(h, &n))
		}
		switch {
		case h.runtime != "" || n.Annotations[socketRecord] != "":
			list = append(list, finding(lookRuntime, h.name, report.OK, cmp.Or(h.runtime, n.Annotations[socketRecord])))
		case h.err == nil:
			list = append(list, finding(lookRuntime, h.name, report.Failed, "neither "+instanceFile+" nor the node's annotation "+socketRecord+" has it"))
		}
	}
	return list
}

func judgeControlPlane(h surveyed, n *corev1.Node) report.Finding {
	var lacking []string
	for _, l := range []string{controlLabel, excludeLabel} {
		if _, ok := n.Labels[l]; !ok {
			lacking = append(lacking, "the label "+l)
		}
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == controlLabel && t.Effect == corev1.TaintEffectNoSchedule })
	if !tainted && !h.worker {
		lacking = append(lacking, "the taint "+controlLabel+":NoSchedule")
	}
	if len(lacking) > 0 {
		return finding(lookControl, h.name, report.Failed, "it lacks "+strings.Join(lacking, ", "))
	}
	return finding(lookControl, h.name, report.OK, "")
}

func (s *survey) judgeTokens() report.Findings {
	var eternal []string
	valid := 0
	for _, t := range s.tokens {
		end, err := time.Parse(time.RFC3339, t.expires)
		switch {
		case t.expires == "" || err != nil:
			eternal = append(eternal, t.name)
		case end.After(s.now):
			valid++
		}
	}
	if len(eternal) > 0 {
		return report.Findings{finding(lookTokens, "", report.Warning, "without an end: "+strings.Join(eternal, ", "))}
	}
	return report.Findings{finding(lookTokens, "", report.OK, fmt.Sprintf("%d are valid now, each with an end", valid))}
}

func (s *survey) judgeServices() report.Findings {
	var list report.Findings
	dns, ok := s.objects["Deployment/coredns"].(*appsv1.Deployment)
	switch ready, want := kube.Replicas(dns); {
	case !ok:
		list = append(list, finding(lookCoreDNS, "", report.Warning, "kube-system has no deployment coredns"))
	case ready < want && s.ownNetwork:
		list = append(list, finding(lookCoreDNS, "", report.Warning, "it waits for a pod network"))
	case ready == 0:
		list = append(list, finding(lookCoreDNS, "", report.Failed, "none of its pods is ready"))
	case ready < want:
		list = append(list, finding(lookCoreDNS, "", report.Warning, fmt.Sprintf("%d of %d pods are ready", ready, want)))
	default:
		list = append(list, finding(lookCoreDNS, "", report.OK, fmt.Sprintf("%d pods", ready)))
	}
	proxy, ok := s.objects["DaemonSet/kube-proxy"].(*appsv1.DaemonSet)
	if !ok {
		return append(list, finding(lookProxy, "", report.Warning, "kube-system has no daemon set kube-proxy; some pod networks stand in for it"))
	}
	ready, want := int(proxy.Status.NumberReady), int(proxy.Status.DesiredNumberScheduled)
	if ready+s.lost() < want || want < len(s.nodes) {
		return append(list, finding(lookProxy, "", report.Failed, fmt.Sprintf("%d of %d nodes have one that is ready", ready, max(want, len(s.nodes)))))
	}
	return append(list, finding(lookProxy, "", report.OK, ""))
}

// leaseEnd is how old a lease may be: components renew it every 2 s and lose it after 15 (--leader-elect-lease-duration).
const leaseEnd = time.Minute

func (s *survey) judgeLeases() report.Findings {
	var idle []string
	for _, name := range leased() {
		lease, _ := s.objects[name].(*coordinationv1.Lease)
		_, component, _ := strings.Cut(name, "/")
		switch holder, renewed := kube.Holder(lease); {
		case holder == "":
			idle = append(idle, "nobody holds the lease of "+component)
		case s.now.Sub(renewed) > leaseEnd:
			idle = append(idle, fmt.Sprintf("%s, which holds the lease of %s, has not renewed it since %s", holder, component, renewed.UTC().Format(metav1.RFC3339Micro)))
		}
	}
	if len(idle) > 0 {
		return report.Findings{finding(lookLeases, "", report.Failed, strings.Join(idle, "; "))}
	}
	return report.Findings{finding(lookLeases, "", report.OK, "")}
}

func (s *survey) judgeComponents() report.Findings {
	var list report.Findings
	leaders, asked, members := 0, 0, 0
	for _, h := range s.hosts {
		if h.etcd {
			members++
		}
		if !h.member || h.err != nil {
			continue
		}
		if h.controlPlane {
			list = append(list, judged(lookAPI, h.name, h.api))
		}
		if !h.asked {
			continue
		}
		asked++
		err := h.etcdErr
		if err == nil && !h.metrics.hasLeader {
			err = errors.New("it knows no leader")
		}
		list = append(list, judged(lookEtcd, h.name, err))
		if h.metrics.leader {
			leaders++
		}
	}
	if asked == 0 {
		return list
	}
	if leaders > 1 || leaders == 0 && asked == members {
		return append(list, finding(lookAgreement, "", report.Failed, fmt.Sprintf("%d of %d members say that they lead", leaders, asked)))
	}
	return append(list, finding(lookAgreement, "", report.OK, ""))
}

func judged(id, host string, err error) report.Finding {
	if err != nil {
		return finding(id, host, report.Failed, strings.TrimSpace(err.Error()))
	}
	return finding(id, host, report.OK, "")
}

// renewWithin is when the end of a certificate is near: kubeadm's last a year, and kubeadm upgrade renews them.
const renewWithin = 30 * 24 * time.Hour

func (s *survey) judgeCertificates() report.Findings {
	var list report.Findings
	for i := range s.hosts {
		h := &s.hosts[i]
		state, worst := report.OK, ""
		for j := range h.certificates {
			c := &h.certificates[j]
			left := c.Expires.Sub(s.now)
			c.Days = int(left.Hours() / 24)
			text := fmt.Sprintf("%s (%s) ends on %s", c.File, c.Subject, c.Expires.UTC().Format(time.DateOnly))
			switch {
			case left <= 0:
				state, worst = report.Failed, text
			case left < renewWithin && state == report.OK:
				state, worst = report.Warning, text
			}
		}
		if len(h.certificates) > 0 {
			list = append(list, finding(lookCertificates, h.name, state, worst))
		}
	}
	return list
}

// defaults returns the names of the default storage classes.
func (s *survey) defaults() []string {
	var names []string
	for _, c := range s.classes {
		if c.Annotations[defaultClass] == "true" {
			names = append(names, c.Name)
		}
	}
	return names
}

func (s *survey) judgeClasses() report.Findings {
	switch names := s.defaults(); {
	case len(s.classes) == 0:
		return nil
	case len(names) > 1:
		return report.Findings{finding(lookStorage, "", report.Warning, "defaults are "+strings.Join(names, ", "))}
	default:
		return report.Findings{finding(lookStorage, "", report.OK, strings.Join(names, ""))}
	}
}
