package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/report"
)

// Findings judges the survey. It asks no host.
func (s *Survey) Findings() report.Findings {
	list := slices.Concat(s.judgeHosts(), s.judgeAutostart(), s.JudgeRegistries(), s.judgeNodes(), s.judgePods())
	if s.Kubernetes && len(s.Nodes) > 0 {
		list = slices.Concat(list, s.judgeKubeadm(), s.judgeNodeMetadata(), s.judgeTokens(), s.judgeEssentials(),
			s.judgeLeases())
	}
	return slices.Concat(list, s.judgeComponents(), s.judgeCertificates(), s.judgeClasses())
}

func (s *Survey) judgeHosts() report.Findings {
	var list report.Findings
	for _, h := range s.Hosts {
		switch {
		case !h.Wanted:
		case h.Err != nil:
			list = append(list, NewFinding(checkReachable, h.Name, report.Failed, h.Err.Error()))
		case h.Node && !h.Member:
			list = append(list, NewFinding(CheckMember, h.Name, report.Failed, "not installed, or only in part"))
		default:
			list = append(list, NewFinding(checkReachable, h.Name, report.OK, ""))
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
		if !h.Node || h.LeftOut {
			continue
		}
		n := kube.FindNode(s.Nodes, h.Name)
		if n == nil {
			if h.Wanted {
				list = append(list, NewFinding(CheckNodes, h.Name, report.Failed, "not a node of the cluster"))
			}
			continue
		}
		list = append(list, s.judgeNode(n)...)
	}
	for _, n := range s.Nodes {
		if !slices.ContainsFunc(s.Hosts, func(h Surveyed) bool { return h.Name == n.Name }) {
			list = append(list, NewFinding(CheckNodes, n.Name, report.Warning, "the node is not in the inventory"))
		}
	}
	return list
}

func (s *Survey) judgeNode(n *corev1.Node) report.Findings {
	list := report.Findings{NewFinding(CheckNodes, n.Name, report.OK, "")}
	switch {
	case kube.IsNodeReady(n):
	case s.awaitsNetwork(n):
		list[0] = NewFinding(CheckNodes, n.Name, report.Warning, "waiting for a pod network")
	default:
		list[0] = NewFinding(CheckNodes, n.Name, report.Failed, "not ready: "+
			kube.NodeCondition(n, corev1.NodeReady).Message)
	}
	for _, pressure := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure,
	} {
		if c := kube.NodeCondition(n, pressure); c.Status == corev1.ConditionTrue {
			list = append(list, NewFinding(CheckNodes, n.Name, report.Warning, string(pressure)+": "+c.Message))
		}
	}
	version := n.Status.NodeInfo.KubeletVersion
	switch {
	case s.Version != "" && version != s.Version:
		list = append(list, NewFinding(checkVersions, n.Name, report.Failed,
			fmt.Sprintf("runs kubelet %s, not %s", version, s.Version)))
	case version != s.Nodes[0].Status.NodeInfo.KubeletVersion:
		list = append(list, NewFinding(checkVersions, n.Name, report.Warning,
			fmt.Sprintf("runs kubelet %s, but %s runs %s", version, s.Nodes[0].Name,
				s.Nodes[0].Status.NodeInfo.KubeletVersion)))
	default:
		list = append(list, NewFinding(checkVersions, n.Name, report.OK, version))
	}
	return list
}

// isLeftOut reports whether the run goes on without a node.
func (s *Survey) isLeftOut(node string) bool {
	return slices.ContainsFunc(s.Hosts, func(h Surveyed) bool { return h.LeftOut && h.Name == node })
}

// judgeKubeadm checks the objects that kubeadm init creates in the cluster.
func (s *Survey) judgeKubeadm() report.Findings {
	has := func(id, object, key string) report.Finding {
		o, ok := s.Objects[object].(*corev1.ConfigMap)
		switch {
		case !ok:
			return NewFinding(id, "", report.Failed, object+" is not there")
		case strings.TrimSpace(o.Data[key]) == "":
			return NewFinding(id, "", report.Failed, object+" has no "+key)
		}
		return NewFinding(id, "", report.OK, "")
	}
	list := report.Findings{
		has(checkKubeadm, "ConfigMap/kubeadm-config", "ClusterConfiguration"),
		has(checkKubelet, "ConfigMap/kubelet-config", "kubelet"),
		has(checkInfo, "ConfigMap/cluster-info", "kubeconfig"),
	}
	var lacking []string
	for _, name := range append(KubeadmRoles(), SignerRole, SignerBinding) {
		if _, ok := s.Objects[name]; !ok {
			lacking = append(lacking, name)
		}
	}
	if len(lacking) > 0 {
		return append(list, NewFinding(checkRoles, "", report.Failed, "not there: "+strings.Join(lacking, ", ")))
	}
	return append(list, NewFinding(checkRoles, "", report.OK, ""))
}

