package manifest

import (
	"reflect"
	"slices"
	"strings"
)

// locality is the value of the tag local: the machine and the place that a text in a file names. Every field that is
// read as a path or a variable on the machine that kkbundle runs on has the tag; a test holds the list of all others.
type locality string

const (
	// localMachine is a file or an environment variable of the machine that reads the file. It counts only in a file
	// that the operator gave.
	localMachine locality = "machine"
	// localCarried is the path of a file beside this one. A bundle carries both, and reads it from itself only.
	localCarried locality = "carried"
)

// MachineFields returns a problem with this message for each value in a cluster file that names a file or an environment
// variable of the machine that reads it. Values of settings (ParseCluster) are left out. A cluster file from a bundle
// must have none: the author of the bundle would choose what this machine reads, and the address that it is sent to.
func (c *Cluster) MachineFields(message string) Problems {
	k := checker{src: c.src}
	for _, path := range machineFields(c) {
		if n := c.src.node(path); n == nil || c.file == nil || c.file.node(path) == n {
			k.add(path, "%s", message)
		}
	}
	return k.found
}

// MachineSources is Cluster.MachineFields for the sources of a manifest.
func (b *Bundle) MachineSources(message string) Problems {
	k := checker{src: b.src}
	var from struct {
		Sources []Source `yaml:"sources"`
	}
	from.Sources = b.Sources
	for _, path := range machineFields(&from) {
		k.add(path, "%s", message)
	}
	return k.found
}

// CarriedFiles returns the files beside a cluster file that it names and install reads, sorted. A bundle carries them.
func (c *Cluster) CarriedFiles() []string { return carriedFiles(c) }

// CarriedFiles returns the files beside a manifest that deploy reads, sorted. A bundle carries them.
func (b *Bundle) CarriedFiles() []string { return carriedFiles(b) }

func carriedFiles(file any) []string {
	var files []string
	eachLocal(reflect.ValueOf(file).Elem(), "", field{}, func(f field, _, value string) {
		if f.local == localCarried {
			files = append(files, value)
		}
	})
	slices.Sort(files)
	return slices.Compact(files)
}

func machineFields(file any) []string {
	var paths []string
	eachLocal(reflect.ValueOf(file).Elem(), "", field{}, func(f field, path, _ string) {
		if f.local == localMachine {
			paths = append(paths, path)
		}
	})
	return paths
}

// eachLocal calls visit for each text of v that is not empty and whose field has the tag local.
func eachLocal(v reflect.Value, path string, f field, visit func(f field, path, value string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachLocal(v.Elem(), path, f, visit)
		}
	case reflect.Struct:
		for _, one := range fields(v.Type()) {
			eachLocal(v.Field(one.index), join(path, one.name), one, visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachLocal(v.Index(i), index(path, i), f, visit)
		}
	case reflect.Map:
		for _, k := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			eachLocal(v.MapIndex(k), key(path, k.String()), f, visit)
		}
	case reflect.String:
		if f.local != "" && v.Len() > 0 {
			visit(f, path, v.String())
		}
	default: // numbers, switches, free-form parts of other programs' configuration
	}
}
