package network

import (
	"path"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

// A Table is a list of networks.
type Table []Network

// All returns every value of cni.type, in the order of the cluster file's schema.
func All() Table {
	return Table{flannel(), calico(), cilium(), hybridnet(), kubeOVN(), multus(), {Name: manifest.NetworkNone}}
}

// Find returns a network of the table. Of one that it does not have, nothing but the name is known.
func (t Table) Find(name manifest.NetworkType) Network {
	if i := slices.IndexFunc(t, func(n Network) bool { return n.Name == name }); i >= 0 {
		return t[i]
	}
	return Network{Name: name}
}

// Of returns the networks of a cluster: one, or one that adds to another and that one.
func (t Table) Of(c *manifest.Cluster) Table {
	n := t.Find(c.CNI.Type)
	if n.Adds {
		return Table{n, t.Find(c.CNI.With)}
	}
	return Table{n}
}

// Primary returns the network of the pods' first interface.
func (t Table) Primary(c *manifest.Cluster) Network { return t.Find(c.CNI.Primary()) }

// Names returns the networks' names.
func (t Table) Names() []string {
	var list []string
	for _, n := range t {
		list = append(list, string(n.Name))
	}
	return list
}

// Has reports whether the table has a network of this name.
func (t Table) Has(name manifest.NetworkType) bool {
	return slices.ContainsFunc(t, func(n Network) bool { return n.Name == name })
}

// Always returns the networks whose traces reset removes from every node.
func (t Table) Always() Table {
	return slices.DeleteFunc(slices.Clone(t), func(n Network) bool { return !n.Leaves.Always })
}

// IsTelling reports whether an interface can only be that of a network.
func (t Table) IsTelling(link string) bool {
	return slices.ContainsFunc(t, func(n Network) bool {
		return slices.ContainsFunc(n.with(Telling), func(pattern string) bool { return matches(pattern, link) })
	})
}

// IsRule reports whether a word of a packet filter rule, a chain or a comment, is a network's.
func (t Table) IsRule(word string) bool {
	return slices.ContainsFunc(t, func(n Network) bool {
		return slices.ContainsFunc(n.Rules, func(start string) bool { return strings.HasPrefix(word, start) })
	})
}

// EnforcesIn reports whether the network enforces NetworkPolicies in a cluster, with the values that kkbundle sets.
func (n Network) EnforcesIn(c *manifest.Cluster) bool {
	if n.EnforcesBefore == nil {
		return n.Enforces
	}
	v, err := semver.NewVersion(c.Kubernetes.Version)
	return n.Enforces && err == nil && v.LessThan(n.EnforcesBefore)
}

// PluginDir has the CNI plugins on nodes.
const PluginDir = "/opt/cni/bin"

// ReplacedPlugins returns the paths of CNI plugins that the network's pods put on nodes in place of the bundle's. What
// the bundle has would be another build, for which each installation would start the container runtime again.
func (n Network) ReplacedPlugins(c *manifest.Cluster) []string {
	if n.Replaces == nil {
		return nil
	}
	var paths []string
	for _, name := range n.Replaces(c) {
		paths = append(paths, path.Join(PluginDir, name))
	}
	return paths
}

// Links returns patterns for the interfaces, which a host's network management must leave alone.
func (n Network) Links() []string {
	var list []string
	for _, i := range n.Interfaces {
		if !slices.ContainsFunc(n.Interfaces,
			func(o Interface) bool { return o.Name != i.Name && matches(o.Name, i.Name) }) {
			list = append(list, i.Name)
		}
	}
	return list
}

// Carrying returns patterns for the interfaces through which packets of pods pass.
func (n Network) Carrying() []string { return n.with(Carries) }

// Staying returns the interfaces that outlive the pods of the network.
func (n Network) Staying() []string { return n.with(Stays) }

func (n Network) with(trait Traits) []string {
	var list []string
	for _, i := range n.Interfaces {
		if i.Traits&trait != 0 {
			list = append(list, i.Name)
		}
	}
	return list
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}
