package network

import (
	"context"
	"net/netip"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

// A Network is a pod network: all that kkbundle knows of it. The zero value of a field is a fact, too: no such thing.
type Network struct {
	// Name is its value of cni.type, and that of its component in the catalog and of its task.
	Name manifest.NetworkType
	// Title is its name in texts.
	Title string
	// Adds means that it adds interfaces of pods to those of another network, which cni.with names.
	Adds bool
	// NodeShares means that each node has a fixed part of the pods' addresses; other networks allocate blocks on
	// demand.
	NodeShares bool
	// Enforces means that it enforces NetworkPolicies.
	Enforces bool
	// EnforcesBefore is the first release of Kubernetes in which it does not any more; nil if it does in all.
	EnforcesBefore *semver.Version

	// Images are components with the images that a bundle needs beside those that the chart's own values name.
	Images []string
	// Chart installs it; nil if Manifest does, or nobody.
	Chart *Chart
	// Manifest returns the Kubernetes YAML that installs it; nil if Chart does, or nobody.
	Manifest func(c *manifest.Cluster) ([]byte, error)
	// Programs are for people on control planes.
	Programs []Program
	// Replaces returns the CNI plugins of the bundle that its pods replace by their own builds, by name; nil is none.
	Replaces func(c *manifest.Cluster) []string
	// Namespaces are those of its pods, beside the chart's.
	Namespaces []string

	// Ports are those that it uses on nodes, the one of its tunnel first.
	Ports []Port
	// Listeners are the programs that listen there, by their kernel names (15 bytes).
	Listeners []string
	// Interfaces are those that it makes on nodes.
	Interfaces []Interface
	// Gateway is the IPv4 address that pods take for their gateway and that no host has. The kernel of a host answers
	// for it (proxy ARP) if the host has a route to it, such as a default route.
	Gateway netip.Addr
	// DefaultRoute means that its pods on a host end where the host has no default route.
	DefaultRoute bool
	// Modules are kernel modules that it needs.
	Modules []string
	// Dirs returns directories of the host that its pods mount and nobody makes for them; nil is none.
	Dirs func(c *manifest.Cluster) []string
	// Kernels are the least kernels of its releases: the first whose Before is newer than the release counts.
	Kernels []Kernel
	// KernelSource is where Kernels are from, for people.
	KernelSource string
	// Kubernetes is the first release that it runs in; nil if any can have it.
	Kubernetes *Kubernetes
	// Agents are the names of its DaemonSet with a pod on each node, in clusters of kkbundle and of other tools.
	Agents []string
	// Configs are the names of its files in /etc/cni/net.d.
	Configs []string
	// Rules are the beginnings of words by which its packet filter rules are known: of chains, or of comments in
	// quotes.
	Rules []string
	// Leaves is what its pods leave on hosts, beside Interfaces that stay and Rules.
	Leaves Leaves
}

// A Program is a file of the catalog, and its place on control planes.
type Program struct{ Component, Path string }

// A Port is one that a network uses on nodes.
type Port struct {
	Protocol string // "tcp" or "udp"
	Number   int
	// For is its use, for people.
	For string
	// Caller is who connects to it.
	Caller Caller
	// Maybe means that only some settings of the network use the port; the cluster file does not contain them.
	Maybe bool
	// Some means that the program listens on some nodes only, which Kubernetes selects.
	Some bool
}

// A Caller is who connects to a port of a node, as far as a host can try it before the installation.
type Caller int

// The callers. Others are not tried.
const (
	OthersCall  Caller = iota
	PeersCall          // every node, each other one's
	MembersCall        // every node, those of control planes
	NobodyCalls        // from another host: a firewall may keep it closed
)

// An Interface is a network interface on nodes, or several of one pattern.
type Interface struct {
	// Name is the whole name, or has * for any text.
	Name string
	Traits
}

// Traits of an interface, beside that the host's network management must leave it alone.
type Traits int

// The traits.
const (
	// Carries means that packets of pods pass through it between the host and others: a firewall must trust it.
	Carries Traits = 1 << iota
	// Stays means that it outlives the pods of the network.
	Stays
	// Telling means that nothing else makes such an interface: on a host without a cluster, an earlier one has left it.
	Telling
)

// A Kernel is the least kernel of some releases of a network.
type Kernel struct {
	// Before is the first release, as numbers, that needs a newer kernel; empty for the newest.
	Before []int
	Least  string
	// RHEL8 is the build of RHEL 8's 4.18 that has what Least has; 0 if none does.
	RHEL8 int
}

// Kubernetes is the first release of Kubernetes that a network runs in.
type Kubernetes struct {
	Least []int // as numbers
	// Why and Source are for people.
	Why, Source string
}

// Leaves is what a network leaves on hosts.
type Leaves struct {
	Paths []string
	// Tables are names of nftables tables, Sets beginnings of the names of IP sets, Mounts of mount points.
	Tables, Sets, Mounts []string
	// Script removes the rest; it runs as root after these, and may run again.
	Script Script
	// Always means that reset removes all of it from every node, whichever network the cluster file names.
	Always bool
}

// A Script is a shell script with its name.
type Script struct{ Name, Text string }

// A Chart is the chart of a network. Its release and its component have the network's name.
type Chart struct {
	// Name is the chart's own; "" is the network's.
	Name string
	// Namespace is the release's; "" is that of Kubernetes.
	Namespace string
	// Everywhere means that it is installed when its pods run on every node, because later tasks need them.
	Everywhere bool
	// Values is called without nodes when a bundle is built: images must not depend on nodes.
	Values func(s Site) (map[string]any, error)
	// Options are values that the user may set at the site. Images found in the chart with them are in a bundle, too.
	Options map[string]any
	// Definitions are in another chart, unless this one has them; nil if it always has.
	Definitions *Definitions
	// Before runs before the installation; nil is nothing.
	Before func(ctx context.Context, on Kubectl, s Site) error
	// After runs after it, within Wait again until it succeeds; nil is nothing.
	After func(ctx context.Context, on Kubectl) error
	Wait  time.Duration
}

// Definitions are the custom resource definitions of a network, in a chart that has nothing else. They are applied
// and never a release of Helm: they can exceed the size of a release, and a release would delete them with itself.
type Definitions struct {
	Component string // in the catalog, if the network's version has such a chart
	Chart     string // its own name
	// Established are those that the network's chart needs.
	Established []string
}

// A Site is the cluster with those hosts that the values of a chart may depend on.
type Site struct {
	Cluster              *manifest.Cluster
	Nodes, ControlPlanes []Node
}

// A Node is a host of the cluster.
type Node struct {
	Name string
	IP   netip.Addr
}

// A Kubectl runs kubectl as the cluster's administrator.
type Kubectl interface {
	Kubectl(ctx context.Context, args ...string) ([]byte, error)
}
