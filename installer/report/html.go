package report

import (
	"bufio"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/precheck/render"
	"github.com/kkbundle/kkbundle/internal/plain"
)

//go:embed assets
var assets embed.FS

// Limits of the page, so that a browser still scrolls it: the page mentions omissions, and the JSON is complete.
const (
	pageHosts = 200
	pageTasks = 30
	pageNotes = 200
)

type page struct {
	Run
	Style, Bars             template.CSS
	Class, Summary, Began   string
	Total, Kubeadm, Pulling string
	Own                     string
	Phases                  []pagePhase
	Rows                    []pageRow
	Slow                    []pageTask
	Did                     []pageTask
	Failed                  []pageTask
	Problems                Findings
	Good                    []pageGood
	Images                  []pageImage
	Left                    string
}

// Hash returns a style's hash for the page's content security policy.
func (page) Hash(style template.CSS) string { return render.PolicyHash([]byte(style)) }

type pagePhase struct {
	Name, Took, Bar string
}

type pageRow struct {
	Host string
	Bars []pageBar
}

// A pageBar is a task in a host's row; Bar names the style rule for its position and width.
type pageBar struct{ Class, Bar, Title string }

type pageTask struct{ Phase, Task, Host, State, Took, Message string }

type pageGood struct {
	ID, Title string
	Times     int
}

type pageImage struct {
	Image, Hosts, Longest string
}

// WriteHTML writes the run as one self-contained page without scripts. Its policy allows only its own style: hosts'
// output is always text.
func (r Run) WriteHTML(w io.Writer) error {
	t, err := template.ParseFS(assets, "assets/run.html")
	if err != nil {
		return err
	}
	own, err := assets.ReadFile("assets/run.css")
	if err != nil {
		return err
	}
	style := append(render.PageStyle(), own...)
	p, bars := r.page()
	p.Style, p.Bars = template.CSS(style), template.CSS(bars) //nolint:gosec // our own files
	out := bufio.NewWriter(w)
	if err := t.Execute(out, p); err != nil {
		return err
	}
	return out.Flush()
}

func (r Run) page() (page, string) {
	p := page{
		Run: r, Began: r.Start.UTC().Format(time.RFC3339), Problems: r.Findings.problems(),
		Total: took(r.Times.Total), Kubeadm: took(r.Times.Kubeadm), Pulling: took(r.Times.Pulls),
		Own:   took(r.Times.Own),
		Class: map[Outcome]string{Succeeded: "p", Interrupted: "warn", Paused: "warn", Stopped: "block"}[r.Outcome],
	}
	p.Summary = fmt.Sprintf("%s: %s, %s, %d changed, %d as they should be, in %s", r.Outcome,
		plain.Count(r.worked(), "host"), plain.Count(len(r.Tasks), "task"),
		r.Changed, r.Done, p.Total)
	if r.Outcome == Succeeded && len(p.Problems) > 0 {
		p.Class = "warn"
	}
	p.Error = plain.Lines(r.Error)
	p.Warnings = shown(together(r.Warnings, r.Hosts))
	if p.Precheck != nil {
		one := *p.Precheck
		one.Warnings = shown(one.Warnings)
		p.Precheck = &one
	}
	for i, f := range p.Problems {
		p.Problems[i].Found = plain.Lines(f.Found)
	}
	bars := r.timeline(&p)
	for _, t := range r.slowest(pageTasks) {
		p.Slow = append(p.Slow, newPageTask(t))
	}
	for _, t := range r.Tasks {
		switch t.State {
		case "changed":
			p.Did = append(p.Did, newPageTask(t))
		case "failed", "stopped", "started":
			p.Failed = append(p.Failed, newPageTask(t))
		}
	}
	p.Good = r.Findings.good()
	p.Images = r.images()
	return p, bars
}

// worked returns the number of hosts with tasks.
func (r Run) worked() int {
	n := 0
	for _, h := range r.Hosts {
		if slices.ContainsFunc(r.Tasks, func(t Task) bool { return t.Host == h }) {
			n++
		}
	}
	return n
}

// together joins identical texts of several hosts.
func together(list, hosts []string) []string {
	var texts []string
	of := map[string][]string{}
	for _, one := range list {
		host, text, found := strings.Cut(one, ": ")
		if !found || !slices.Contains(hosts, host) {
			host, text = "", one
		}
		if _, known := of[text]; !known {
			texts = append(texts, text)
			of[text] = nil
		}
		if host != "" {
			of[text] = append(of[text], host)
		}
	}
	for i, text := range texts {
		if names := of[text]; len(names) > 0 {
			texts[i] = strings.Join(names, ", ") + ": " + text
		}
	}
	return texts
}

