package render

import (
	"bufio"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

//go:embed assets
var assets embed.FS

// Limits of the page, so that a browser still scrolls it: the page mentions omissions, and the JSON is complete.
const (
	pageRows     = 500
	pageFindings = 100 // of a problem
	pageNames    = 1000
)

type page struct {
	StyleHash, ScriptHash string
	Style                 template.CSS
	Script                template.JS
	Cluster, Bundle, Time string
	Verdict               precheck.Verdict
	Class                 string
	Summary               string
	Notes, Groups         []string
	Problems              []pageProblem
	Columns               []pageColumn
	Rows                  []pageRow
	Left                  string
}

type pageProblem struct {
	Anchor, ID, Title, Why, Fix string
	Level                       precheck.Level
	Mark, Word, Groups, Where   string
	Findings                    []pageFinding
	More                        string
}

// A pageFinding's Names are all hosts, if Hosts is a shorter form of them.
type pageFinding struct{ Found, Remark, Hosts, Names string }

type pageColumn struct{ ID, Title, Groups, Level, Anchor string }

type pageRow struct {
	Host, Level string
	Cells       []pageCell
}

// A pageCell without Mark is a check that does not apply to the host; one without Anchor has passed.
type pageCell struct{ Class, Mark, Anchor, Found string }

// writeHTML writes the report as one self-contained page: a list of problems, and a matrix of hosts and checks, with a
// filter if scripts run. Its policy allows only its own style and script: hosts' output is always text.
func (r report) writeHTML(w io.Writer) error {
	t, err := template.ParseFS(assets, "assets/report.html")
	if err != nil {
		return err
	}
	style, err := assets.ReadFile("assets/report.css")
	if err != nil {
		return err
	}
	script, err := assets.ReadFile("assets/report.js")
	if err != nil {
		return err
	}
	p := r.page()
	p.Style, p.StyleHash = template.CSS(style), PolicyHash(style)
	p.Script, p.ScriptHash = template.JS(script), PolicyHash(script)
	out := bufio.NewWriter(w)
	if err := t.Execute(out, p); err != nil {
		return err
	}
	return out.Flush()
}

// PolicyHash names a style or script in a Content-Security-Policy.
func PolicyHash(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func (r report) page() page {
	p := page{
		Cluster: plain.Line(r.Cluster), Bundle: plain.Line(r.Bundle), Verdict: r.Verdict(), Summary: r.summary(),
		Groups: r.groups(),
		Class: map[precheck.Verdict]string{
			precheck.Ready: "p", precheck.ReadyWithWarn: "warn",
			precheck.NotReady: "block", precheck.NotReached: "block",
		}[r.Verdict()],
	}
	if !r.Time.IsZero() {
		p.Time = r.Time.UTC().Format(time.RFC3339)
	}
	for _, note := range r.Notes {
		p.Notes = append(p.Notes, plain.Line(note))
	}
	anchors := map[anchorKey]string{}
	for i, one := range r.problems() {
		anchor := fmt.Sprintf("p%d", i+1)
		anchors[anchorKey{one.ID, one.Fix, one.Level}] = anchor
		p.Problems = append(p.Problems, newPageProblem(anchor, one))
	}
	r.matrix(&p, anchors)
	return p
}

// An anchorKey identifies the problem of a result.
type anchorKey struct {
	id, fix string
	level   precheck.Level
}

// groups returns the groups with results, in the order of Groups.
func (r report) groups() []string {
	seen := map[string]bool{}
	for _, one := range r.Results {
		for _, g := range one.Groups {
			seen[g] = true
		}
	}
	return slices.DeleteFunc(precheck.Groups(), func(g string) bool { return !seen[g] })
}

func newPageProblem(anchor string, one problem) pageProblem {
	p := pageProblem{
		Anchor: anchor, ID: one.ID, Title: plain.Line(one.Title), Level: one.Level, Word: word(one.Level),
		Mark:   mark(one.Level),
		Groups: strings.Join(one.Groups, " "), Where: plain.Count(one.Hosts, "host"),
	}
	if one.Hosts == 1 {
		p.Where = "" // the finding names it
	}
	if one.Level != precheck.Off {
		p.Why, p.Fix = sentence(one.Why), plain.Line(one.Fix) // a command stays as it is
	}
	shown := one.Findings[:min(pageFindings, len(one.Findings))]
	for _, f := range shown {
		view := pageFinding{Found: f.Found, Remark: f.remark(), Hosts: f.where()}
		names := f.Hosts[:min(pageNames, len(f.Hosts))]
		if full := plain.Line(strings.Join(names, ", ")); len(names) > 0 && full != view.Hosts {
			view.Names = full
			view.Hosts += " (" + plain.Count(len(f.Hosts), "host") + ")"
			if more := len(f.Hosts) - len(names); more > 0 {
				view.Names += fmt.Sprintf(" and %d more", more)
			}
		}
		p.Findings = append(p.Findings, view)
	}
	if rest := restOf(one.Findings, len(shown)); len(rest) > 0 {
		p.More = fmt.Sprintf("and similarly on %s: %s", plain.Count(len(rest), "more host"), scalar.Ranges(rest))
	}
	return p
}

func mark(l precheck.Level) string {
	return map[precheck.Level]string{precheck.Block: "✕", precheck.Warn: "!", precheck.Off: "○"}[l]
}

// matrix fills in a row for the cluster and for each host, those with problems first, and a column for each check.
func (r report) matrix(p *page, anchors map[anchorKey]string) {
	column := map[string]int{}
	for _, c := range r.checks() {
		column[c.ID] = len(p.Columns)
		p.Columns = append(p.Columns, pageColumn{
			ID: c.ID, Title: plain.Line(c.Title),
			Groups: strings.Join(c.Groups, " "), Level: "ok",
		})
	}
	by := map[string][]precheck.Result{}
	worst := map[string]int{} // by host
	const passed = 3
	for _, h := range append([]string{""}, r.Hosts...) {
		worst[h] = passed
	}
	for _, one := range r.Results {
		by[one.Host] = append(by[one.Host], one)
		rank := passed
		if !one.OK {
			rank = severity(one.Level)
			c := &p.Columns[column[one.ID]]
			if c.Level == "ok" || severity(precheck.Level(c.Level)) > rank {
				c.Level, c.Anchor = string(one.Level), anchors[anchorKey{one.ID, one.Fix, one.Level}]
			}
		}
		worst[one.Host] = min(worst[one.Host], rank)
	}
	hosts := slices.Clone(r.Hosts)
	slices.SortStableFunc(hosts, func(a, b string) int { return worst[a] - worst[b] })
	if more := len(hosts) - pageRows; more > 0 {
		p.Left = fmt.Sprintf("The table has the %d hosts with most to do; %d more are in the report as JSON.", pageRows,
			more)
		hosts = hosts[:pageRows]
	}
	if len(by[""]) > 0 {
		hosts = append([]string{""}, hosts...)
	}
	for _, h := range hosts {
		row := pageRow{Host: plain.Line(h), Level: []string{
			string(precheck.Block), string(precheck.Warn),
			string(precheck.Off), "ok",
		}[worst[h]], Cells: make([]pageCell, len(p.Columns))}
		if h == "" {
			row.Host = "the cluster"
		}
		for _, one := range by[h] {
			row.Cells[column[one.ID]] = newPageCell(one, anchors)
		}
		p.Rows = append(p.Rows, row)
	}
}

func newPageCell(one precheck.Result, anchors map[anchorKey]string) pageCell {
	if one.OK {
		return pageCell{Mark: "✓"}
	}
	c := pageCell{
		Class: string(one.Level), Mark: mark(one.Level), Found: one.ID + ": " + clean(one.Found),
		Anchor: anchors[anchorKey{one.ID, one.Fix, one.Level}],
	}
	if one.Unknown && one.Level == precheck.Warn {
		c.Class, c.Mark = "unknown", "?"
	}
	return c
}

// PageStyle returns the common style sheet of kkbundle's report pages.
func PageStyle() []byte {
	style, err := assets.ReadFile("assets/report.css")
	if err != nil {
		panic(err) // embedded in the program
	}
	return style
}
