package manifest

import (
	"slices"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// MachineFields returns a problem with this message for each value in a cluster file that names a file or an
// environment variable of the machine that reads it. Values of settings (ParseCluster) are left out. A cluster file
// from a bundle must have none: the author of the bundle would choose what this machine reads, and the address that
// it is sent to.
func (c *Cluster) MachineFields(message string) document.Problems {
	k := checkerOf(c.src)
	for _, path := range machineFields(c) {
		if n := c.src.Node(path); n == nil || c.file == nil || c.file.Node(path) == n {
			k.Add(path, "%s", message)
		}
	}
	return k.Found
}

// MachineSources is Cluster.MachineFields for the sources of a manifest.
func (b *Bundle) MachineSources(message string) document.Problems {
	k := checkerOf(b.src)
	var from struct {
		Sources []Source `yaml:"sources"`
	}
	from.Sources = b.Sources
	for _, path := range machineFields(&from) {
		k.Add(path, "%s", message)
	}
	return k.Found
}

// CarriedFiles returns the files beside a cluster file that it names and install reads, sorted. A bundle carries them.
func (c *Cluster) CarriedFiles() []string { return carriedFiles(c) }

// CarriedFiles returns the files beside a manifest that deploy reads, sorted. A bundle carries them.
func (b *Bundle) CarriedFiles() []string { return carriedFiles(b) }

func carriedFiles(file any) []string {
	var files []string
	document.EachLocal(file, func(l document.Locality, _, value string) {
		if l == document.LocalCarried {
			files = append(files, value)
		}
	})
	slices.Sort(files)
	return slices.Compact(files)
}

func machineFields(file any) []string {
	var paths []string
	document.EachLocal(file, func(l document.Locality, path, _ string) {
		if l == document.LocalMachine {
			paths = append(paths, path)
		}
	})
	return paths
}
