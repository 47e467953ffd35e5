// Package report holds and shows the results of a health check of a cluster, and of a run: its tasks and their
// durations. It contacts no host. Hosts' output is always treated as text.
package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A State is the verdict of a Finding.
type State string

// The states of a Finding.
const (
	OK      State = "ok"
	Warning State = "warning" // deserves attention; the cluster works
	Unknown State = "unknown" // the check could not be made; Found has the reason
	Failed  State = "failed"
)

// A Finding is the result of one health check of a cluster.
type Finding struct {
	// ID is the check's name; its meaning never changes.
	ID string `json:"id"`
	// Host is empty for a result about the whole cluster.
	Host  string `json:"host,omitempty"`
	State State  `json:"state"`
	Title string `json:"title"`
	Found string `json:"found,omitempty"`
	// Why is the consequence, Fix the remedy; set unless the finding is OK.
	Why string `json:"why,omitempty"`
	Fix string `json:"fix,omitempty"`
}

// Findings are the results of a health check, in order.
type Findings []Finding

// Healthy reports whether nothing failed.
func (l Findings) Healthy() bool {
	return !slices.ContainsFunc(l, func(f Finding) bool { return f.State == Failed })
}

// Count returns how many findings have a state.
func (l Findings) Count(s State) int {
	n := 0
	for _, f := range l {
		if f.State == s {
			n++
		}
	}
	return n
}

// Summary returns the findings in one line.
func (l Findings) Summary() string {
	text := fmt.Sprintf("%d as they should be, %s, %d failed", l.Count(OK), plain.Count(l.Count(Warning), "warning"),
		l.Count(Failed))
	if n := l.Count(Unknown); n > 0 {
		text += fmt.Sprintf(", %d unknown", n)
	}
	return text
}

// problems returns the findings that are not OK, the worst first.
func (l Findings) problems() Findings {
	list := slices.DeleteFunc(slices.Clone(l), func(f Finding) bool { return f.State == OK })
	rank := []State{Failed, Unknown, Warning}
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Compare(slices.Index(rank, a.State), slices.Index(rank, b.State))
	})
	return list
}

