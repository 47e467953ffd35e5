package programs

import (
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// Without returns a copy of a section without its reserved settings, for a cluster file of a running cluster, whose
// programs were configured by others. config is not changed; what is empty afterwards is left out.
func Without(section Section, config map[string]any) map[string]any {
	kept := cloned(config)
	for _, r := range reservedSettings() {
		if r.section != section {
			continue
		}
		for _, name := range r.names {
			kept = removed(kept, document.Join(r.below, name), r.harmless)
		}
	}
	return kept
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
