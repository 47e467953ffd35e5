package manifest

import (
	"path/filepath"
	"slices"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// MachineFields returns a problem with this message for each value in a cluster file that names a file or an
// environment variable of the machine that reads it. Values of settings (ParseCluster) are left out. A cluster file
// from a bundle must have none: the author of the bundle would choose what this machine reads, and the address that
// it is sent to.
func (c *Cluster) MachineFields(message string) document.Problems {
	k := checkerOf(c.src)
	for _, path := range machineFields(c) {
		if !c.isSetting(path) {
			k.Add(path, "%s", message)
		}
	}
	return k.Found
}

// GivenFiles returns the absolute paths that settings (ParseCluster) name where the cluster file names files beside it:
// files of the machine that reads the settings, such as the authority of a registry that only the site knows.
func (c *Cluster) GivenFiles() []string {
	var files []string
	document.EachLocal(c, func(l document.Locality, path, value string) {
		if l == document.LocalCarried && filepath.IsAbs(value) && c.isSetting(path) {
			files = append(files, value)
		}
	})
	return files
}

// isSetting reports whether the value at a path comes from a setting and not from the file.
func (c *Cluster) isSetting(path string) bool {
	n := c.src.Node(path)
	return n != nil && c.file != nil && c.file.Node(path) != n
}

// MachineSources is Cluster.MachineFields for the sources of a manifest.
func (b *Bundle) MachineSources(message string) document.Problems {
	k := checkerOf(b.src)
	var from struct {
		Sources []sources.Source `yaml:"sources"`
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
