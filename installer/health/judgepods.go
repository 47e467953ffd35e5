package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
)

// StartGrace is the time in which a pod that is not ready counts as starting. It is the time that kubeadm's manifest
// gives CoreDNS before a failing probe restarts it (initialDelaySeconds of the liveness probe):
// https://github.com/kubernetes/kubernetes/blob/v1.34.3/cmd/kubeadm/app/phases/addons/dns/manifests.go
const StartGrace = time.Minute

// Labels of pods that have a check of their own.
const (
	appLabel = "k8s-app"
	dnsApp   = "kube-dns"
	proxyApp = "kube-proxy"
)

// app returns the value of the label k8s-app of a pod of Kubernetes' own namespace.
func app(p *corev1.Pod) string {
	if p.Namespace != kube.SystemNamespace {
		return ""
	}
	return p.Labels[appLabel]
}

// isStarting reports whether a pod that is not ready may still become ready by itself.
func (s *Survey) isStarting(p *corev1.Pod) bool { return s.Now.Sub(kube.UnreadySince(p)) < StartGrace }

// Starting reports whether a pod of Kubernetes or of the pod network is starting.
func (s *Survey) Starting() bool {
	return slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool {
		return slices.Contains(s.System, p.Namespace) && !s.isExempt(&p) && s.isStarting(&p)
	})
}

// isExempt reports whether a pod needs no judgement: it is ready, has ended, proves something, or the run goes on
// without its node.
func (s *Survey) isExempt(p *corev1.Pod) bool {
	return s.isLeftOut(p.Spec.NodeName) || kube.IsPodOver(p) || kube.IsPodReady(p) || isProof(p)
}

// awaitsNetwork reports whether a node lacks only the pod network that the operator brings. The container runtimes and
// cri-dockerd give this reason.
func (s *Survey) awaitsNetwork(n *corev1.Node) bool {
	return s.ownNetwork && !kube.IsNodeReady(n) && strings.Contains(kube.NodeCondition(n, corev1.NodeReady).Message,
		"NetworkPluginNotReady")
}

// isDelayed reports whether a pod lacks only the pod network that the operator brings.
func (s *Survey) isDelayed(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && slices.ContainsFunc(s.Nodes, func(n corev1.Node) bool {
		return (p.Spec.NodeName == "" || p.Spec.NodeName == n.Name) && s.awaitsNetwork(&n)
	})
}

// judgePods judges the pods without a check of their own. Pods outside of the namespaces of Kubernetes and the pod
// network are the operator's: they only get a warning.
func (s *Survey) judgePods() report.Findings {
	if s.Pods == nil {
		return nil
	}
	var list report.Findings
	for _, p := range s.Pods {
		if s.isExempt(&p) || s.Kubernetes && (app(&p) == dnsApp || app(&p) == proxyApp) {
			continue
		}
		state, is := report.Failed, "is not ready"
		switch {
		case !slices.Contains(s.System, p.Namespace) || s.isDelayed(&p):
			state = report.Warning
		case s.isStarting(&p):
			state, is = report.Warning, "is starting"
		}
		list = append(list, NewFinding(CheckPods, p.Spec.NodeName, state,
			fmt.Sprintf("pod %s/%s %s: %s", p.Namespace, p.Name, is, kube.NotReadyReason(&p))))
	}
	if list == nil {
		list = report.Findings{NewFinding(CheckPods, "", report.OK, fmt.Sprintf("%d pods", len(s.Pods)))}
	}
	return list
}

// judgeEssentials judges the pods that every cluster of kubeadm needs. It counts pods: the counts in a Deployment or a
// DaemonSet are old while the controller manager is down.
func (s *Survey) judgeEssentials() report.Findings {
	if s.Pods == nil {
		return nil
	}
	return append(s.judgeStaticPods(), s.judgeDNS(), s.judgeProxy())
}

// judgeStaticPods finds control planes without a pod of a component. A pod that is there and not ready is found by
// judgePods.
func (s *Survey) judgeStaticPods() report.Findings {
	var list report.Findings
	for _, h := range s.Hosts {
		if n := kube.FindNode(s.Nodes, h.Name); !h.ControlPlane || h.LeftOut || n == nil || !kube.IsNodeReady(n) {
			continue
		}
		missing := slices.DeleteFunc(kube.ControlPlanePods(h.Name, h.Etcd), func(name string) bool {
			return slices.ContainsFunc(s.Pods,
				func(p corev1.Pod) bool { return p.Namespace == kube.SystemNamespace && p.Name == name })
		})
		finding := NewFinding(checkComponents, h.Name, report.OK, "")
		if len(missing) > 0 {
			finding = NewFinding(checkComponents, h.Name, report.Failed, "missing: "+strings.Join(missing, ", "))
		}
		list = append(list, finding)
	}
	return list
}

// judgeDNS judges CoreDNS: one ready pod is enough for an answer, none is a failure.
func (s *Survey) judgeDNS() report.Finding {
	deployment, ok := s.Objects["Deployment/coredns"].(*appsv1.Deployment)
	if !ok {
		return NewFinding(checkCoreDNS, "", report.Warning, "kube-system has no deployment coredns")
	}
	ready, state, found := 0, report.Failed, "no pod is ready"
	for _, p := range s.Pods {
		switch {
		case app(&p) != dnsApp || kube.IsPodOver(&p):
		case kube.IsPodReady(&p):
			if n := kube.FindNode(s.Nodes, p.Spec.NodeName); n != nil && kube.IsNodeReady(n) {
				ready++
			}
		default:
			found += "; " + p.Name + ": " + kube.NotReadyReason(&p)
			if s.isDelayed(&p) || s.isStarting(&p) {
				state = report.Warning
			}
		}
	}
	switch _, want := kube.Replicas(deployment); {
	case ready > 0 && ready >= want:
		return NewFinding(checkCoreDNS, "", report.OK, fmt.Sprintf("%d pods", ready))
	case ready > 0:
		return NewFinding(checkCoreDNS, "", report.Warning, fmt.Sprintf("%d of %d pods are ready", ready, want))
	}
	return NewFinding(checkCoreDNS, "", state, found)
}

// judgeProxy judges kube-proxy on the nodes that are ready.
func (s *Survey) judgeProxy() report.Finding {
	if _, ok := s.Objects["DaemonSet/kube-proxy"]; !ok {
		return NewFinding(checkProxy, "", report.Warning,
			"kube-system has no daemon set kube-proxy; some pod networks replace it")
	}
	proxies := map[string]*corev1.Pod{} // by node; one pass, since a large cluster has many pods
	for i := range s.Pods {
		if p := &s.Pods[i]; app(p) == proxyApp && !kube.IsPodOver(p) {
			proxies[p.Spec.NodeName] = p
		}
	}
	var lacking []string
	state := report.Warning
	for _, n := range s.Nodes {
		if s.isLeftOut(n.Name) || !kube.IsNodeReady(&n) {
			continue
		}
		switch p := proxies[n.Name]; {
		case p == nil:
			lacking, state = append(lacking, n.Name+": no pod"), report.Failed
		case !kube.IsPodReady(p):
			lacking = append(lacking, n.Name+": "+kube.NotReadyReason(p))
			if !s.isStarting(p) {
				state = report.Failed
			}
		}
	}
	if len(lacking) > 0 {
		return NewFinding(checkProxy, "", state, "not ready on "+strings.Join(lacking, "; "))
	}
	return NewFinding(checkProxy, "", report.OK, "")
}
