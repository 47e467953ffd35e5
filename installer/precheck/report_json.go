package precheck

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A jsonReport is version 1 of a report as JSON. Keys may be added; existing ones keep their meaning. Values common to all
// results of a check are in checks; a result repeats them only if different.
type jsonReport struct {
	Version int        `json:"version" doc:"1"`
	Time    *time.Time `json:"time,omitempty" doc:"When the report was made."`
	Cluster string     `json:"cluster,omitempty" doc:"Name of the cluster that was checked for."`
	Bundle  string     `json:"bundle,omitempty" doc:"Name and version of the bundle that was checked for."`
	Verdict Verdict    `json:"verdict" enum:"ready,warnings,unreachable,blocked" doc:"unreachable: hosts could not be asked, and nothing else blocks."`
	Passed  int        `json:"passed" doc:"How many results are good."`
	Warned  int        `json:"warned" doc:"How many results warn."`
	Blocked int        `json:"blocked" doc:"How many results block, those of hosts that were not reached among them."`
	Ignored int        `json:"ignored" doc:"How many failures an exception has turned off."`
	// Unreachable names them.
	Unreachable []string        `json:"unreachable" doc:"Hosts that could not be asked."`
	Hosts       []string        `json:"hosts" doc:"All hosts, in the order of the inventory."`
	Notes       []string        `json:"notes" doc:"Parts that were not checked."`
	Checks      []checkDocument `json:"checks" doc:"The checks that there are results of."`
	Results     []Result        `json:"results" doc:"Verdicts by host, \"\" for the cluster; title, why, fix, groups and source only where they differ from the check's."`
}

// A checkDocument is a check as JSON.
type checkDocument struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	Level   Level    `json:"level" enum:"block,warn" doc:"Level of a failure, unless a result has another."`
	Groups  []string `json:"groups"`
	Why     string   `json:"why" doc:"Consequence of a failure."`
	Fix     string   `json:"fix" doc:"What to do."`
	Source  string   `json:"source" doc:"Where the rule or its number comes from."`
	Kubeadm []string `json:"kubeadm,omitempty" doc:"kubeadm's names for it."`
	Varies  string   `json:"varies,omitempty" doc:"Condition of the level; level is the worst."`
}

// ReportSchema returns the JSON Schema of WriteJSON's output.
func ReportSchema() []byte {
	return node.Schema(reflect.TypeFor[jsonReport](), "kkbundle precheck report", 1)
}

// MarshalJSON writes the check's description.
func (c Check) MarshalJSON() ([]byte, error) {
	return json.Marshal(checkDocument{ID: c.ID, Title: c.Title, Level: c.Level, Groups: nonNil(c.Groups), Why: c.Why, Fix: c.Fix, Source: c.Source, Kubeadm: c.Kubeadm, Varies: c.Varies})
}

func nonNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// WriteJSON writes the report as one JSON document, with one result per line.
func (r Report) WriteJSON(w io.Writer) error {
	d := jsonReport{
		Version: 1, Cluster: r.Cluster, Bundle: r.Bundle, Verdict: r.Verdict(),
		Passed: r.passed(), Warned: r.Warned, Blocked: r.Blocked, Ignored: r.Ignored,
		Unreachable: nonNil(r.Unreached()), Hosts: nonNil(r.Hosts), Notes: nonNil(r.Notes), Checks: r.checks(), Results: []Result{},
	}
	if !r.Time.IsZero() {
		at := r.Time.UTC()
		d.Time = &at
	}
	head, err := marshal(d, "  ")
	if err != nil {
		return err
	}
	// The head ends with an empty list of results: the full list may be too long to hold in memory.
	out := bufio.NewWriter(w)
	_, _ = out.Write(bytes.TrimSuffix(head, []byte("]\n}\n"))) // Flush returns the error
	common := map[string]checkDocument{}
	for _, c := range d.Checks {
		common[c.ID] = c
	}
	for i, one := range r.Results {
		line, err := marshal(one.without(common[one.ID]), "")
		if err != nil {
			return err
		}
		if i > 0 {
			_ = out.WriteByte(',')
		}
		_, _ = out.WriteString("\n    ")
		_, _ = out.Write(bytes.TrimSuffix(line, []byte("\n")))
	}
	if len(r.Results) > 0 {
		_, _ = out.WriteString("\n  ")
	}
	_, _ = out.WriteString("]\n}\n")
	return out.Flush()
}

func marshal(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	err := e.Encode(v)
	return b.Bytes(), err
}

// checks returns the checks with results, as described by their first results, in the order of List.
func (r Report) checks() []checkDocument {
	list := []checkDocument{}
	seen := map[string]bool{}
	for _, one := range r.Results {
		if seen[one.ID] {
			continue
		}
		seen[one.ID] = true
		level := one.Level
		if one.Exception != nil {
			level = one.Exception.Was
		}
		list = append(list, checkDocument{
			ID: one.ID, Title: one.Title, Level: level, Groups: nonNil(one.Groups), Why: one.Why, Fix: one.Fix, Source: one.Source,
		})
	}
	rank := ranks()
	slices.SortStableFunc(list, func(a, b checkDocument) int { return rank[a.ID] - rank[b.ID] })
	return list
}

// without returns the result without values common to its check, and without control characters.
func (r Result) without(c checkDocument) Result {
	for _, field := range []struct {
		value  *string
		common string
	}{{&r.Title, c.Title}, {&r.Why, c.Why}, {&r.Fix, c.Fix}, {&r.Source, c.Source}} {
		if *field.value == field.common {
			*field.value = ""
		}
	}
	if slices.Equal(r.Groups, c.Groups) {
		r.Groups = nil
	}
	r.Found, r.Fix = clean(r.Found), plain.Line(r.Fix)
	return r
}
