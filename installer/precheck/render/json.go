package render

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A jsonReport is version 1 of a report as JSON. Keys may be added; existing ones keep their meaning. Values common
// to all results of a check are in checks; a result repeats them only if different.
type jsonReport struct {
	Version int              `json:"version" doc:"1"`
	Time    *time.Time       `json:"time,omitempty" doc:"When the report was made."`
	Cluster string           `json:"cluster,omitempty" doc:"Name of the cluster that was checked for."`
	Bundle  string           `json:"bundle,omitempty" doc:"Name and version of the bundle that was checked for."`
	Verdict precheck.Verdict `json:"verdict" enum:"ready,warnings,unreachable,blocked" doc:"unreachable: hosts could not be asked, and nothing else blocks."`
	Passed  int              `json:"passed" doc:"How many results are good."`
	Warned  int              `json:"warned" doc:"How many results warn."`
	Blocked int              `json:"blocked" doc:"How many results block, those of hosts that were not reached among them."`
	Ignored int              `json:"ignored" doc:"How many failures an exception has turned off."`
	// Unreachable names them.
	Unreachable []string                 `json:"unreachable" doc:"Hosts that could not be asked."`
	Hosts       []string                 `json:"hosts" doc:"All hosts, in the order of the inventory."`
	Notes       []string                 `json:"notes" doc:"Parts that were not checked."`
	Checks      []precheck.CheckDocument `json:"checks" doc:"The checks that there are results of."`
	Results     []precheck.Result        `json:"results" doc:"Verdicts by host, \"\" for the cluster; title, why, fix, groups and source only where they differ from the check's."`
}

// Schema returns the JSON Schema of a report as JSON.
func Schema() []byte {
	return node.Schema(reflect.TypeFor[jsonReport](), "kkbundle precheck report", 1)
}

// writeJSON writes the report as one JSON document, with one result per line.
func (r report) writeJSON(w io.Writer) error {
	d := jsonReport{
		Version: 1, Cluster: r.Cluster, Bundle: r.Bundle, Verdict: r.Verdict(),
		Passed: r.passed(), Warned: r.Warned, Blocked: r.Blocked, Ignored: r.Ignored,
		Unreachable: append([]string{}, r.Unreached()...), Hosts: append([]string{}, r.Hosts...),
		Notes: append([]string{}, r.Notes...), Checks: r.checks(), Results: []precheck.Result{},
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
	common := map[string]precheck.CheckDocument{}
	for _, c := range d.Checks {
		common[c.ID] = c
	}
	for i, one := range r.Results {
		line, err := marshal(without(one, common[one.ID]), "")
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
func (r report) checks() []precheck.CheckDocument {
	list := []precheck.CheckDocument{}
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
		list = append(list, precheck.CheckDocument{
			ID: one.ID, Title: one.Title, Level: level, Groups: append([]string{}, one.Groups...),
			Why: one.Why, Fix: one.Fix, Source: one.Source,
		})
	}
	rank := ranks()
	slices.SortStableFunc(list, func(a, b precheck.CheckDocument) int { return rank[a.ID] - rank[b.ID] })
	return list
}

// without returns the result without values common to its check, and without control characters.
func without(r precheck.Result, c precheck.CheckDocument) precheck.Result {
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
