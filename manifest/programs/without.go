package programs

import (
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Dropped setting is one that Without took out.
type Dropped struct {
	// Path is its place in the section, such as apiServer.extraArgs.anonymous-auth.
	Path  string
	Value any
	// Instead is what to write in its place, or the reason to leave it out.
	Instead string
}

// Without returns a copy of a section without its reserved settings, for a cluster file of a running cluster, whose
// programs were configured by others, and the settings that it took out, in the order of the table. config is not
// changed; what is empty afterwards is left out.
func Without(section Section, config map[string]any) (kept map[string]any, dropped []Dropped) {
	kept = cloned(config)
	for _, r := range reservedSettings() {
		if r.section != section {
			continue
		}
		for _, name := range r.names {
			at := document.Join(r.below, name)
			for _, one := range find("", kept, at) {
				if r.harmless == nil || !r.harmless(one.value) {
					dropped = append(dropped, Dropped{Path: at, Value: one.value, Instead: r.instead})
				}
			}
			kept = removed(kept, at, r.harmless)
		}
	}
	return kept, dropped
}

// cloned returns a copy with copies of the mappings and lists in it.
func cloned(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for name, v := range m {
		switch v := v.(type) {
		case map[string]any:
			out[name] = cloned(v)
		case []any:
			out[name] = slices.Clone(v)
		default:
			out[name] = v
		}
	}
	return out
}

// removed deletes the values at a path from m, which find finds, unless they are harmless.
func removed(m map[string]any, path string, harmless func(any) bool) map[string]any {
	name, rest, deeper := strings.Cut(path, ".")
	goes := func(v any) bool { return harmless == nil || !harmless(v) }
	switch below := m[name].(type) {
	case map[string]any:
		if deeper {
			m[name] = removed(below, rest, harmless)
		} else if goes(below) {
			delete(m, name)
		}
	case []any:
		if deeper {
			m[name] = slices.DeleteFunc(below, func(one any) bool {
				entry, _ := one.(map[string]any)
				return entry["name"] == rest && goes(entry["value"])
			})
		} else if goes(below) {
			delete(m, name)
		}
	default:
		if !deeper && goes(below) {
			delete(m, name)
		}
	}
	maps.DeleteFunc(m, func(key string, v any) bool { return key == name && isEmpty(v) })
	return m
}

func isEmpty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}
