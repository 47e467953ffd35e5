package kubeadm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/kkbundle/kkbundle/installer/kube"
)

// merged returns base with over laid upon it: mappings are merged key by key, everything else is replaced.
func merged(base kube.Document, over map[string]any) kube.Document {
	out := maps.Clone(base)
	for key, v := range over {
		below, both := out[key].(map[string]any)
		if m, ok := v.(map[string]any); ok && both {
			v = merged(below, m)
		}
		out[key] = v
	}
	return out
}

// laid is merged for ClusterConfiguration, whose lists have keys: arguments, environment variables and volumes are merged by
// name, and names in certificates are added. Arguments may be written in either API version's form, as a mapping or as a
// list; an argument whose value is null is taken out.
func (k Config) laid(base kube.Document, over map[string]any) kube.Document {
	out := kube.Document{}
	maps.Copy(out, base)
	for key, v := range over {
		switch key {
		case "extraArgs":
			out[key] = k.written(laidArgs(argsOf(out[key]), argsOf(v)))
		case "extraEnvs", "extraVolumes":
			out[key] = laidByName(listOf(out[key]), listOf(v))
		case "certSANs", "serverCertSANs", "peerCertSANs":
			out[key] = union(listOf(out[key]), listOf(v))
		default:
			if m, ok := v.(map[string]any); ok {
				below, _ := out[key].(map[string]any)
				v = k.laid(below, m)
			}
			out[key] = v
		}
	}
	return out
}

// An argument is one of a component's command line. v1beta4 allows several of one name.
type argument struct {
	name  string
	value any // nil takes the arguments of this name out
}

// argsOf reads arguments in the form of either API version.
func argsOf(v any) []argument {
	var list []argument
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			list = append(list, argument{name, v[name]})
		}
	case []any:
		for _, one := range v {
			if m, ok := one.(map[string]any); ok {
				list = append(list, argument{fmt.Sprint(m["name"]), m["value"]})
			}
		}
	}
	return list
}

// laidArgs replaces arguments by those of the same name.
func laidArgs(below, over []argument) []argument {
	list := slices.DeleteFunc(slices.Clone(below), func(a argument) bool {
		return slices.ContainsFunc(over, func(o argument) bool { return o.name == a.name })
	})
	list = append(list, slices.DeleteFunc(slices.Clone(over), func(a argument) bool { return a.value == nil })...)
	slices.SortStableFunc(list, func(a, b argument) int { return cmp.Compare(a.name, b.name) })
	return list
}

// written writes arguments in the form of the cluster's API version.
func (k Config) written(args []argument) any {
	if !k.beta4 {
		d := kube.Document{}
		for _, a := range args {
			d[a.name] = fmt.Sprint(a.value) // the manifest has refused two of one name
		}
		return d
	}
	list := []any{}
	for _, a := range args {
		list = append(list, kube.Document{"name": a.name, "value": fmt.Sprint(a.value)})
	}
	return list
}

func listOf(v any) []any {
	list, _ := v.([]any)
	return list
}

func nameOf(v any) any {
	m, _ := v.(map[string]any)
	return m["name"]
}

// laidByName replaces entries by those of the same name, and adds the others.
func laidByName(below, over []any) []any {
	list := slices.DeleteFunc(slices.Clone(below), func(b any) bool {
		return slices.ContainsFunc(over, func(o any) bool { return nameOf(o) == nameOf(b) })
	})
	return append(list, over...)
}

// union returns what is in one of both lists, in the order of both.
func union(below, over []any) []any {
	list := slices.Clone(below)
	for _, o := range over {
		if !slices.Contains(list, o) {
			list = append(list, o)
		}
	}
	return list
}
