package render

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const (
	// mostFindings is the number of different findings shown of one problem.
	mostFindings = 20
	// widest is the width of names up to which findings are aligned behind them.
	widest = 24
)

// writeTable writes the report for people: blocking problems first, then warnings, then excepted ones, each problem
// once with its findings and hosts, and a last line with the number of checks. Hosts' output is printed without control
// characters.
func (r report) writeTable(w io.Writer) error {
	var b strings.Builder
	for _, p := range r.problems() {
		p.writeText(&b)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", plain.Line(note))
	}
	b.WriteString(r.summary() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (p problem) writeText(b *strings.Builder) {
	label := word(p.Level)
	if p.Level == precheck.Block {
		label = strings.ToUpper(label)
	}
	fmt.Fprintf(b, "%s  %s: %s\n", label, p.ID, plain.Line(p.Title))
	shown := p.Findings[:min(mostFindings, len(p.Findings))]
	width := 0
	for _, f := range shown {
		width = max(width, min(utf8.RuneCountInString(f.where()), widest))
	}
	for _, f := range shown {
		fmt.Fprintf(b, "    %-*s  %s", width, f.where(), f.Found)
		if remark := f.remark(); remark != "" {
			fmt.Fprintf(b, " (%s)", remark)
		}
		b.WriteByte('\n')
	}
	if rest := restOf(p.Findings, len(shown)); len(rest) > 0 {
		fmt.Fprintf(b, "    and similarly on %s: %s\n", plain.Count(len(rest), "more host"), scalar.Ranges(rest))
	}
	if p.Level != precheck.Off {
		fmt.Fprintf(b, "    why: %s\n    fix: %s\n", plain.Line(p.Why), plain.Line(p.Fix))
	}
	b.WriteByte('\n')
}

// restOf returns the hosts of the findings after the first n.
func restOf(list []finding, n int) []string {
	var hosts []string
	for _, f := range list[n:] {
		hosts = append(hosts, f.Hosts...)
	}
	return hosts
}
