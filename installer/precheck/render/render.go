package render

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A report is a report of prechecks that is written.
type report struct{ precheck.Report }

// summary returns the report in one line.
func (r report) summary() string {
	verdict := map[precheck.Verdict]string{
		precheck.Ready: "ready", precheck.ReadyWithWarn: "ready, with warnings", precheck.NotReady: "NOT ready",
		precheck.NotReached: "NOT ready",
	}[r.Verdict()]
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s: %d passed, %s, %d blocking", plain.Count(len(r.Hosts), "host"),
		plain.Count(len(r.Results), "check"),
		r.passed(), plain.Count(r.Warned, "warning"), r.Blocked)
	if r.Ignored > 0 {
		fmt.Fprintf(&b, ", %d ignored", r.Ignored)
	}
	if n := len(r.Unreached()); n > 0 {
		fmt.Fprintf(&b, ", %s not reached", plain.Count(n, "host"))
	}
	return b.String() + ": " + verdict
}

func (r report) passed() int { return len(r.Results) - r.Blocked - r.Warned - r.Ignored }

// A problem is a failed check with one level and one remedy.
type problem struct {
	precheck.Result // one of them
	Hosts           int
	// Findings are the different findings, those of most hosts first.
	Findings []finding
}

// A finding is the same finding on some hosts.
type finding struct {
	Found     string
	Unknown   bool
	Exception *precheck.Exception
	Hosts     []string // none if about the cluster
}

// problems returns the failures: blocking ones first, then warnings, then excepted ones, each in the order of List.
func (r report) problems() []problem {
	type key struct {
		id, fix string
		level   precheck.Level
	}
	groups := map[key][]precheck.Result{}
	var order []key
	for _, one := range r.Results {
		if one.OK {
			continue
		}
		k := key{one.ID, one.Fix, one.Level}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], one)
	}
	rank := ranks()
	slices.SortStableFunc(order, func(a, b key) int {
		if d := severity(a.level) - severity(b.level); d != 0 {
			return d
		}
		return rank[a.id] - rank[b.id]
	})
	list := make([]problem, len(order))
	for i, k := range order {
		list[i] = problem{Result: groups[k][0], Hosts: len(groups[k]), Findings: findings(groups[k])}
	}
	return list
}

// ranks returns the positions of checks in List.
func ranks() map[string]int {
	rank := map[string]int{}
	for i, id := range precheck.IDs() {
		rank[id] = i
	}
	return rank
}

func severity(l precheck.Level) int {
	return slices.Index([]precheck.Level{precheck.Block, precheck.Warn, precheck.Off}, l)
}

// word returns the displayed name.
func word(l precheck.Level) string {
	switch l {
	case precheck.Block:
		return "blocks"
	case precheck.Off:
		return "ignored"
	default:
		return "warning"
	}
}

func findings(results []precheck.Result) []finding {
	type key struct {
		found     string
		unknown   bool
		exception precheck.Exception
	}
	at := map[key]int{}
	var list []finding
	for _, one := range results {
		k := key{found: one.Found, unknown: one.Unknown}
		if one.Exception != nil {
			k.exception = *one.Exception
		}
		i, ok := at[k]
		if !ok {
			i = len(list)
			at[k] = i
			list = append(list, finding{Found: clean(one.Found), Unknown: one.Unknown, Exception: one.Exception})
		}
		if one.Host != "" {
			list[i].Hosts = append(list[i].Hosts, one.Host)
		}
	}
	slices.SortStableFunc(list, func(a, b finding) int { return len(b.Hosts) - len(a.Hosts) })
	return list
}

// remark returns additional remarks: an unknown state, and the reason for another level.
func (f finding) remark() string {
	var parts []string
	if f.Unknown {
		parts = append(parts, "could not be looked at")
	}
	if f.Exception != nil {
		parts = append(parts, f.Exception.String())
	}
	return plain.Line(strings.Join(parts, "; "))
}

// where names a finding's hosts.
func (f finding) where() string {
	if len(f.Hosts) == 0 {
		return "the cluster"
	}
	return scalar.Ranges(f.Hosts)
}

// sentence turns a check's text, which begins in lower case without a full stop, into a sentence.
func sentence(s string) string {
	s = plain.Line(s)
	if s == "" {
		return ""
	}
	first, size := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(first)) + s[size:]
	if strings.ContainsAny(s[len(s)-1:], ".?!") {
		return s
	}
	return s + "."
}

// clean makes a line of bounded length from a host's text.
func clean(s string) string {
	const most = 1000 // runes
	return plain.Clip(plain.Line(s), most)
}

// Formats lists the formats of Write.
func Formats() []string { return []string{"table", "json", "junit", "html", "markdown"} }

// ends matches the first or last lines of a report in any of the Formats.
var ends = regexp.MustCompile(`\A## Precheck\n` + "|<title>Precheck|<testsuite [^>]*package=\"precheck\"|" +
	`\A\{\s*"version": 1,[^{]*"verdict": "|(\A|\n)[0-9]+ hosts?, [0-9]+ checks?: [0-9]+ passed, .*\n\z`)

// IsReport reports whether the file at path is a report in one of the Formats. It reads the ends of the file only.
func IsReport(path string) (is bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	const part = 4 << 10
	for _, at := range []int64{0, max(0, info.Size()-part)} {
		data, err := io.ReadAll(io.NewSectionReader(f, at, part))
		if err != nil {
			return false, err
		}
		is = is || ends.Match(data)
	}
	return is, nil
}

// Write writes a report in one of the Formats.
func Write(w io.Writer, r precheck.Report, format string) error {
	one := report{r}
	switch format {
	case "table":
		return one.writeTable(w)
	case "json":
		return one.writeJSON(w)
	case "junit":
		return one.writeJUnit(w)
	case "html":
		return one.writeHTML(w)
	case "markdown":
		return one.writeMarkdown(w)
	default:
		return fmt.Errorf("no format %q; there are %s", format, strings.Join(Formats(), ", "))
	}
}
