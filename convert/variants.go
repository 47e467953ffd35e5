package convert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// maxClusters bounds the clusters from one file; nobody carries more at once.
const maxClusters = 50

// choices are the alternatives that a file lists, while a cluster has one of each. An empty list keeps the cluster's
// value.
type choices struct {
	versions   []string // of Kubernetes
	networks   []manifest.NetworkType
	runtimes   []manifest.CRI
	registries []manifest.RegistryType
}

// clusters adds a cluster for each version with each network, and for each version another one per additional runtime
// and registry: their needs do not depend on the network.
func (f *reader) clusters(base manifest.Cluster, c choices) {
	networks, runtimes, registries := orOne(c.networks, base.CNI.Type), orOne(c.runtimes, base.CRI),
		orOne(c.registries, base.ImageRegistry.Type)
	for _, version := range c.versions {
		base.Kubernetes.Version = version
		for _, network := range networks {
			f.variant(base, network, runtimes[0], registries[0])
		}
		for _, runtime := range runtimes[1:] {
			f.variant(base, networks[0], runtime, registries[0])
		}
		for _, registry := range registries[1:] {
			f.variant(base, networks[0], runtimes[0], registry)
		}
	}
}

func orOne[T any](list []T, one T) []T {
	if len(list) == 0 {
		return []T{one}
	}
	return list
}

func (f *reader) variant(c manifest.Cluster, network manifest.NetworkType, runtime manifest.CRI,
	registry manifest.RegistryType,
) {
	switch n := len(f.Clusters); {
	case n == maxClusters:
		f.noteAt(0, "the lists give more than %d clusters; those from %s with %s on were left out", maxClusters,
			c.Kubernetes.Version, network)
		fallthrough
	case n > maxClusters:
		return
	}
	if network != c.CNI.Type && network != c.CNI.Primary() {
		c.CNI.Type, c.CNI.With, c.CNI.Version = network, "", ""
	}
	if runtime.Type != c.CRI.Type || runtime.Version != "" {
		c.CRI = runtime
	}
	if registry != c.ImageRegistry.Type {
		c.ImageRegistry = manifest.ImageRegistry{Type: registry}
	}
	f.Clusters = append(f.Clusters, f.fitting(c))
}

// fitting removes component versions that are incompatible with the cluster's Kubernetes, each with a note: the other
// tool has one list for all versions, and the catalog knows the compatible ones.
func (f *reader) fitting(c manifest.Cluster) manifest.Cluster {
	plain := c
	plain.Components, plain.CRI.Version, plain.CNI.Version = nil, "", ""
	if _, err := catalog.Check(&plain); err != nil {
		return c // not about a component
	}
	fits := func(one manifest.Cluster, left string) bool {
		_, err := catalog.Check(&one)
		if err != nil {
			f.once(0, "%s was not carried over, and the catalog's version is used: %v", left, err)
		}
		return err == nil
	}
	components := maps.Clone(c.Components)
	for _, name := range slices.Sorted(maps.Keys(components)) {
		one := plain
		one.Components = map[string]manifest.Component{name: components[name]}
		if !fits(one, "the version of "+name) {
			delete(components, name)
		}
	}
	one := plain
	if one.CRI.Version = c.CRI.Version; !fits(one, "the version of "+
		string(cmp.Or(c.CRI.Type, manifest.RuntimeContainerd))) {
		c.CRI.Version = ""
	}
	one = plain
	if one.CNI.Version = c.CNI.Version; !fits(one, "the version of "+or(string(c.CNI.Type), "the network")) {
		c.CNI.Version = ""
	}
	c.Components = components
	return c
}

// once adds a note unless the same note exists.
func (f *reader) once(line int, format string, args ...any) {
	note := Note{f.file, line, fmt.Sprintf(format, args...)}
	if !slices.Contains(f.Notes, note) {
		f.noteAt(line, "%s", note.Text)
	}
}
