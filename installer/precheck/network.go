package precheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// Rules about how hosts find each other.

type port struct {
	network string
	number  int
	what    string
}

// portsOf returns the ports that a host's roles need.
func portsOf(c *manifest.Cluster, h manifest.Host) []port {
	var list []port
	if h.Is(manifest.RoleControlPlane) {
		list = append(list, port{"tcp", manifest.DefaultPort, "API server"}, port{"tcp", 10257, "controller manager"}, port{"tcp", 10259, "scheduler"})
	}
	if c.Etcd.Type != "provided" && (h.Is(manifest.RoleEtcd) || (c.Etcd.Type == "internal" && h.Is(manifest.RoleControlPlane))) {
		list = append(list, port{"tcp", 2379, "etcd"}, port{"tcp", 2380, "etcd"})
	}
	if h.Is(manifest.RoleCluster) {
		list = append(list, port{"tcp", 10250, "kubelet"})
		if c.CNI.Type == "flannel" {
			list = append(list, port{"udp", 8472, "flannel"})
		}
	}
	if h.Is(manifest.RoleRegistry) && c.ImageRegistry.Type == "registry" {
		list = append(list, port{"tcp", c.ImageRegistry.Port, "registry"})
	}
	return list
}

// ourPrograms are those that may have a port of a cluster of ours, by the name that the kernel has of them (15 bytes).
func ourPrograms() []string {
	return []string{"kube-apiserver", "kube-controller", "kube-scheduler", "etcd", "kubelet", "registry"}
}

func hasPorts(s *Subject) (string, bool) {
	var busy, held []string
	for _, want := range portsOf(s.Cluster, s.Host.Host) {
		i := slices.IndexFunc(s.Facts.Ports, func(p node.Port) bool { return p.Network == want.network && p.Port == want.number })
		name := fmt.Sprintf("%d/%s (%s)", want.number, want.network, want.what)
		if i < 0 {
			busy = append(busy, name+" was not tried")
			continue
		}
		p := s.Facts.Ports[i]
		switch {
		case p.Free:
		case p.Problem != "":
			busy = append(busy, name+": "+p.Problem)
		case s.Ours() && (p.By == "" || slices.Contains(ourPrograms(), p.By)):
			held = append(held, name)
		case p.By != "":
			busy = append(busy, name+" is used by "+p.By)
		default:
			busy = append(busy, name+" is in use")
		}
	}
	switch {
	case len(busy) > 0:
		return strings.Join(busy, ", "), false
	case len(held) > 0:
		return "free, or used by what kkbundle has installed", true
	default:
		return "free", true
	}
}

func hasAddress(s *Subject) (string, bool) {
	want := Address(s.Host.Host, s.Facts)
	if !want.IsValid() {
		return "the inventory gives no IPv4 address and the host has no default route to tell one by", false
	}
	var all []string
	for _, i := range s.Facts.Interfaces {
		for _, p := range i.Addresses {
			if p.Addr() == want {
				return fmt.Sprintf("%s on %s", want, i.Name), true
			}
			if p.Addr().Is4() {
				all = append(all, p.Addr().String())
			}
		}
	}
	if len(all) == 0 {
		return fmt.Sprintf("%s is on no interface; the host has no IPv4 address", want), false
	}
	return fmt.Sprintf("%s is on no interface; the host has %s", want, strings.Join(all, ", ")), false
}

func hasUniqueAddress(s *Subject) (string, bool) {
	mine := Address(s.Host.Host, s.Facts)
	if !mine.IsValid() {
		return "it has none", true // address says so
	}
	same := s.others(func(o Host) bool { return Address(o.Host, o.Facts) == mine })
	if len(same) > 0 {
		return fmt.Sprintf("%s, as %s", mine, strings.Join(same, ", ")), false
	}
	return mine.String(), true
}

// others returns the names of the other hosts for which f holds.
func (s *Subject) others(f func(Host) bool) []string {
	var names []string
	for _, o := range s.Input.Hosts {
		if o.Name != s.Host.Name && f(o) {
			names = append(names, o.Name)
		}
	}
	return names
}

// hasNoOverlap looks at the network in which the host has its address: those of interfaces that a cluster made are its
// own.
func hasNoOverlap(s *Subject) (string, bool) {
	mine := Address(s.Host.Host, s.Facts)
	if !mine.IsValid() {
		return "it has no address", true // address says so
	}
	network := netip.PrefixFrom(mine, mine.BitLen())
	for _, i := range s.Facts.Interfaces {
		for _, p := range i.Addresses {
			if p.Addr() == mine {
				network = p.Masked()
			}
		}
	}
	var found []string
	for _, of := range []struct {
		name string
		list []netip.Prefix
	}{{"pods", s.Cluster.Kubernetes.PodCIDR}, {"services", s.Cluster.Kubernetes.ServiceCIDR}} {
		for _, p := range of.list {
			if p.Overlaps(network) {
				found = append(found, fmt.Sprintf("%s overlaps %s of the %s", network, p, of.name))
			}
		}
	}
	if len(found) > 0 {
		return strings.Join(found, ", "), false
	}
	return network.String(), true
}