func shown(list []string) []string {
	out := make([]string, 0, min(len(list), pageNotes)+1)
	for _, one := range list[:min(len(list), pageNotes)] {
		out = append(out, plain.Lines(one))
	}
	if more := len(list) - pageNotes; more > 0 {
		out = append(out, fmt.Sprintf("and %d more, in the JSON", more))
	}
	return out
}

func newPageTask(t Task) pageTask {
	return pageTask{
		plain.Line(t.Phase), plain.Line(t.Task), plain.Line(cmp.Or(t.Host, "this machine")), t.State,
		took(t.Duration), plain.Lines(t.Message),
	}
}

// good counts the passed findings by title.
func (l Findings) good() []pageGood {
	var list []pageGood
	for _, f := range l {
		if f.State != OK {
			continue
		}
		i := slices.IndexFunc(list, func(g pageGood) bool { return g.ID == f.ID })
		if i < 0 {
			i, list = len(list), append(list, pageGood{ID: f.ID, Title: plain.Line(f.Title)})
		}
		list[i].Times++
	}
	return list
}

// timeline fills in the phases and a row for each host, and returns their style rules: the page's policy allows no
// style in attributes.
func (r Run) timeline(p *page) string {
	var css strings.Builder
	rules := 0
	whole := max(r.end().Sub(r.Start), time.Millisecond)
	place := func(start, end time.Time) string {
		const percent = 100
		rules++
		name := fmt.Sprintf("b%d", rules)
		left := percent * float64(max(start.Sub(r.Start), 0)) / float64(whole)
		width := percent * float64(max(end.Sub(start), 0)) / float64(whole)
		fmt.Fprintf(&css, ".%s{left:%.2f%%;width:%.2f%%}\n", name, left, width)
		return name
	}
	for _, name := range r.phases() {
		start, end := r.spanOf(func(t Task) bool { return t.Phase == name })
		p.Phases = append(p.Phases, pagePhase{plain.Line(name), took(end.Sub(start)), place(start, end)})
	}
	hosts := append([]string{""}, r.Hosts[:min(len(r.Hosts), pageHosts)]...)
	if more := len(r.Hosts) + 1 - len(hosts); more > 0 {
		p.Left = fmt.Sprintf("%s more are in the report as JSON.", plain.Count(more, "host"))
	}
	for _, h := range hosts {
		row := pageRow{Host: plain.Line(cmp.Or(h, "this machine"))}
		for _, t := range r.Tasks {
			if t.Host != h {
				continue
			}
			title := plain.Line(fmt.Sprintf("%s/%s: %s, %s", t.Phase, t.Task, t.State, took(t.Duration)))
			row.Bars = append(row.Bars, pageBar{
				classOf(t.State),
				place(t.Start, t.Start.Add(time.Duration(t.Duration))), title,
			})
		}
		if len(row.Bars) > 0 {
			p.Rows = append(p.Rows, row)
		}
	}
	return css.String()
}

func classOf(state string) string {
	switch state {
	case "changed":
		return "changed"
	case "failed", "stopped", "started":
		return "block"
	}
	return "done"
}

// spanOf returns the first start and the last end of the selected tasks.
func (r Run) spanOf(which func(Task) bool) (start, end time.Time) {
	for _, t := range r.Tasks {
		if !which(t) {
			continue
		}
		if start.IsZero() || t.Start.Before(start) {
			start = t.Start
		}
		if e := t.Start.Add(time.Duration(t.Duration)); e.After(end) {
			end = e
		}
	}
	return start, end
}

func (r Run) images() []pageImage {
	hosts, longest := map[string]int{}, map[string]time.Duration{}
	var order []string
	for _, p := range r.Pulls {
		if hosts[p.Image] == 0 {
			order = append(order, p.Image)
		}
		hosts[p.Image]++
		longest[p.Image] = max(longest[p.Image], time.Duration(p.Duration))
	}
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(longest[b], longest[a]) })
	var list []pageImage
	for _, image := range order[:min(len(order), pageTasks)] {
		list = append(list, pageImage{plain.Line(image), plain.Count(hosts[image], "host"), took(longest[image])})
	}
	return list
}

// A length is a time.Duration or a plain.Duration.
type length interface {
	Round(unit time.Duration) time.Duration
}

func took(d length) string { return d.Round(100 * time.Millisecond).String() }
