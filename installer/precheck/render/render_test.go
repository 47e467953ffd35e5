package render_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/render"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

var update = flag.Bool("update", false,
	"write the golden files and docs/reference/prechecks.md anew; review the change")

// A reported is a report that a test makes by hand, so that it does not change with the checks.
type reported struct{ precheck.Report }

// say adds a result of a check on hosts.
func (r *reported) say(c precheck.Check, found string, ok bool, hosts ...string) {
	for _, h := range hosts {
		r.Results = append(r.Results, precheck.Result{
			Host: h, ID: c.ID, Groups: c.Groups, Level: c.Level, OK: ok, Title: c.Title, Found: found, Why: c.Why,
			Fix: c.Fix, Source: c.Source,
		})
	}
}

// series is names with numbers.
func series(prefix string, from, to int) []string {
	var list []string
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprintf("%s%d", prefix, i))
	}
	return list
}

// exampleChecks are checks that there are not, but for the last: what is golden does not change with those that there
// are.
func exampleChecks() (swap, memory, sync, networks, reachable precheck.Check) {
	swap = precheck.Check{
		ID: "no-swap", Level: precheck.Warn, Groups: []string{"kubernetes", "os"}, Title: "swap is off",
		Why: "the kubelet does not start with swap on", Fix: "nothing needs to be done", Source: "kubeadm Swap",
	}
	memory = precheck.Check{
		ID: "enough-memory", Level: precheck.Block, Groups: []string{"host"}, Title: "there is enough memory",
		Why: "processes would be killed", Fix: "give the machine more memory", Source: "kubeadm Mem",
	}
	sync = precheck.Check{
		ID: "clock", Level: precheck.Warn, Groups: []string{"host"}, Title: "the clock is synchronised",
		Why: "certificates are not valid yet", Fix: "configure chrony", Source: "kkbundle",
	}
	networks = precheck.Check{
		ID: "networks-apart", Level: precheck.Block, Groups: []string{"network"}, Title: "networks lie apart",
		Why: "pods would not reach hosts", Fix: "change podCIDR", Source: "kkbundle",
	}
	reachable = precheck.Check{
		ID: "reachable", Level: precheck.Block, Groups: []string{"host"}, Title: "the host can be reached and asked",
		Why: "nothing is known about it", Fix: "make sure that it is up", Source: "kkbundle",
	}
	return swap, memory, sync, networks, reachable
}

// hostileText is what a host may say to be more than text.
const hostileText = "\x1b[2J\x1b]0;owned\a<script>window.hacked=1</script><img src=x onerror=window.hacked=1>\r\n| `x` @root #1 [a](javascript:window.hacked=1) \u202egnp ]]> \xff"

// example has some of everything.
func example() precheck.Report {
	swap, memory, sync, networks, reachable := exampleChecks()
	r := &reported{precheck.Report{
		Version: 1, Time: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC), Cluster: "site", Bundle: "site 1.4.0",
		Hosts: append([]string{"cp1", "evil"}, series("node", 1, 12)...),
		Notes: []string{"no bundle was named: space and architectures were not checked"},
	}}
	r.say(swap, "on: /swap, 2 GiB", false, "cp1")
	r.say(swap, "off", true, series("node", 1, 11)...)
	r.say(memory, "4 GiB", true, "cp1")
	r.say(memory, hostileText, false, "evil")
	r.say(memory, "1 GiB, want 1.7 GiB", false, series("node", 1, 10)...)
	r.say(memory, "1.5 GiB, want 1.7 GiB", false, "node11")
	r.say(sync, "no: chronyd is stopped", false, "node1", "node2", "node3", "node4", "node9")
	r.say(networks, "podCIDR 10.0.0.0/8 holds 10.0.0.3", false, "")
	r.say(reachable, "connect 10.0.0.9:22: connection refused", false, "node12")
	r.Results = append(r.Results, precheck.Result{
		Host: "cp1", ID: "clock", Groups: sync.Groups, Level: precheck.Warn, Unknown: true, Title: sync.Title,
		Why: sync.Why, Fix: sync.Fix, Source: sync.Source,
		Found: "timedatectl: permission denied",
	})
	return r.Under(rules(
		manifest.PrecheckRule{
			Check: "no-swap", Level: "off", Reason: "swap is <needed> here",
			Until: day("2027-01-31"),
		},
		manifest.PrecheckRule{
			Check: "enough-memory", Hosts: []string{"node[1:4]"}, Level: "warn",
			Reason: "memory is on order",
		},
		manifest.PrecheckRule{Check: "clock", Level: "off", Reason: "until the summer", Until: day("2026-08-31")},
		manifest.PrecheckRule{Check: "enough-memory", Hosts: []string{"other"}, Level: "off", Reason: "another site"},
	), time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC))
}

