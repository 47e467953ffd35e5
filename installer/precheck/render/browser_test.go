package render_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/browsertest"
)

// openPage shows a report in the browser.
func openPage(t *testing.T, b *browsertest.Browser, r precheck.Report) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(write(t, r, "html")), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Visit("file://" + file)
}

// set types into a field of the filter, or chooses from it, and says what is to be seen then.
func set(t *testing.T, b *browsertest.Browser, field, value string) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return b.Eval(fmt.Sprintf(
		`{const f = document.getElementById(%q); f.value = %s; f.dispatchEvent(new Event("input", {bubbles: true})); `,
		field, text) + seen + `}`)
}

// seen counts problems, rows and columns that are to be seen.
const seen = `[".problem", "#matrix tbody tr", "#matrix thead th:not(.corner)"].map(s => [...document.querySelectorAll(s)].filter(e => e.checkVisibility()).length).join(" ")`

// TestReportInBrowser holds that the page shows everything with scripts and without, that its filter works, that it
// fits narrow windows, that keys lead from a field to its problem, and that what hosts have said is text.
func TestReportInBrowser(t *testing.T) {
	t.Parallel()
	b := browsertest.Open(t)
	r := example()
	b.Look(1280, 900, "light")
	openPage(t, b, r)
	const all = "7 15 6"
	if got := b.Eval(seen); got != all {
		t.Errorf("to be seen are %s problems, rows and columns, want %s", got, all)
	}
	for _, c := range [][3]string{
		{"host", "node12", "1 1 6"},
		{"host", "NODE1", "4 4 6"}, // node1, node10, node11 and node12
		{"host", "", all},
		{"text", "chronyd", "1 15 1"},
		{"text", "nothing has this", "0 15 0"},
		{"text", "", all},
		{"group", "network", "1 15 1"},
		{"group", "", all},
	} {
		if got := set(t, b, c[0], c[1]); got != c[2] {
			t.Errorf("%s %q: %s, want %s", c[0], c[1], got, c[2])
		}
	}
	click := func(value string) string {
		return b.Eval(`document.querySelector("input[value=` + value + `]").click(); ` + seen)
	}
	if got := click("warn"); got != "4 10 4" {
		t.Errorf("without warnings: %s", got)
	}
	if got := b.Eval(`document.querySelector("button[type=reset]").click(); new Promise(r => setTimeout(() => r(` +
		seen + `)))`); got != all {
		t.Errorf("after the reset: %s", got)
	}
	focused := b.Eval(`{const a = document.querySelector("#matrix td.warn a"); a.focus(); a.click();
		new Promise(r => setTimeout(() => r([document.activeElement.className, location.hash === "#" + document.activeElement.id].join()), 50))}`)
	if focused != "problem warn,true" {
		t.Errorf("the field leads to %s", focused)
	}
	b.Quiet("the page")

	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{360, 1280} {
			b.Look(width, 900, scheme)
			if got := b.Eval("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
				t.Errorf("the page is %s pixels wide in a window of %d", b.Eval("document.documentElement.scrollWidth"),
					width)
			}
			b.Eval("scrollTo(0, 0)")
			b.Shoot(fmt.Sprintf("report-%d-%s", width, scheme))
			b.Eval(`document.getElementById("matrix-title").scrollIntoView()`)
			b.Shoot(fmt.Sprintf("report-matrix-%d-%s", width, scheme))
		}
	}
	hover := `for (const e of document.querySelectorAll("*")) { e.dispatchEvent(new MouseEvent("mouseover", {bubbles: true})); }`
	if got := b.Eval(hover +
		` [window.hacked, document.scripts.length, document.querySelectorAll("img, svg, iframe, base, a[href^='javascript:']").length].join()`); got != ",1,0" {
		t.Errorf("what a host has said is more than text: %s", got)
	}
	b.Quiet("the page in all its forms")

	b.Scripts(false)
	openPage(t, b, r)
	if got := b.Eval(seen) + " " + b.Eval(`document.getElementById("filter").checkVisibility()`); got != all+" false" {
		t.Errorf("without scripts: %s, want everything and no filter", got)
	}
	b.Shoot("report-no-scripts")
}

// TestLargeReportInBrowser holds that many hosts and a hundred checks are a page that filters while somebody
// types, and that its table fits on paper.
func TestLargeReportInBrowser(t *testing.T) {
	t.Parallel()
	b := browsertest.Open(t)
	openPage(t, b, large(150, 100))
	b.Look(1280, 900, "light")
	if got := b.Eval(seen); got != "20 150 100" {
		t.Errorf("to be seen are %s problems, rows and columns", got)
	}
	if got := set(t, b, "host", "node150"); got != "2 1 100" {
		t.Errorf("one host: %s", got)
	}
	set(t, b, "host", "")
	b.Shoot("report-large")
	b.Eval(`document.getElementById("matrix-title").scrollIntoView()`)
	b.Shoot("report-large-matrix")
	const a4 = 1032 // A4 across, without margins of 12 mm, in CSS pixels
	b.Paper(a4, 740)
	if got := b.Eval(fmt.Sprintf(
		`Math.max(document.documentElement.scrollWidth, document.getElementById("matrix").getBoundingClientRect().right) <= %d`, a4)); got != "true" {
		t.Errorf("on paper the table is %s pixels wide",
			b.Eval(`document.getElementById("matrix").getBoundingClientRect().width`))
	}
	b.Shoot("report-paper")
	b.Eval(`document.getElementById("matrix-title").scrollIntoView()`)
	b.Shoot("report-paper-matrix")
	b.Quiet("the large page")
}

// large is a report of hosts and checks, every fifth of which some hosts fail.
func large(hosts, checks int) precheck.Report {
	r := &reported{precheck.Report{
		Version: 1, Time: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC), Cluster: "large",
		Hosts: series("node", 1, hosts),
	}}
	for i := range checks {
		c := precheck.Check{
			ID: fmt.Sprintf("check-number-%d", i), Level: precheck.Warn, Groups: []string{precheck.Groups()[i%5]},
			Title: "something is so",
			Why:   "something else would not work", Fix: "do something",
		}
		if i%10 == 0 {
			c.Level = precheck.Block
		}
		for j, h := range r.Hosts {
			ok := i%5 != 0 || j%(i+2) != 1
			found := "so it is"
			if !ok {
				found = fmt.Sprintf("it is %d", j%3)
			}
			r.say(c, found, ok, h)
		}
	}
	return r.Under(rules(), time.Time{})
}