func hasDefaultRoute(s *Subject) (string, bool) {
	if len(s.Facts.Routes) == 0 {
		return "none", false
	}
	r := s.Facts.Routes[0]
	return fmt.Sprintf("%s on %s", r.Gateway, r.Interface), true
}

func isUniqueMachine(s *Subject) (string, bool) {
	id := s.Facts.MachineID
	if id == "" {
		return "it has no machine id", true
	}
	if same := s.others(func(o Host) bool { return o.Facts != nil && o.Facts.MachineID == id }); len(same) > 0 {
		return "machine id " + id + ", as " + strings.Join(same, ", "), false
	}
	return id, true
}

func hasUniqueMAC(s *Subject) (string, bool) {
	mine := macs(s.Facts)
	var found []string
	for _, mac := range mine {
		same := s.others(func(o Host) bool { return o.Facts != nil && slices.Contains(macs(o.Facts), mac) })
		if len(same) > 0 {
			found = append(found, mac+", as "+strings.Join(same, ", "))
		}
	}
	if len(found) > 0 {
		return strings.Join(found, "; "), false
	}
	return strings.Join(mine, ", "), true
}

// macs returns the addresses of the interfaces that a default route or a global address goes through: bridges and
// tunnels on different hosts may well have the same ones.
func macs(f *node.Facts) []string {
	var list []string
	for _, i := range f.Interfaces {
		routed := slices.ContainsFunc(f.Routes, func(r node.DefaultRoute) bool { return r.Interface == i.Name })
		if i.MAC != "" && routed && !slices.Contains(list, i.MAC) {
			list = append(list, i.MAC)
		}
	}
	return list
}

// maxSkew is how far clocks may be apart: certificates are valid from the second they are made.
const maxSkew = 2 * time.Second

// hasClock compares the host's clock with the median of all hosts' and this machine's. The facts were made at some
// moment between the question and the answer, so a host is only wrong if it is at every moment in between.
func hasClock(s *Subject) (string, bool) {
	if s.Host.Sent.IsZero() || s.Host.Received.IsZero() {
		return "not compared", true
	}
	offsets := []time.Duration{0} // this machine, whose clock makes the certificates
	for _, h := range s.Input.Hosts {
		if h.Facts != nil && !h.Sent.IsZero() && !h.Received.IsZero() {
			low, high := h.offset()
			offsets = append(offsets, low+(high-low)/2)
		}
	}
	slices.Sort(offsets)
	median := offsets[(len(offsets)-1)/2]
	low, high := s.Host.offset()
	switch {
	case low-median > maxSkew:
		return fmt.Sprintf("%s ahead", (low - median).Round(time.Second/10)), false
	case median-high > maxSkew:
		return fmt.Sprintf("%s behind", (median - high).Round(time.Second/10)), false
	default:
		return "within " + maxSkew.String(), true
	}
}

// offset returns between what the host's clock is ahead of this machine's.
func (h Host) offset() (low, high time.Duration) {
	clock := time.Unix(0, h.Facts.Clock)
	return clock.Sub(h.Received.Round(0)), clock.Sub(h.Sent.Round(0))
}

// hasNameserver knows that kubeadm gives pods the real nameservers behind systemd-resolved's 127.0.0.53.
func hasNameserver(s *Subject) (string, bool) {
	list := s.Facts.DNS.Nameservers
	if len(list) == 0 {
		return "none", false
	}
	for _, n := range list {
		a, err := netip.ParseAddr(n)
		if err == nil && a.IsLoopback() && n != "127.0.0.53" {
			return n + " is the host itself", false
		}
	}
	return strings.Join(list, ", "), true
}

func hasNoProxy(s *Subject) (string, bool) {
	var found []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		if v := s.Facts.Proxies[name]; v != "" {
			found = append(found, name+"="+v)
		}
	}
	if len(found) > 0 {
		return strings.Join(found, ", "), false
	}
	return "none", true
}

func hasNoFirewall(s *Subject) (string, bool) {
	if len(s.Facts.Firewalls) > 0 {
		return strings.Join(s.Facts.Firewalls, ", "), false
	}
	return "none", true
}