func rules(list ...manifest.PrecheckRule) *manifest.PrecheckRules {
	return &manifest.PrecheckRules{Rules: list}
}

func day(s string) (d scalar.Date) {
	if err := d.UnmarshalText([]byte(s)); err != nil {
		panic(err)
	}
	return d
}

// write returns a report in a format.
func write(t *testing.T, r precheck.Report, format string) string {
	t.Helper()
	var b bytes.Buffer
	if err := render.Write(&b, r, format); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "reports", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); go test -update writes it anew:\n%s", name, diff)
	}
}

func TestReportFormats(t *testing.T) {
	t.Parallel()
	for _, format := range render.Formats() {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			got := write(t, example(), format)
			golden(t, "example."+format, got)
			for _, bad := range []string{"\x1b", "\a", "\r", "\u202e", "\xff"} {
				if strings.Contains(got, bad) {
					t.Errorf("has %q", bad)
				}
			}
		})
	}
	if err := render.Write(io.Discard, precheck.Report{}, "yaml"); err == nil {
		t.Error("a format that is not known: no error")
	}
}

// TestReportClean holds that a report about which there is nothing to say is a line.
func TestReportClean(t *testing.T) {
	t.Parallel()
	swap, memory, _, _, _ := exampleChecks()
	r := &reported{precheck.Report{Version: 1, Hosts: series("node", 1, 3)}}
	r.say(swap, "off", true, r.Hosts...)
	r.say(memory, "4 GiB", true, r.Hosts...)
	if got, want := write(t, r.Report, "table"),
		"3 hosts, 6 checks: 6 passed, 0 warnings, 0 blocking: ready\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReportVerdict(t *testing.T) {
	t.Parallel()
	swap, memory, _, _, reachable := exampleChecks()
	off := func(id, level string) *manifest.PrecheckRules {
		return rules(manifest.PrecheckRule{Check: id, Level: level, Reason: "x"})
	}
	for _, c := range []struct {
		name   string
		failed []precheck.Check
		rules  *manifest.PrecheckRules
		want   precheck.Verdict
		err    any
	}{
		{"nothing", nil, nil, precheck.Ready, nil},
		{"a warning", []precheck.Check{swap}, nil, precheck.ReadyWithWarn, nil},
		{"a block", []precheck.Check{swap, memory}, nil, precheck.NotReady, new(*precheck.BlockedError)},
		{"a host away", []precheck.Check{swap, reachable}, nil, precheck.NotReached, new(*precheck.UnreachableError)},
		{
			"a host away, and a block",
			[]precheck.Check{memory, reachable},
			nil, precheck.NotReady,
			new(*precheck.BlockedError),
		},
		{
			"a block that only warns",
			[]precheck.Check{memory},
			off("enough-memory", "warn"), precheck.ReadyWithWarn,
			nil,
		},
		{
			"a warning that blocks",
			[]precheck.Check{swap},
			off("no-swap", "block"), precheck.NotReady,
			new(*precheck.BlockedError),
		},
		{"a block that is off", []precheck.Check{memory}, off("enough-memory", "off"), precheck.Ready, nil},
		{"a host that may be away", []precheck.Check{reachable}, off("reachable", "warn"), precheck.ReadyWithWarn, nil},
	} {
		r := &reported{precheck.Report{Hosts: []string{"a"}}}
		for _, f := range c.failed {
			r.say(f, "x", false, "a")
		}
		got := r.Under(rules(), time.Time{}).Under(c.rules, time.Time{})
		if got.Verdict() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Verdict(), c.want)
		}
		if err := got.Err(); (err == nil) != (c.err == nil) || err != nil && !errors.As(err, c.err) {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
}

