package report_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/internal/browsertest"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func begin() time.Time { return time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC) }

func after(seconds int) time.Time { return begin().Add(time.Duration(seconds) * time.Second) }

// TestDivide has kubeadm wait for a pull, two pulls side by side, and work before and after the run.
func TestDivide(t *testing.T) {
	t.Parallel()
	got := report.Divide(after(0), after(100),
		[]report.Span{{Start: after(10), End: after(40)}, {Start: after(35), End: after(50)}},
		[]report.Span{
			{Start: after(15), End: after(25)},
			{Start: after(20), End: after(30)},
			{Start: after(60), End: after(70)},
			{Start: after(90), End: after(130)},
			{Start: after(-10), End: after(5)},
		})
	want := report.Times{
		Total: plain.Duration(100 * time.Second), Pulls: plain.Duration(40 * time.Second),
		Kubeadm: plain.Duration(25 * time.Second), Own: plain.Duration(35 * time.Second),
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// hostile is text of a host that would like to be more.
const hostile = `<img src=x onerror="window.hacked=1"></style><script>window.hacked=1</script>"';}body{display:none}`

func example(hosts int) report.Run {
	r := report.Run{
		Version: 1, Cluster: "site" + hostile, Bundle: &report.Bundle{
			Name: "site", Version: "1.4.0",
			Digest: "sha256:" + strings.Repeat("ab", 32),
		},
		Start: begin(), Outcome: report.Stopped, Error: "node2: install containerd: " + hostile + "\nlast line",
		Changed: 12, Done: 30,
		Times: report.Times{
			Total: plain.Duration(100 * time.Second), Pulls: plain.Duration(20 * time.Second),
			Kubeadm: plain.Duration(30 * time.Second), Own: plain.Duration(50 * time.Second),
		},
		Warnings: []string{"node1: " + hostile},
		Precheck: &report.Precheck{Verdict: "warnings", Warned: 2},
		Pulls: []report.Pull{{
			Host: "node1", Image: "registry.k8s.io/pause:3.10" + hostile, End: after(30),
			Duration: plain.Duration(2 * time.Second),
		}},
		Findings: report.Findings{
			{ID: "verify-dns", Host: "node1", State: report.OK, Title: "the cluster's DNS answers on every node"},
			{
				ID: "etcd-health", Host: "node1", State: report.Failed, Title: "every member of etcd is healthy",
				Found: hostile, Why: "one fewer may fail", Fix: "look at its log",
			},
			{
				ID: "certificates", Host: "node1", State: report.Warning, Title: "no certificate ends soon",
				Found: "apiserver.crt ends on 2026-12-01", Why: "it stops working", Fix: "renew",
			},
		},
	}
	for i := range hosts {
		h := fmt.Sprintf("node%d", i+1)
		r.Hosts = append(r.Hosts, h)
		r.Tasks = append(r.Tasks,
			report.Task{
				Phase: "init", Task: "hosts-file", Host: h, State: "done", Start: after(1),
				Duration: plain.Duration(2 * time.Second),
			},
			report.Task{
				Phase: "install", Task: "containerd", Host: h, State: "changed", Start: after(5 + i%10),
				Duration: plain.Duration(30 * time.Second),
			})
	}
	r.Tasks = append(r.Tasks,
		report.Task{
			Phase: "precheck", Task: "precheck", State: "done", Start: after(0),
			Duration: plain.Duration(time.Second),
		},
		report.Task{
			Phase: "install", Task: "kubelet" + hostile, Host: "node2", State: "failed", Start: after(60),
			Duration: plain.Duration(9 * time.Second), Message: hostile,
		},
		report.Task{Phase: "install", Task: "kubelet", Host: "node1", State: "started", Start: after(60)})
	return r
}

// TestPageStyles holds that the page's policy names the hash of each of its styles, and no other.
func TestPageStyles(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	if err := example(5).WriteHTML(&text); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(text.String(), -1) {
		sum := sha256.Sum256([]byte(m[1]))
		want = append(want, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	policy := regexp.MustCompile(`style-src ([^;]*)`).FindStringSubmatch(html.UnescapeString(text.String()))
	if len(want) != 2 || len(policy) != 2 || policy[1] != strings.Join(want, " ") {
		t.Errorf("policy %q, styles %q", policy, want)
	}
}

// TestPageInBrowser holds that the page fits narrow windows and paper, that its own style is applied under its
// policy, and that what hosts have said is text.
func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	b := browsertest.Open(t)
	show := func(r report.Run) {
		var text strings.Builder
		if err := r.WriteHTML(&text); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "report.html")
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		b.Visit("file://" + file)
	}
	show(example(5))
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{360, 1280} {
			b.Look(width, 900, scheme)
			if got := b.Eval("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
				t.Errorf("the page is %s pixels wide in a window of %d", b.Eval("document.documentElement.scrollWidth"),
					width)
			}
			b.Shoot(fmt.Sprintf("run-%d-%s", width, scheme))
		}
	}
	if got := b.Eval(`[window.hacked, document.scripts.length, document.querySelectorAll("img, svg, iframe, base").length, getComputedStyle(document.body).display].join()`); got != ",0,0,block" {
		t.Errorf("what a host has said is more than text: %s", got)
	}
	// A bar's place is the style sheet's, which the policy has to let through.
	if got := b.Eval(`{const r = document.querySelector(".bar.changed").getBoundingClientRect(), l = document.querySelector(".bar.changed").parentElement.getBoundingClientRect();
		Math.round(100 * r.width / l.width)}`); got != "30" {
		t.Errorf("a task of 30 of 100 seconds is %s%% wide", got)
	}
	b.Paper(1032, 740)
	if got := b.Eval(`document.documentElement.scrollWidth <= 1032`); got != "true" {
		t.Errorf("on paper the page is %s pixels wide", b.Eval("document.documentElement.scrollWidth"))
	}
	b.Shoot("run-paper")
	b.Quiet("the page")
	show(example(300))
	// three phases, this machine, 200 hosts
	if got := b.Eval(`document.querySelectorAll(".timeline tr").length`); got != "204" {
		t.Errorf("%s rows of 300 hosts", got)
	}
	b.Quiet("the large page")
}

func TestStatusTable(t *testing.T) {
	t.Parallel()
	s := report.Status{
		Version: 1, Cluster: "site", Nodes: []report.Node{{
			Name: "node1\x1b[2J", Roles: []string{"worker"},
			Version: "v1.34.3", Problem: "kubelet stopped",
		}},
		Etcd: []report.EtcdMember{{Host: "cp1", Healthy: true, Leader: true, Version: "3.6.5", Bytes: 3 << 20}},
		Certificates: []report.Certificate{
			{Host: "cp1", File: "b.crt", Days: 300, Expires: after(300)},
			{Host: "cp1", File: "a.crt", Days: 20, Expires: after(20)},
		},
		Findings: example(1).Findings,
	}
	var out strings.Builder
	if err := s.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"NOT healthy", "20 days left on cp1 (a.crt)", "NOT ready: kubelet stopped",
		"healthy, leader", "3.0 MiB", "-> look at its log",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") ||
		strings.Index(out.String(), "etcd-health") > strings.Index(out.String(), "certificates  node1") {
		t.Errorf("a host steers the terminal, or a warning comes before a failure:\n%s", out.String())
	}
}
