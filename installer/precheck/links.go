package precheck

import (
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Link is the result of sending packets from one host of the inventory to another, to a port that the other one's
// roles need. During the attempt, the other host listened there itself, or the service was running.
type Link struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Address string `json:"address"` // of To, without port
	Network string `json:"network"` // "tcp" or "udp"
	Port    int    `json:"port"`
	For     string `json:"for"` // the service behind the port, for people
	// Maybe means that the cluster file does not tell whether the link is needed: that depends on the pod network's
	// configuration.
	Maybe bool `json:"maybe,omitempty"`
	OK    bool `json:"ok"`
	// Error is the reason of a failure: "refused", "timeout", or the host kernel's message.
	Error string `json:"error,omitempty"`
	// Skipped is the reason that no attempt was made, so that neither OK nor Error is meaningful; "" otherwise.
	Skipped string `json:"skipped,omitempty"`
	// Service means a service already has the port: only its answer is known.
	Service bool `json:"service,omitempty"`
	// MTU is the size of the largest IP packet that arrived unfragmented and was answered, in bytes, and Want the MTU
	// of the sender's interface. They are 0 if not tested: one link from each host to each other is tested.
	MTU  int `json:"mtu,omitempty"`
	Want int `json:"want,omitempty"`
}

// A way is a port that hosts with some roles need on hosts with others.
type way struct {
	network  string
	port     int
	what     string
	from, to []manifest.Role
	// peers means between every two of the hosts, of which only some pairs are tried.
	peers bool
	// maybe is Link.Maybe.
	maybe bool
}

// ways lists the connections that a cluster's hosts need. The numbers are the programs' defaults.
func ways(c *manifest.Cluster, networks network.Table) []way {
	cp, nodes := []manifest.Role{manifest.RoleControlPlane}, []manifest.Role{manifest.RoleCluster}
	list := []way{
		{network: "tcp", port: manifest.DefaultPort, what: "API server", from: nodes, to: cp},
		{network: "tcp", port: 10250, what: "kubelet", from: cp, to: nodes},
	}
	if c.Etcd.Type != manifest.EtcdProvided {
		etcd := cp
		if c.Etcd.Type == manifest.EtcdExternal {
			etcd = []manifest.Role{manifest.RoleEtcd}
		}
		list = append(list,
			way{network: "tcp", port: 2379, what: "etcd", from: append(slices.Clone(cp), etcd...), to: etcd},
			way{network: "tcp", port: 2380, what: "etcd between its members", from: etcd, to: etcd})
	}
	registry := []manifest.Role{manifest.RoleRegistry}
	switch c.ImageRegistry.Type {
	case manifest.RegistryPlain:
		list = append(list, way{
			network: "tcp", port: c.ImageRegistry.Port, what: "registry", from: nodes,
			to: registry,
		})
	case manifest.RegistryHarbor:
		list = append(list, way{network: "tcp", port: 443, what: "Harbor", from: nodes, to: registry})
	}
	if c.Storage.NFS {
		list = append(list, way{
			network: "tcp", port: 2049, what: "NFS", from: nodes,
			to: []manifest.Role{manifest.RoleNFS},
		})
	}
	for _, n := range networks {
		list = append(list, podWays(n, nodes)...)
	}
	return list
}

// podWays returns those of a pod network.
func podWays(n network.Network, nodes []manifest.Role) []way {
	var list []way
	for _, p := range n.Ports {
		w := way{
			network: p.Protocol, port: p.Number, what: fmt.Sprintf("%s (%s)", n.Name, p.For), from: nodes,
			maybe: p.Maybe,
		}
		switch p.Caller {
		case network.PeersCall:
			w.to, w.peers = nodes, true
		case network.MembersCall:
			w.to = []manifest.Role{manifest.RoleControlPlane}
		default:
			continue
		}
		list = append(list, w)
	}
	return list
}

// neighbours is how many of the following hosts in the inventory a host is tried with as a peer, in both directions,
// apart from the control planes: a problem between two of thousands of hosts usually affects many.
const neighbours = 2

// Links returns the connections between hosts that their roles need, not tried yet, in the inventory's order. Hosts
// without facts or without an address are left out. With few control planes, the number of links grows linearly with
// the number of hosts.
func Links(c *manifest.Cluster, hosts []Host) []Link { return links(network.All(), c, hosts) }

func links(all network.Table, c *manifest.Cluster, hosts []Host) []Link {
	c = c.WithDefaults()
	known := slices.DeleteFunc(slices.Clone(hosts), func(h Host) bool {
		return h.Facts == nil || !AddressFor(c, h.Host, h.Facts).IsValid()
	})
	var list []Link
	for _, w := range ways(c, all.Of(c)) {
		senders := having(known, w.from)
		central := having(senders, []manifest.Role{manifest.RoleControlPlane})
		for i, to := range having(known, w.to) {
			address := AddressFor(c, to.Host, to.Facts).String()
			from := senders
			if w.peers { // senders and receivers are the same
				from = peersOf(i, senders, central)
			}
			for _, f := range from {
				if f.Name != to.Name {
					list = append(list, Link{
						From: f.Name, To: to.Name, Address: address, Network: w.network,
						Port: w.port, For: w.what, Maybe: w.maybe,
					})
				}
			}
		}
	}
	return list
}

// peersOf returns the peers to try for one of the nodes: the control planes and its neighbours.
func peersOf(i int, nodes, central []Host) []Host {
	if nodes[i].Is(manifest.RoleControlPlane) || len(nodes) <= 2*neighbours+1 {
		return nodes
	}
	list := slices.Clone(central)
	for apart := -neighbours; apart <= neighbours; apart++ {
		if n := nodes[(i+apart+len(nodes))%len(nodes)]; !n.Is(manifest.RoleControlPlane) {
			list = append(list, n)
		}
	}
	return list
}

func having(hosts []Host, roles []manifest.Role) []Host {
	return slices.DeleteFunc(slices.Clone(hosts), func(h Host) bool { return !slices.ContainsFunc(roles, h.Is) })
}