func TestUnder(t *testing.T) {
	t.Parallel()
	swap, memory, _, _, _ := exampleChecks()
	r := &reported{precheck.Report{Hosts: []string{"a", "b"}}}
	r.say(swap, "on", false, "a", "b")
	r.say(memory, "4 GiB", true, "a")
	got := r.Under(rules(
		manifest.PrecheckRule{Check: "no-swap", Level: "block", Reason: "first"},
		manifest.PrecheckRule{Check: "no-swap", Hosts: []string{"b"}, Level: "off", Reason: "later"},
		manifest.PrecheckRule{Check: "enough-memory", Level: "block", Reason: "it is fine"},
	), time.Time{})
	want := []*precheck.Exception{{Was: precheck.Warn, Reason: "first"}, {Was: precheck.Warn, Reason: "later"}, nil}
	for i, one := range got.Results {
		if diff := cmp.Diff(want[i], one.Exception); diff != "" {
			t.Errorf("%s of %s (-want +got):\n%s", one.ID, one.Host, diff)
		}
	}
	if got.Blocked != 1 || got.Ignored != 1 || got.Warned != 0 {
		t.Errorf("%d block, %d are ignored, %d warn", got.Blocked, got.Ignored, got.Warned)
	}
	if r.Results[0].Exception != nil {
		t.Error("the report itself has changed")
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		only, skip string
		want       string
	}{
		{"", "", "clock enough-memory exceptions networks-apart no-swap reachable"},
		{"no-swap", "", "no-swap reachable"},
		{"host", "", "clock enough-memory reachable"},
		{"host,network", "enough-memory", "clock networks-apart reachable"},
		{"", "host,os", "exceptions networks-apart reachable"},
	} {
		s := precheck.Selection{Only: split(c.only), Skip: split(c.skip)}
		r := example().Select(s)
		var ids []string
		for _, one := range r.Results {
			ids = append(ids, one.ID)
		}
		slices.Sort(ids)
		if got := strings.Join(slices.Compact(ids), " "); got != c.want {
			t.Errorf("only %q, skip %q: %s, want %s", c.only, c.skip, got, c.want)
		}
	}
	if err := (precheck.Selection{Only: []string{"swap", "host"}, Skip: []string{"etcd"}}).Check(); err != nil {
		t.Error(err)
	}
	err := precheck.Selection{Skip: []string{"swapp"}}.Check()
	var unknown *precheck.UnknownCheckError
	if !errors.As(err, &unknown) || unknown.Hint() != "did you mean swap?" {
		t.Errorf("got %v", err)
	}
}

func split(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) }

