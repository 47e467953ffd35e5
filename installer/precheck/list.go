package precheck

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// ReachableID is the check that replaces all others on an unreachable host.
const ReachableID = "reachable"

// List returns all possible results of a report: the checks, and findings without a check.
func List() []Check {
	checks := Checks()
	if !slices.ContainsFunc(checks, func(c Check) bool { return c.ID == ReachableID }) {
		one := unreachable(Host{})
		checks = slices.Insert(checks, 0, Check{
			ID: one.ID, Level: one.Level, Groups: one.Groups, Title: one.Title, Why: one.Why, Fix: one.Fix,
			Source: "kkbundle",
		})
	}
	return append(checks, rulesCheck())
}

// IDs returns the names of everything in List.
func IDs() []string {
	var ids []string
	for _, c := range List() {
		ids = append(ids, c.ID)
	}
	return ids
}

// A Selection lists names of checks and of groups. A name of both means the group.
type Selection struct{ Only, Skip []string }

// Check fails for unknown names.
func (s Selection) Check() error {
	known := append(IDs(), Groups()...)
	for _, name := range slices.Concat(s.Only, s.Skip) {
		if !slices.Contains(known, name) {
			return &UnknownCheckError{Name: name, Known: known}
		}
	}
	return nil
}

// Of returns the selected checks.
func (s Selection) Of(checks []Check) []Check {
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool { return !s.has(c.ID, c.Groups) })
}

func (s Selection) has(id string, groups []string) bool {
	named := func(name string) bool { return name == id || slices.Contains(groups, name) }
	chosen := len(s.Only) == 0 || slices.ContainsFunc(s.Only, named)
	return chosen && !slices.ContainsFunc(s.Skip, named)
}

// Spare removes slow parts of a probe unless a selected check needs them.
func (s Selection) Spare(p *node.Probe) {
	if p.Sync != "" && !s.chooses(latencyID) {
		p.Sync = ""
	}
	if len(p.Vacant) > 0 && !s.chooses(vacantID) {
		p.Vacant = nil
	}
}

func (s Selection) chooses(id string) bool {
	return slices.ContainsFunc(s.Of(Checks()), func(c Check) bool { return c.ID == id })
}

// TriesLinks reports whether a check of links between hosts is selected.
func (s Selection) TriesLinks() bool { return len(s.Of(linkChecks(network.All()))) > 0 }

// ReadsPrograms reports whether the check of the bundle's programs is selected.
func (s Selection) ReadsPrograms() bool { return s.chooses(linkageID) }

// An UnknownCheckError means no check and no group has a name.
type UnknownCheckError struct {
	Name string
	// Known are the existing names.
	Known []string
}

// Error lists the unknown names.
func (e *UnknownCheckError) Error() string {
	return fmt.Sprintf("there is no check and no group %q", plain.Line(e.Name))
}

// Hint suggests similar names.
func (e *UnknownCheckError) Hint() string {
	if near := plain.Nearest(e.Name, e.Known); near != "" {
		return "did you mean " + near + "?"
	}
	return "`kkbundle precheck list` shows all; the groups are " + strings.Join(Groups(), ", ")
}

// Select returns the report with the selected results: those of Only, or all, without those of Skip. Unreachable hosts
// stay, because nothing is known about them.
func (r Report) Select(s Selection) Report {
	r.Results = slices.DeleteFunc(slices.Clone(r.Results), func(one Result) bool {
		return one.ID != ReachableID && !s.has(one.ID, one.Groups)
	})
	for _, part := range []struct {
		what  string
		names []string
	}{{"only these checks were made: ", s.Only}, {"these checks were left out: ", s.Skip}} {
		if len(part.names) > 0 {
			r.Notes = append(slices.Clone(r.Notes), part.what+strings.Join(part.names, ", "))
		}
	}
	r.count()
	return r
}

// Means describes the level of a failure, and its conditions.
func (c Check) Means() string {
	if c.Varies == "" {
		return string(c.Level)
	}
	return string(c.Level) + " (" + c.Varies + ")"
}

// A CheckDocument is a check as JSON.
type CheckDocument struct {
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

// MarshalJSON writes the check's description.
func (c Check) MarshalJSON() ([]byte, error) {
	return json.Marshal(CheckDocument{
		ID: c.ID, Title: c.Title, Level: c.Level, Groups: append([]string{}, c.Groups...),
		Why: c.Why, Fix: c.Fix, Source: c.Source, Kubeadm: c.Kubeadm, Varies: c.Varies,
	})
}