// judgeNodeMetadata checks the labels, taints and annotations that kubeadm sets on nodes.
func (s *Survey) judgeNodeMetadata() report.Findings {
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
			list = append(list, NewFinding(checkRuntime, h.Name, report.OK,
				cmp.Or(h.Runtime, n.Annotations[socketRecord])))
		case h.Err == nil:
			list = append(list, NewFinding(checkRuntime, h.Name, report.Failed, "neither "+instanceFile+
				" nor the node's annotation "+socketRecord+" exists"))
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
		return NewFinding(checkControl, h.Name, report.Failed, "missing: "+strings.Join(lacking, ", "))
	}
	return NewFinding(checkControl, h.Name, report.OK, "")
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
		return report.Findings{NewFinding(checkTokens, "", report.Warning, "without expiry: "+
			strings.Join(eternal, ", "))}
	}
	return report.Findings{NewFinding(checkTokens, "", report.OK, fmt.Sprintf("%d are valid, each with an expiry",
		valid))}
}

// leaseEnd is the age of a lost lease: components renew it every 2 s and lose it after 15
// (--leader-elect-lease-duration).
const leaseEnd = time.Minute

func (s *Survey) judgeLeases() report.Findings {
	var idle []string
	state := report.Warning
	for _, name := range Leased() {
		lease, _ := s.Objects[name].(*coordinationv1.Lease)
		_, component, _ := strings.Cut(name, "/")
		holder, renewed := kube.Holder(lease)
		late := s.Now.Sub(renewed) > leaseEnd
		if late {
			state = report.Failed
		}
		switch {
		case holder == "" && !late: // a component that stops gives its lease back, with the time
			idle = append(idle, "the lease of "+component+" has had no holder for "+
				s.Now.Sub(renewed).Round(time.Second).String())
		case holder == "":
			idle = append(idle, "the lease of "+component+" has no holder")
		case late:
			idle = append(idle, fmt.Sprintf("lease of %s: its holder %s has not renewed it since %s", component, holder,
				renewed.UTC().Format(metav1.RFC3339Micro)))
		}
	}
	if len(idle) > 0 {
		return report.Findings{NewFinding(CheckLeases, "", state, strings.Join(idle, "; "))}
	}
	return report.Findings{NewFinding(CheckLeases, "", report.OK, "")}
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
			list = append(list, ErrorFinding(CheckAPI, h.Name, h.API))
		}
		if !h.Asked {
			continue
		}
		asked++
		err := h.EtcdErr
		if err == nil && !h.Metrics.HasLeader {
			err = errors.New("the member knows no leader")
		}
		list = append(list, ErrorFinding(checkEtcd, h.Name, err))
		if h.Metrics.Leader {
			leaders++
		}
	}
	if asked == 0 {
		return list
	}
	if leaders > 1 || leaders == 0 && asked == members {
		return append(list, NewFinding(checkAgreement, "", report.Failed,
			fmt.Sprintf("%d of %d members report that they lead", leaders, asked)))
	}
	return append(list, NewFinding(checkAgreement, "", report.OK, ""))
}

// ErrorFinding returns a failed finding with the error, or one that is OK.
func ErrorFinding(id, host string, err error) report.Finding {
	if err != nil {
		return NewFinding(id, host, report.Failed, strings.TrimSpace(err.Error()))
	}
	return NewFinding(id, host, report.OK, "")
}

// The remaining lives of certificates that get a warning.
const (
	// timerFailed is half of the time in which the timer renews.
	timerFailed = 30 * 24 * time.Hour
	// renewByHand is also the time in which install renews.
	renewByHand = 90 * 24 * time.Hour
)

// warnWithin returns the remaining life at which a certificate gets a warning. A kubelet renews its own, at any time
// in the last third of the year.
func (s *Survey) warnWithin(c node.Certificate) time.Duration {
	if s.Manual && c.Kind() != node.KubeletClientCertificate {
		return renewByHand
	}
	return timerFailed
}

func (s *Survey) judgeCertificates() report.Findings {
	var list report.Findings
	for _, h := range s.Hosts {
		list = append(list, s.judgeCertificatesOf(h.Name, h.Certificates)...)
	}
	for _, h := range s.Registries {
		list = append(list, s.judgeCertificatesOf(h.Name, h.Certificates)...)
	}
	return list
}

// Needed returns the certificates that the cluster stops without. Nobody looks at a kubelet's serving certificate,
// and Kubernetes reports one that it cannot read.
func Needed(certificates []node.Certificate) []node.Certificate {
	return slices.DeleteFunc(slices.Clone(certificates), func(c node.Certificate) bool {
		return c.Problem != "" || c.Kind() == node.KubeletServingCertificate
	})
}

// judgeCertificatesOf judges the certificates of one host.
func (s *Survey) judgeCertificatesOf(host string, certificates []node.Certificate) report.Findings {
	needed := Needed(certificates)
	if len(needed) == 0 {
		return nil
	}
	state, worst := report.OK, ""
	for _, c := range needed {
		left := c.NotAfter.Sub(s.Now)
		text := fmt.Sprintf("%s (%s) ends on %s", c.Path, c.CommonName, c.NotAfter.UTC().Format(time.DateOnly))
		switch {
		case left <= 0:
			state, worst = report.Failed, text
		case left < s.warnWithin(c) && state == report.OK:
			state, worst = report.Warning, text
		}
	}
	return report.Findings{NewFinding(checkCertificates, host, state, worst)}
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
		return report.Findings{NewFinding(checkStorage, "", report.Warning, "defaults are "+strings.Join(names, ", "))}
	default:
		return report.Findings{NewFinding(checkStorage, "", report.OK, strings.Join(names, ""))}
	}
}