// TestReportJSON holds that nothing is lost: a reader who puts a check's text where a result has none has the report.
func TestReportJSON(t *testing.T) {
	t.Parallel()
	r := example()
	r.Results[0].Fix = "another remedy"
	text := write(t, r, "json")
	var d struct {
		Version int
		Verdict string
		Blocked int
		Checks  []struct {
			ID, Title, Why, Fix, Source string
			Groups                      []string
		}
		Results []precheck.Result
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	for i := range d.Results {
		one := &d.Results[i]
		for _, c := range d.Checks {
			if c.ID != one.ID {
				continue
			}
			for _, f := range []struct {
				value  *string
				common string
			}{{&one.Title, c.Title}, {&one.Why, c.Why}, {&one.Fix, c.Fix}, {&one.Source, c.Source}} {
				if *f.value == "" {
					*f.value = f.common
				}
			}
			if one.Groups == nil {
				one.Groups = c.Groups
			}
		}
	}
	for i := range r.Results {
		if r.Results[i].Host == "evil" {
			r.Results[i].Found = d.Results[i].Found // which is golden
		}
	}
	if diff := cmp.Diff(r.Results, d.Results); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if d.Version != 1 || d.Verdict != "blocked" || d.Blocked != r.Blocked {
		t.Errorf("got %+v", d)
	}
	empty := write(t, precheck.Report{}, "json")
	if !json.Valid([]byte(empty)) {
		t.Errorf("without results it is no JSON:\n%s", empty)
	}
}

// TestReportJUnit holds that the counts of each suite are those of its cases and, where xmllint is installed, that the
// document fits testdata/junit.xsd, which allows no more than Ant's schema and that of Jenkins' xUnit plugin do.
func TestReportJUnit(t *testing.T) {
	t.Parallel()
	text := write(t, example(), "junit")
	var d struct {
		Suites []struct {
			Name     string `xml:"name,attr"`
			Tests    int    `xml:"tests,attr"`
			Failures int    `xml:"failures,attr"`
			Errors   int    `xml:"errors,attr"`
			Skipped  int    `xml:"skipped,attr"`
			Cases    []struct {
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Suites) != 15 {
		t.Errorf("%d suites, want one for each of 14 hosts and one for the cluster", len(d.Suites))
	}
	for _, s := range d.Suites {
		failures, errs, skipped := 0, 0, 0
		for _, c := range s.Cases {
			if c.Failure != nil {
				failures++
			}
			if c.Error != nil {
				errs++
			}
			if c.Skipped != nil {
				skipped++
			}
		}
		if s.Tests != len(s.Cases) || s.Failures != failures || s.Errors != errs || s.Skipped != skipped {
			t.Errorf("suite %s: counts are wrong: %+v", s.Name, s)
		}
	}
	lint, err := exec.LookPath("xmllint")
	if err != nil {
		t.Skip("xmllint is not installed")
	}
	cmd := exec.CommandContext(t.Context(), lint, "--noout", "--nonet", "--schema", "testdata/junit.xsd", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestReportOfMany holds that ten thousand hosts with the same problem are a short table and a page that a browser
// opens.
func TestReportOfMany(t *testing.T) {
	t.Parallel()
	swap, memory, _, _, reachable := exampleChecks()
	r := &reported{precheck.Report{Version: 1, Hosts: series("node", 1, 10_000)}}
	for i, h := range r.Hosts {
		r.say(swap, "on", false, h)
		if i%2 == 0 {
			r.say(memory, fmt.Sprintf("%d bytes", i), false, h)
		} else {
			r.say(memory, "4 GiB", true, h)
		}
	}
	r.say(reachable, "no answer", false, "node9999")
	all := r.Under(rules(), time.Time{})
	table := write(t, all, "table")
	if n := strings.Count(table, "\n"); n > 45 || len(table) > 10_000 {
		t.Errorf("the table has %d lines and %d bytes", n, len(table))
	}
	for _, want := range []string{"node[1:10000]  on\n", "and similarly on 4980 more hosts: "} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%.3000s", want, table)
		}
	}
	page := write(t, all, "html")
	if len(page) > 1<<20 || !strings.Contains(page,
		"The table has the 500 hosts with most to do; 9500 more are in the report as JSON.") {
		t.Errorf("the page has %d bytes, or does not say what it leaves out", len(page))
	}
	if n := strings.Count(page, "<tr data-level="); n != 500 {
		t.Errorf("the page has %d rows", n)
	}
}

// TestReportSchema holds that reports are as their schema says, and that it knows all of them.
func TestReportSchema(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	if err := json.Unmarshal(render.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	for _, r := range []precheck.Report{example(), {}} {
		var v any
		if err := json.Unmarshal([]byte(write(t, r, "json")), &v); err != nil {
			t.Fatal(err)
		}
		for _, problem := range misfits(schema, v, "") {
			t.Error(problem)
		}
	}
	if len(misfits(schema, map[string]any{"verdict": "good", "more": 1.0}, "")) < 5 {
		t.Error("the schema takes what is no report")
	}
}

// misfits knows as much of JSON Schema as ReportSchema uses; properties have to be known.
func misfits(s map[string]any, v any, at string) (list []string) {
	kind := map[string]string{
		"string": "string", "float64": "integer", "bool": "boolean",
		"map[string]interface {}": "object", "[]interface {}": "array",
	}[fmt.Sprintf("%T", v)]
	if want, ok := s["type"]; ok && want != kind {
		return []string{fmt.Sprintf("%s is %s, not %s", at, kind, want)}
	}
	if want, ok := s["const"]; ok && want != v {
		list = append(list, fmt.Sprintf("%s is %v, not %v", at, v, want))
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, v) {
		list = append(list, fmt.Sprintf("%s is %v, none of %v", at, v, enum))
	}
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			list = append(list, misfits(s["items"].(map[string]any), one, at+"[]")...)
		}
	case map[string]any:
		properties := s["properties"].(map[string]any)
		for key, one := range v {
			if p, ok := properties[key].(map[string]any); ok {
				list = append(list, misfits(p, one, at+"."+key)...)
			} else {
				list = append(list, at+"."+key+" is not known")
			}
		}
		for _, key := range s["required"].([]any) {
			if _, ok := v[key.(string)]; !ok {
				list = append(list, fmt.Sprintf("%s.%s is missing", at, key))
			}
		}
	}
	return list
}
