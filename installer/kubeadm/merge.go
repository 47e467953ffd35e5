package kubeadm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/kkbundle/kkbundle/installer/kube"
)

// merge returns base with over merged into it: maps are merged key by key, other values are replaced.
func merge(base kube.Document, over map[string]any) kube.Document {
	out := maps.Clone(base)
	for key, v := range over {
		below, both := out[key].(map[string]any)
		if m, ok := v.(map[string]any); ok && both {
			v = merge(below, m)
		}
		out[key] = v
	}
	return out
}

// mergeCluster is merge for ClusterConfiguration: arguments, environment variables and volumes are merged by name, and
// names in certificates are added. Arguments are a map (v1beta3) or a list (v1beta4); the value null removes one.
func (k Config) mergeCluster(base kube.Document, over map[string]any) kube.Document {
	out := kube.Document{}
	maps.Copy(out, base)
	for key, v := range over {
		switch key {
		case "extraArgs":
			out[key] = k.renderArgs(mergeArgs(argsOf(out[key]), argsOf(v)))
		case "extraEnvs", "extraVolumes":
			out[key] = mergeByName(listOf(out[key]), listOf(v))
		case "certSANs", "serverCertSANs", "peerCertSANs":
			out[key] = union(listOf(out[key]), listOf(v))
		default:
			if m, ok := v.(map[string]any); ok {
				below, _ := out[key].(map[string]any)
				v = k.mergeCluster(below, m)
			}
			out[key] = v
		}
	}
	return out
}

// An argument is an argument of a component's command line. v1beta4 allows several with the same name.
type argument struct {
	name  string
	value any // nil removes the arguments with this name
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

// mergeArgs replaces arguments with the same name and adds the others.
func mergeArgs(below, over []argument) []argument {
	list := slices.DeleteFunc(slices.Clone(below), func(a argument) bool {
		return slices.ContainsFunc(over, func(o argument) bool { return o.name == a.name })
	})
	list = append(list, slices.DeleteFunc(slices.Clone(over), func(a argument) bool { return a.value == nil })...)
	slices.SortStableFunc(list, func(a, b argument) int { return cmp.Compare(a.name, b.name) })
	return list
}

// renderArgs renders arguments for the cluster's API version: a list in v1beta4, a map before.
func (k Config) renderArgs(args []argument) any {
	if !k.beta4 {
		d := kube.Document{}
		for _, a := range args {
			d[a.name] = fmt.Sprint(a.value) // the manifest refuses duplicate names
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

// mergeByName replaces entries with the same name and adds the others.
func mergeByName(below, over []any) []any {
	list := slices.DeleteFunc(slices.Clone(below), func(b any) bool {
		return slices.ContainsFunc(over, func(o any) bool { return nameOf(o) == nameOf(b) })
	})
	return append(list, over...)
}

// union returns the entries of below, then those that only over has.
func union(below, over []any) []any {
	list := slices.Clone(below)
	for _, o := range over {
		if !slices.Contains(list, o) {
			list = append(list, o)
		}
	}
	return list
}
