package installer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
		i := slices.IndexFunc(s.nodes, func(n nodeObject) bool { return n.Metadata.Name == h.name })
		if i < 0 {
			if h.wanted {
				list = append(list, finding(lookNodes, h.name, report.Failed, "it is not a node of the cluster"))
			}
			continue
		}
		list = append(list, s.judgeNode(s.nodes[i])...)
	}
	for _, n := range s.nodes {
		if !slices.ContainsFunc(s.hosts, func(h surveyed) bool { return h.name == n.Metadata.Name }) {
			list = append(list, finding(lookNodes, n.Metadata.Name, report.Warning, "it is a node, and not in the inventory"))
		}
	}
	return list
}

func (s *survey) judgeNode(n nodeObject) report.Findings {
	list := report.Findings{finding(lookNodes, n.Metadata.Name, report.OK, "")}
	if !isTrue(n.Status.Conditions, "Ready") && !s.ownNetwork {
		list[0] = finding(lookNodes, n.Metadata.Name, report.Failed, "not ready: "+messageOf(n.Status.Conditions, "Ready"))
	}
	for _, pressure := range []string{"MemoryPressure", "DiskPressure", "PIDPressure"} {
		if isTrue(n.Status.Conditions, pressure) {
			list = append(list, finding(lookNodes, n.Metadata.Name, report.Warning, pressure+": "+messageOf(n.Status.Conditions, pressure)))
		}
	}
	version := n.Status.NodeInfo.KubeletVersion
	switch {
	case s.version != "" && version != s.version:
		list = append(list, finding(lookVersions, n.Metadata.Name, report.Failed, fmt.Sprintf("it runs kubelet %s, not %s", version, s.version)))
	case version != s.nodes[0].Status.NodeInfo.KubeletVersion:
		list = append(list, finding(lookVersions, n.Metadata.Name, report.Warning,
			fmt.Sprintf("it runs kubelet %s, and %s %s", version, s.nodes[0].Metadata.Name, s.nodes[0].Status.NodeInfo.KubeletVersion)))
	default:
		list = append(list, finding(lookVersions, n.Metadata.Name, report.OK, version))
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
		if s.left(node.Metadata.Name) {
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
		if s.left(p.Spec.NodeName) || p.isOver() || isTrue(p.Status.Conditions, "Ready") || p.proves() {
			continue
		}
		state := report.Warning
		if slices.Contains(s.system, p.Metadata.Namespace) && !s.ownNetwork {
			state = report.Failed
		}
		list = append(list, finding(lookPods, p.Spec.NodeName, state, fmt.Sprintf("pod %s/%s is not ready: %s", p.Metadata.Namespace, p.Metadata.Name, p.reason())))
	}
	if list == nil {
		list = report.Findings{finding(lookPods, "", report.OK, fmt.Sprintf("%d pods", len(s.pods)))}
	}
	return list
}

// judgeKubeadm looks at what kubeadm init leaves in the cluster.
func (s *survey) judgeKubeadm() report.Findings {
	has := func(id, object, key string) report.Finding {
		o, ok := s.objects[object]
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
		i := slices.IndexFunc(s.hosts, func(h surveyed) bool { return h.name == n.Metadata.Name && h.node })
		if i < 0 {
			continue
		}
		h := s.hosts[i]
		if h.controlPlane {
			list = append(list, judgeControlPlane(h, n))
		}
		switch {
		case h.runtime != "" || n.Metadata.Annotations[socketRecord] != "":
			list = append(list, finding(lookRuntime, h.name, report.OK, cmp.Or(h.runtime, n.Metadata.Annotations[socketRecord])))
		case h.err == nil:
			list = append(list, finding(lookRuntime, h.name, report.Failed, "neither "+instanceFile+" nor the node's annotation "+socketRecord+" has it"))
		}
	}
	return list
}

func judgeControlPlane(h surveyed, n nodeObject) report.Finding {
	var lacking []string
	for _, l := range []string{controlLabel, excludeLabel} {
		if _, ok := n.Metadata.Labels[l]; !ok {
			lacking = append(lacking, "the label "+l)
		}
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t taint) bool { return t.Key == controlLabel && t.Effect == "NoSchedule" })
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
	dns, ok := s.objects["Deployment/coredns"]
	switch {
	case !ok:
		list = append(list, finding(lookCoreDNS, "", report.Warning, "kube-system has no deployment coredns"))
	case dns.Status.Ready < dns.Spec.Replicas && s.ownNetwork:
		list = append(list, finding(lookCoreDNS, "", report.Warning, "it waits for a pod network"))
	case dns.Status.Ready == 0:
		list = append(list, finding(lookCoreDNS, "", report.Failed, "none of its pods is ready"))
	case dns.Status.Ready < dns.Spec.Replicas:
		list = append(list, finding(lookCoreDNS, "", report.Warning, fmt.Sprintf("%d of %d pods are ready", dns.Status.Ready, dns.Spec.Replicas)))
	default:
		list = append(list, finding(lookCoreDNS, "", report.OK, fmt.Sprintf("%d pods", dns.Status.Ready)))
	}
	proxy, ok := s.objects["DaemonSet/kube-proxy"]
	switch {
	case !ok:
		list = append(list, finding(lookProxy, "", report.Warning, "kube-system has no daemon set kube-proxy; some pod networks stand in for it"))
	case proxy.Status.Number+s.lost() < proxy.Status.Desired || proxy.Status.Desired < len(s.nodes):
		list = append(list, finding(lookProxy, "", report.Failed, fmt.Sprintf("%d of %d nodes have one that is ready", proxy.Status.Number, max(proxy.Status.Desired, len(s.nodes)))))
	default:
		list = append(list, finding(lookProxy, "", report.OK, ""))
	}
	return list
}

// leaseEnd is how old a lease may be: components renew it every 2 s and lose it after 15 (--leader-elect-lease-duration).
const leaseEnd = time.Minute

func (s *survey) judgeLeases() report.Findings {
	var idle []string
	for _, name := range leased() {
		o, ok := s.objects[name]
		renewed, err := time.Parse(time.RFC3339, o.Spec.RenewTime)
		_, component, _ := strings.Cut(name, "/")
		switch {
		case !ok || o.Spec.Holder == "":
			idle = append(idle, "nobody holds the lease of "+component)
		case err != nil || s.now.Sub(renewed) > leaseEnd:
			idle = append(idle, fmt.Sprintf("%s, which holds the lease of %s, has not renewed it since %s", o.Spec.Holder, component, o.Spec.RenewTime))
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
		if c.Metadata.Annotations[defaultClass] == "true" {
			names = append(names, c.Metadata.Name)
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
