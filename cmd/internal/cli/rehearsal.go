package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/kkbundle/kkbundle/installer/upgrade"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// rehearsal is the JSON output of upgrade --plan.
type rehearsal struct {
	Steps         []rehearsedStep `json:"steps"`
	Nodes         []rehearsedNode `json:"nodes"`
	RegistryLacks int64           `json:"registryLacks"` // bytes
	Deprecated    []string        `json:"deprecated"`
	Webhooks      []string        `json:"webhooks"`
	Seconds       int             `json:"seconds,omitempty"` // 0 if unknown
}

type rehearsedStep struct {
	Version    string     `json:"version"`
	Components []replaced `json:"components"`
	Images     int        `json:"images"`
	Files      int        `json:"files"`
}

type replaced struct {
	Name string `json:"name"`
	From string `json:"from,omitempty"`
	To   string `json:"to"`
}

type rehearsedNode struct {
	Name     string   `json:"name"`
	Replaces []string `json:"replaces"`
	Lacks    []string `json:"lacks"` // what upgrade --stage brings to the node
}

func newRehearsal(r *upgrade.Rehearsal) *rehearsal {
	if r == nil {
		return nil
	}
	out := &rehearsal{
		Steps: []rehearsedStep{}, Nodes: []rehearsedNode{}, RegistryLacks: r.RegistryLacks,
		Deprecated: append([]string{}, r.Deprecated...), Webhooks: append([]string{}, r.Webhooks...),
		Seconds: int(r.Estimate.Seconds()),
	}
	for _, s := range r.Steps {
		one := rehearsedStep{Version: s.Version, Components: []replaced{}, Images: s.Images, Files: s.Files}
		for _, c := range s.Components {
			one.Components = append(one.Components, replaced(c))
		}
		out.Steps = append(out.Steps, one)
	}
	for _, n := range r.Nodes {
		out.Nodes = append(out.Nodes, rehearsedNode{
			n.Name, append([]string{}, n.Replaces...), append([]string{}, n.Lacks...),
		})
	}
	return out
}

func writeRehearsal(w io.Writer, r *upgrade.Rehearsal) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	for _, s := range r.Steps {
		var parts []string
		for _, c := range s.Components {
			parts = append(parts, fmt.Sprintf("%s %s -> %s", c.Name, cmp.Or(plain.Line(c.From), "?"), plain.Line(c.To)))
		}
		say("step %s: %s; %s and %s of the bundle", plain.Line(s.Version),
			cmp.Or(strings.Join(parts, ", "), "same etcd and CoreDNS"),
			plain.Count(s.Images, "image"), plain.Count(s.Files, "program"))
	}
	for _, n := range r.Nodes {
		say("%s: replaces %s; not staged: %s", plain.Line(n.Name), cmp.Or(strings.Join(n.Replaces, ", "), "nothing"),
			cmp.Or(strings.Join(n.Lacks, ", "), "nothing"))
	}
	say("registry: lacks %s, which the bundle has", plain.Size(r.RegistryLacks))
	for _, text := range r.Deprecated {
		say("removed API: %s", plain.Line(text))
	}
	for _, text := range r.Webhooks {
		say("webhook: %s", plain.Line(text))
	}
	if r.Estimate > 0 {
		say("expected time: %s, judged by the last upgrade from this work directory", r.Estimate)
	} else {
		say("expected time: unknown, because no upgrade has run from this work directory")
	}
}
