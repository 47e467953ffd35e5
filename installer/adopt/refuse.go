package adopt

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A Cause is a reason that a cluster is not described.
type Cause struct {
	// Where is a host, a host with a path, or an object.
	Where   string `json:"where"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

// A RefusedError means that a cluster is in no state, or has no layout, in which kkbundle could take it over.
type RefusedError struct{ Causes []Cause }

// Error lists all causes.
func (e *RefusedError) Error() string {
	lines := make([]string, len(e.Causes))
	for i, c := range e.Causes {
		lines[i] = fmt.Sprintf("%s: %s; %s", plain.Line(c.Where), plain.Line(c.Problem), plain.Line(c.Remedy))
	}
	return "the cluster cannot be described, and nothing was written:\n" + strings.Join(lines, "\n")
}

// Hint returns the remedy.
func (*RefusedError) Hint() string { return "mend each place and run the same command again" }

// causes collects causes.
type causes struct{ list []Cause }

func (c *causes) add(where, problem, remedy string) {
	if one := (Cause{where, problem, remedy}); !slices.Contains(c.list, one) {
		c.list = append(c.list, one)
	}
}

func (c *causes) err() error {
	if len(c.list) == 0 {
		return nil
	}
	return &RefusedError{c.list}
}

// refuseHosts refuses hosts with another layout than kubeadm's, nodes of kkbundle, and ended certificates.
func (e *Evidence) refuseHosts() error {
	var c causes
	unfinished := e.isTakenInPart()
	for i := range e.Hosts {
		h := &e.Hosts[i]
		c.layout(h, unfinished)
		c.certificates(h)
	}
	return c.err()
}

// isTakenInPart reports whether a stopped adoption has recorded the cluster on some of the hosts.
func (e *Evidence) isTakenInPart() bool {
	return slices.ContainsFunc(e.Hosts, func(h Host) bool { return !h.has(member.Path) && h.has(marks.AdoptionDir) })
}

// layout refuses a host that is no node of kubeadm's, unless it runs etcd.
func (c *causes) layout(h *Host, unfinished bool) {
	for _, other := range []struct{ path, name string }{
		{"/var/lib/rancher/k3s", "k3s"},
		{"/var/lib/rancher/rke2", "RKE2"},
		{"/var/lib/k0s", "k0s"},
		{"/var/snap/microk8s", "MicroK8s"},
	} {
		if h.has(other.path) {
			c.add(h.Name, "it has "+other.path+" of "+other.name, "only clusters that kubeadm made are described")
			return
		}
	}
	switch adopted := h.has(marks.AdoptionDir); {
	case !h.has(member.Path) || adopted && unfinished:
	case adopted:
		c.add(h.Name, "it was adopted already", "use the files in the directory of that adoption, and kkbundle status")
		return
	default:
		c.add(h.Name, "it is a node of a cluster of kkbundle", "use the files that it was installed with, and kkbundle status")
		return
	}
	if h.Facts.Unit("kubelet.service").Load != "loaded" {
		if !h.runsEtcdUnit() {
			c.add(h.Name, "unknown layout: it has no unit kubelet.service",
				"take the host out of the inventory, or out of its groups")
		}
		return
	}
	if layoutOf(h) == layoutUnknown {
		c.add(h.Name, "unknown layout: the kubelet has none of "+kubeletConfig+" and "+sprayConfig,
			"only clusters that kubeadm made, by hand, by KubeKey or by Kubespray, are described")
	}
	if h.has(kube.AdminConf) && !slices.Contains(h.manifests(), kube.ManifestsDir+"/kube-apiserver.yaml") {
		c.add(h.Name, "unknown layout: it has "+kube.AdminConf+" and no static pod kube-apiserver",
			"only control planes of static pods in "+kube.ManifestsDir+" are described")
	}
}

func (h *Host) runsEtcdUnit() bool {
	u := h.Facts.Unit("etcd.service")
	return u.Load == "loaded" && u.Active == "active"
}

// certificates refuses certificates that have ended: nothing that asks with them or answers with them works on.
func (c *causes) certificates(h *Host) {
	now := time.Unix(0, h.Facts.Clock)
	for _, one := range h.Facts.Certificates {
		if one.Problem != "" || one.NotAfter.IsZero() || one.NotAfter.After(now) ||
			one.Kind() == node.KubeletServingCertificate || one.Kind() == node.KubeletFirstCertificate {
			continue
		}
		remedy := "renew it with kubeadm certs renew all, and restart the control plane's pods"
		switch {
		case one.CA:
			remedy = "a new authority is needed; replace it with the tool that made the cluster"
		case one.Kind() == node.KubeletClientCertificate:
			remedy = "make it anew with kubeadm init phase kubeconfig kubelet on a control plane, and restart the kubelet"
		case strings.HasPrefix(one.Path, etcdSSL):
			remedy = "renew it with the tool that installed etcd"
		}
		c.add(h.Name+":"+one.Path, "the certificate ended on "+one.NotAfter.UTC().Format(time.DateOnly), remedy)
	}
}
