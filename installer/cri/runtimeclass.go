package cri

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// runtimeTables returns the tables of further runtimes in containerd's configuration. plugin is the name of its CRI
// plugin. runc and its kin get systemd's cgroups unless the options say otherwise.
// https://github.com/containerd/containerd/blob/main/docs/cri/config.md
func runtimeTables(plugin string, classes []manifest.RuntimeClass) string {
	var b strings.Builder
	for _, r := range classes {
		kind := cmp.Or(r.Type, manifest.DefaultRuntimeType)
		options := maps.Clone(r.Options)
		if options == nil {
			options = map[string]string{}
		}
		table := fmt.Sprintf("plugins.%q.containerd.runtimes.%q", plugin, r.Name)
		fmt.Fprintf(&b, "\n[%s]\n  runtime_type = %q\n", table, kind)
		switch {
		case kind != manifest.DefaultRuntimeType && r.Binary != "":
			fmt.Fprintf(&b, "  runtime_path = %q\n", r.Binary)
		case kind == manifest.DefaultRuntimeType:
			if r.Binary != "" {
				options["BinaryName"] = r.Binary
			}
			options["SystemdCgroup"] = cmp.Or(options["SystemdCgroup"], "true")
		}
		if len(options) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n[%s.options]\n", table)
		for _, name := range slices.Sorted(maps.Keys(options)) {
			value := options[name]
			if value != "true" && value != "false" {
				value = fmt.Sprintf("%q", value)
			}
			fmt.Fprintf(&b, "  %s = %s\n", name, value)
		}
	}
	return b.String()
}