// WriteProblems writes the findings that are not OK for people, each with its place, consequence and remedy.
func (l Findings) WriteProblems(w io.Writer) error {
	var b strings.Builder
	for _, f := range l.problems() {
		fmt.Fprintf(&b, "%-7s  %s", f.State, f.ID)
		if f.Host != "" {
			b.WriteString("  " + plain.Line(f.Host))
		}
		b.WriteString("\n")
		for _, text := range []string{f.Found, f.Why, "-> " + f.Fix} {
			if text != "" && text != "-> " {
				b.WriteString("         " + strings.ReplaceAll(plain.Lines(text), "\n", "\n         ") + "\n")
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// A Bundle names the bundle of a cluster.
type Bundle struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Digest  string `json:"digest"`
}

// A Node is a node with the cluster's view of its state.
type Node struct {
	Name    string   `json:"name"`
	Roles   []string `json:"roles,omitempty"`
	Version string   `json:"version,omitempty"`
	Ready   bool     `json:"ready"`
	// Problem is the reason that it is not ready.
	Problem string `json:"problem,omitempty"`
}

// An EtcdMember is an etcd member with its own view of its state.
type EtcdMember struct {
	Host    string `json:"host"`
	Healthy bool   `json:"healthy"`
	Leader  bool   `json:"leader"`
	Version string `json:"version,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"` // of its database
	Used    int64  `json:"used,omitempty"`  // without free room, which defragmentation gives back
	Quota   int64  `json:"quota,omitempty"`
}

// A Certificate is a line of a Status about a certificate that the cluster depends on.
type Certificate struct {
	Host    string    `json:"host"`
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	Expires time.Time `json:"expires"`
	Days    int       `json:"days"` // days left
}

// A Last describes the last run from this work directory.
type Last struct {
	Time    time.Time `json:"time"`
	Outcome Outcome   `json:"outcome"`
	Changed int       `json:"changed"`
}

// A WayBack is the copies on a node that a rollback of the last upgrade needs.
type WayBack struct {
	Host    string `json:"host"`
	Release string `json:"release"` // that the rollback leads to
	Bytes   int64  `json:"bytes"`
}

// A Status is a summary of a cluster's state.
type Status struct {
	Version int       `json:"version"` // 1
	Time    time.Time `json:"time"`
	Cluster string    `json:"cluster,omitempty"`
	Healthy bool      `json:"healthy"`
	// Installed is the bundle of the last run from this work directory; nil if unknown here.
	Installed    *Bundle       `json:"installed,omitempty"`
	Last         *Last         `json:"last,omitempty"`
	Nodes        []Node        `json:"nodes,omitempty"`
	Etcd         []EtcdMember  `json:"etcd,omitempty"`
	Certificates []Certificate `json:"certificates,omitempty"`
	WaysBack     []WayBack     `json:"waysBack,omitempty"`
	Findings     Findings      `json:"findings"`
}

// WriteJSON writes one document.
func (s Status) WriteJSON(w io.Writer) error { return writeJSON(w, s) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// WriteTable writes the status for people.
func (s Status) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(cells ...string) {
		for i, c := range cells {
			cells[i] = plain.Line(c)
		}
		_, _ = fmt.Fprintln(t, strings.Join(cells, "\t")) // Flush returns the error
	}
	health := "healthy"
	if !s.Healthy {
		health = "NOT healthy"
	}
	row("cluster", strings.TrimPrefix(s.Cluster+": ", ": ")+health+" ("+s.Findings.Summary()+")")
	if s.Installed != nil {
		row("bundle", strings.TrimSpace(s.Installed.Name+" "+s.Installed.Version+" "+s.Installed.Digest))
	}
	if s.Last != nil {
		row("last run", fmt.Sprintf("%s, %s, %d changed", s.Last.Time.UTC().Format(time.RFC3339), s.Last.Outcome,
			s.Last.Changed))
	}
	if text := s.wayBack(); text != "" {
		row("way back", text)
	}
	for _, c := range s.soonest() {
		row("certificates", fmt.Sprintf("%d days left on %s (%s)", c.Days, c.Host, c.File))
	}
	_, _ = fmt.Fprintln(t)
	if len(s.Nodes) > 0 {
		row("NODE", "ROLES", "VERSION", "STATE")
		for _, n := range s.Nodes {
			row(n.Name, orDash(strings.Join(n.Roles, ",")), orDash(n.Version), stateOf(n.Ready, "ready", n.Problem))
		}
		_, _ = fmt.Fprintln(t)
	}
	if len(s.Etcd) > 0 {
		row("ETCD", "VERSION", "SIZE", "STATE")
		for _, m := range s.Etcd {
			state := stateOf(m.Healthy, "healthy", "not healthy")
			if m.Leader {
				state += ", leader"
			}
			size := plain.Size(m.Bytes)
			if m.Quota > 0 {
				size += " of " + plain.Size(m.Quota)
			}
			row(m.Host, orDash(m.Version), size, state)
		}
		_, _ = fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return s.Findings.WriteProblems(w)
}

func stateOf(ok bool, good, bad string) string {
	if ok {
		return good
	}
	return "NOT " + good + ": " + bad
}

// soonest returns the certificate that expires first, if any.
func (s Status) soonest() []Certificate {
	if len(s.Certificates) == 0 {
		return nil
	}
	return []Certificate{slices.MinFunc(s.Certificates,
		func(a, b Certificate) int { return a.Expires.Compare(b.Expires) })}
}

// wayBack returns where a rollback leads, the space that it takes, and how to use it and to remove it; "" if there is
// none.
func (s Status) wayBack() string {
	if len(s.WaysBack) == 0 {
		return ""
	}
	var releases []string
	var bytes int64
	for _, w := range s.WaysBack {
		bytes += w.Bytes
		if !slices.Contains(releases, w.Release) {
			releases = append(releases, w.Release)
		}
	}
	return fmt.Sprintf("to %s, %s on %s; kkbundle upgrade --rollback goes back, --forget-rollback removes the copies",
		strings.Join(releases, ", "), plain.Size(bytes), plain.Count(len(s.WaysBack), "host"))
}

func orDash(s string) string { return cmp.Or(s, "-") }

// A Precheck is the result of a run's precheck.
type Precheck struct {
	Verdict  precheck.Verdict `json:"verdict"`
	Blocked  int              `json:"blocked"`
	Warned   int              `json:"warned"`
	Warnings []string         `json:"warnings,omitempty"`
}
