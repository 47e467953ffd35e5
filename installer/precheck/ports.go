package precheck

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

// portChecks check the ports that a host's roles need.
func portChecks() []Check {
	return []Check{
		{
			ID: "ports", Groups: []string{GroupNetwork}, Level: Block, Title: "the ports are free", Rule: hasPorts,
			Essential: true,
			Why:       "the API server, etcd, the kubelet, the DNS cache of nodes or the registry could not listen there",
			Fix:       "stop the program that has the port; one that answers DNS may also listen on its own addresses only, for the DNS cache of nodes needs its address alone (dnsmasq: bind-dynamic)",
			Source:    "kubeadm Port-*; ports of the pod network, of the DNS cache of nodes, of the registry and of the load balancer",
			Kubeadm:   []string{"Port-6443", "Port-10257", "Port-10259", "Port-10250", "Port-2379", "Port-2380"},
		},
	}
}

type port struct {
	network string
	number  int
	what    string
	address netip.Addr // invalid for all addresses
	// listeners are the programs of a pod network that have the port.
	listeners []string
	// local means that no other host calls it, as on the loopback interface.
	local bool
}

func tcp(number int, what string) port { return port{network: "tcp", number: number, what: what} }

func local(number int, what string) port {
	p := tcp(number, what)
	p.local = true
	return p
}
func udp(number int, what string) port { return port{network: "udp", number: number, what: what} }

// String names the port and its program.
func (p port) String() string {
	if p.address.IsValid() {
		return fmt.Sprintf("%s/%s (%s)", netip.AddrPortFrom(p.address, uint16(p.number)), p.network, p.what)
	}
	return fmt.Sprintf("%d/%s (%s)", p.number, p.network, p.what)
}

// in returns the port's state on a host.
func (p port) in(f *node.Facts) (node.Port, bool) {
	i := slices.IndexFunc(f.Ports, func(o node.Port) bool {
		return o.Network == p.network && o.Port == p.number && o.Address == p.address
	})
	if i < 0 {
		return node.Port{}, false
	}
	return f.Ports[i], true
}

// portsOf returns the ports that a host's roles need.
func portsOf(c *manifest.Cluster, networks network.Table, h manifest.Host) []port {
	var list []port
	if h.Is(manifest.RoleControlPlane) {
		list = append(list, tcp(manifest.DefaultPort, "API server"), local(10257, "controller manager"),
			local(10259, "scheduler"))
	}
	if hasEtcd(c, h) {
		list = append(list, tcp(2379, "etcd"), tcp(2380, "etcd"))
	}
	if h.Is(manifest.RoleCluster) {
		list = append(list, tcp(10250, "kubelet"))
		for _, n := range networks {
			list = append(list, networkPorts(n)...)
		}
		if c.ImageDistribution.Peers.Used() {
			list = append(list, tcp(manifest.PeersHostPort, "Spegel"), tcp(manifest.PeersNodePort, "Spegel"))
		}
	}
	if c.ControlPlaneEndpoint.Type == manifest.EndpointHAProxy && h.Is(manifest.RoleWorker) &&
		!h.Is(manifest.RoleControlPlane) {
		list = append(list, local(manifest.DefaultPort, "haproxy"), local(8081, "haproxy"))
	}
	if h.Is(manifest.RoleRegistry) {
		switch c.ImageRegistry.Type {
		case manifest.RegistryPlain:
			list = append(list, tcp(c.ImageRegistry.Port, "registry"))
		case manifest.RegistryHarbor:
			list = append(list, tcp(80, "Harbor"), tcp(443, "Harbor"))
		}
	}
	return list
}

// nodeDNSPorts are those of the DNS cache on nodes. A program that listens on other addresses, as systemd-resolved
// does, is not in its way.
func nodeDNSPorts(c *manifest.Cluster, h manifest.Host) []port {
	if !c.DNS.NodeLocal || !h.Is(manifest.RoleCluster) {
		return nil
	}
	address := netip.MustParseAddr(manifest.NodeDNSAddress)
	list := []port{tcp(53, "DNS cache"), udp(53, "DNS cache")}
	for i := range list {
		list[i].address = address
	}
	return list
}

// hasEtcd reports whether etcd will run on a host.
func hasEtcd(c *manifest.Cluster, h manifest.Host) bool {
	switch c.Etcd.Type {
	case manifest.EtcdProvided:
		return false
	case manifest.EtcdInternal:
		return h.Is(manifest.RoleControlPlane) || h.Is(manifest.RoleEtcd)
	default:
		return h.Is(manifest.RoleEtcd)
	}
}

// networkPorts returns the ports that every node needs for a pod network, those of TCP first.
func networkPorts(n network.Network) []port {
	var list []port
	for _, p := range n.Ports {
		if !p.Some {
			list = append(list, port{
				network: p.Protocol, number: p.Number, what: string(n.Name),
				listeners: n.Listeners, local: p.Caller == network.NobodyCalls,
			})
		}
	}
	slices.SortStableFunc(list, func(a, b port) int { return strings.Compare(a.network, b.network) })
	return list
}

// isOurs reports whether a program, by its kernel name (15 bytes), is the one that uses the port in our clusters.
func (p port) isOurs(program string) bool {
	if strings.HasPrefix(program, "k3s") { // all of Kubernetes in one process
		return true
	}
	return slices.Contains(map[string][]string{
		"API server":         {"kube-apiserver"},
		"controller manager": {"kube-controller"},
		"scheduler":          {"kube-scheduler"},
		"etcd":               {"etcd"},
		"kubelet":            {"kubelet"},
		"haproxy":            {"haproxy"},
		"registry":           {"registry"},
		"Harbor":             {"docker-proxy"},
		"DNS cache":          {"node-cache"},
	}[p.what], program) || slices.Contains(p.listeners, program)
}

func hasPorts(s *Subject) Finding {
	var busy, untold []string
	held := false
	for _, want := range append(portsOf(s.Cluster, s.networks(), s.Host.Host),
		nodeDNSPorts(s.Cluster, s.Host.Host)...) {
		name := want.String()
		p, tried := want.in(s.Facts)
		switch {
		case !tried:
			untold = append(untold, name+" was not tried")
		case p.Free:
		case p.Problem != "":
			untold = append(untold, name+": "+p.Problem)
		case s.Ours() && (p.By == "" || want.isOurs(p.By)):
			held = true
		case p.By != "":
			busy = append(busy, name+" is used by "+p.By)
		default:
			busy = append(busy, name+" is in use")
		}
	}
	switch {
	case len(busy) == 0 && len(untold) > 0:
		return unknown(some(untold))
	case held:
		return none(busy, "free, or used by kkbundle's own installation")
	default:
		return none(busy, "free")
	}
}
