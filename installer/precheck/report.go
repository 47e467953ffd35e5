package precheck

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
)

// WriteJSON writes the report as one JSON document.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable writes the report for people: what blocks first, then warnings, each problem once with the hosts that have
// it, and a line at the end that says how much was looked at. Hosts' own words are printed without control characters.
func (r Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, level := range []Level{Block, Warn} {
		for _, group := range r.problems(level) {
			writeGroup(&b, group)
		}
	}
	b.WriteString(r.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// problems returns the failed results of a level, those with the same check and the same remedy together, in the order
// of Checks.
func (r Report) problems(level Level) [][]Result {
	type key struct{ id, fix string }
	var order []key
	groups := map[key][]Result{}
	for _, one := range r.Results {
		if one.OK || one.Level != level {
			continue
		}
		k := key{one.ID, one.Fix}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], one)
	}
	rank := map[string]int{}
	for i, c := range Checks() {
		rank[c.ID] = i + 1 // a host that was not reached comes first
	}
	slices.SortStableFunc(order, func(a, b key) int { return rank[a.id] - rank[b.id] })
	list := make([][]Result, 0, len(order))
	for _, k := range order {
		list = append(list, groups[k])
	}
	return list
}

func writeGroup(b *strings.Builder, group []Result) {
	one := group[0]
	label := "BLOCKS"
	if one.Level == Warn {
		label = "warning"
	}
	fmt.Fprintf(b, "%s  %s: %s\n", label, one.ID, one.Title)
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, r := range group {
		_, _ = fmt.Fprintf(table, "    %s\t%s\n", printable(r.Host), printable(r.Found)) // a strings.Builder does not fail
	}
	_ = table.Flush()
	fmt.Fprintf(b, "    why: %s\n    fix: %s\n\n", printable(one.Why), printable(one.Fix))
}

func (r Report) summary() string {
	passed := len(r.Results) - r.Blocked - r.Warned
	verdict := "ready"
	switch {
	case r.Blocked > 0:
		verdict = "NOT ready"
	case r.Warned > 0:
		verdict = "ready, with warnings"
	}
	return fmt.Sprintf("%s, %s: %d passed, %d warnings, %d blocking: %s\n",
		count(len(r.Hosts), "host"), count(len(r.Results), "check"), passed, r.Warned, r.Blocked, verdict)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// printable makes one line without control characters of what a host has said, which could otherwise write over the
// rest of the report.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case !unicode.IsPrint(r):
			return '\uFFFD'
		default:
			return r
		}
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
