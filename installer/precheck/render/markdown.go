package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// writeMarkdown writes the report in GitHub's Markdown, for tickets. Hosts' output and names are in code spans, where
// they are neither markup nor mentions.
func (r report) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("## Precheck\n\n**" + r.summary() + "**\n")
	for _, part := range [][2]string{{"Cluster", r.Cluster}, {"Bundle", r.Bundle}} {
		if part[1] != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", part[0], codeSpan(part[1]))
		}
	}
	for _, p := range r.problems() {
		p.writeMarkdown(&b)
	}
	for i, note := range r.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "- %s\n", plainMarkdown(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p problem) writeMarkdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s: %s, wanted: %s\n\n", strings.ToUpper(word(p.Level)[:1])+word(p.Level)[1:], codeSpan(p.ID),
		plainMarkdown(p.Title))
	if p.Level != precheck.Off {
		fmt.Fprintf(b, "%s **Fix:** %s\n\n", plainMarkdown(sentence(p.Why)), plainMarkdown(p.Fix))
	}
	shown := p.Findings[:min(mostFindings, len(p.Findings))]
	for _, f := range shown {
		found := codeSpan(f.Found)
		if remark := f.remark(); remark != "" {
			found += " " + codeSpan(remark)
		}
		fmt.Fprintf(b, "- %s: %s\n", codeSpan(f.where()), found)
	}
	if rest := restOf(p.Findings, len(shown)); len(rest) > 0 {
		fmt.Fprintf(b, "- and similarly on %s: %s\n", plain.Count(len(rest), "more host"),
			codeSpan(scalar.Ranges(rest)))
	}
}

// codeSpan returns one line as code (CommonMark 0.31, 6.1: backticks in it need a longer fence). Do not use it inside a
// table, where a bar ends even code.
func codeSpan(s string) string {
	s = plain.Line(s)
	if strings.TrimSpace(s) == "" {
		return ""
	}
	fence := "`"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") {
		s = " " + s + " "
	}
	return fence + s + fence
}

// plainMarkdown returns literal text: every character that could be markup is escaped.
func plainMarkdown(s string) string {
	var b strings.Builder
	for _, r := range plain.Line(s) {
		if strings.ContainsRune("\\`*_{}[]<>#+!|~&@", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
