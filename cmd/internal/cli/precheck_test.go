package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/installer/host/hosttest"
)

// apartScript runs a command line where /var/lib is a directory of the test: the host has a place for the helper that
// is not this machine's.
const apartScript = `exec unshare --mount sh -c 'mount --bind "$0" /var/lib && exec sh -c "$1"' "$VARLIB" "$2"
`

// A precheckSite is an inventory with two hosts that answer by SSH, and one that does not.
type precheckSite struct {
	dir, inventory, known string
	varlibs               []string
}

func newPrecheckSite(t *testing.T) *precheckSite {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs",
		"/mnt").Run(); err != nil {
		t.Skip("mounts cannot be made here")
	}
	s := &precheckSite{dir: t.TempDir()}
	s.inventory, s.known = filepath.Join(s.dir, "inventory.yaml"), filepath.Join(s.dir, "known_hosts")
	var hosts, known strings.Builder
	for i := range 2 {
		varlib := t.TempDir()
		s.varlibs = append(s.varlibs, varlib)
		script := filepath.Join(s.dir, fmt.Sprintf("shell%d", i))
		s.write(t, script, "#!/bin/sh\nVARLIB="+varlib+"\n"+apartScript)
		server := hosttest.Start(t, hosttest.Options{Shell: []string{"/bin/sh", script}})
		fmt.Fprintf(&hosts, "  host%d: {address: 127.0.0.1, internalIPv4: 10.0.0.%d, ssh: {port: %d, key: %s}}\n", i,
			i+1, server.Port, server.KeyFile)
		keys, err := os.ReadFile(server.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		known.Write(keys)
	}
	s.write(t, s.known, known.String())
	s.write(t, s.inventory, "apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n"+hosts.String()+
		"  gone: {address: 127.0.0.1, internalIPv4: 10.0.0.9, ssh: {port: 1}}\n"+
		"groups: {kube_control_plane: [host0], kube_worker: [host1, gone]}\n")
	return s
}

func (s *precheckSite) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs kkbundle precheck.
func (s *precheckSite) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	args = append([]string{"precheck", "-i", s.inventory, "--known-hosts", s.known}, args...)
	code = cli.Main(t.Context(), args, terminal.Streams{Out: &out, Err: &err})
	return code, out.String(), err.String()
}

// A precheckReport is what the tests look at of the report as JSON.
type precheckReport struct {
	Verdict            string
	Unreachable, Notes []string
	Results            []struct {
		Host, ID, Found string
		OK              bool
	}
}

func parsePrecheck(t *testing.T, text string) precheckReport {
	t.Helper()
	var r precheckReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return r
}

// TestPrecheckHosts holds, with the real command, helper and SSH, that those who live are looked at although one is
// gone, that no trace stays, and that recorded facts give the same report without the hosts.
func TestPrecheckHosts(t *testing.T) {
	t.Parallel()
	s := newPrecheckSite(t)
	record := filepath.Join(s.dir, "facts")
	page, junit := filepath.Join(s.dir, "report.html"), filepath.Join(s.dir, "junit.xml")
	code, stdout, stderr := s.run(t, "--json", "--record", record, "-o", "html="+page+",junit="+junit)
	r := parsePrecheck(t, stdout)
	count := map[string]int{}
	for _, one := range r.Results {
		count[one.Host]++
	}
	// internalIPv4 is on no interface
	if code != 12 || r.Verdict != "blocked" || !slices.Equal(r.Unreachable, []string{"gone"}) {
		t.Errorf("exit code %d, verdict %s, unreachable %v\n%s", code, r.Verdict, r.Unreachable, stderr)
	}
	if count["host0"] < 10 || count["host1"] < 10 || count["gone"] != 1 {
		t.Errorf("results by host: %v", count)
	}
	for _, event := range []string{`"kind":"host","ref":"host0"}`, `"ref":"gone","message":"gone (127.0.0.1:1): `} {
		if !strings.Contains(stderr, event) {
			t.Errorf("no event %s in\n%s", event, stderr)
		}
	}
	for _, varlib := range s.varlibs {
		if entries, err := os.ReadDir(varlib); err != nil || len(entries) > 0 {
			t.Errorf("what was on the host is %v, %v", entries, err)
		}
	}
	for file, begin := range map[string]string{page: "<!doctype html>", junit: "<?xml "} {
		if text, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(text), begin) {
			t.Errorf("%s: %.30q, %v", file, text, err)
		}
	}

	code, stdout, stderr = s.run(t, "--json", "--facts", record)
	if diff := cmp.Diff(r, parsePrecheck(t, stdout)); diff != "" || code != 12 {
		t.Errorf("exit code %d; from the hosts (-) and from their records (+):\n%s%s", code, diff, stderr)
	}

	s.write(t, filepath.Join(s.dir, "rules.yaml"), `apiVersion: kkbundle.io/v1
kind: PrecheckRules
rules:
`+rulesFor(r, "host0", "host1"))
	code, stdout, stderr = s.run(t, "--facts", record, "--rules", filepath.Join(s.dir, "rules.yaml"))
	if code != 13 || !strings.Contains(stderr, "1 of 3 hosts could not be asked: gone") ||
		!strings.Contains(stdout, "(the test's machine)") {
		t.Errorf("with everything else ignored: exit code %d\n%s%s", code, stdout, stderr)
	}
	s.write(t, filepath.Join(s.dir, "rules.yaml"), `apiVersion: kkbundle.io/v1
kind: PrecheckRules
rules:
  - {check: reachable, level: warn, reason: it comes later}
`+rulesFor(r, "host0", "host1"))
	if code, stdout, stderr = s.run(t, "--facts", record, "--rules", filepath.Join(s.dir, "rules.yaml")); code != 0 {
		t.Errorf("with only a warning: exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr = s.run(t, "--facts", record, "--rules", filepath.Join(s.dir, "rules.yaml"), "--fail-on",
		"warn"); code != 22 {
		t.Errorf("with a warning, and --fail-on warn: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// rulesFor turns off what was found on some hosts and about the cluster.
func rulesFor(r precheckReport, hosts ...string) string {
	var b strings.Builder
	for _, one := range r.Results {
		switch {
		case one.OK:
		case one.Host == "":
			fmt.Fprintf(&b, "  - {check: %s, level: \"off\", reason: the test's machine}\n", one.ID)
		case slices.Contains(hosts, one.Host):
			fmt.Fprintf(&b, "  - {check: %s, hosts: [%s], level: \"off\", reason: the test's machine}\n", one.ID,
				one.Host)
		}
	}
	return b.String()
}

// TestPrecheckInterrupted holds that who gives up while a host hangs is not kept waiting, and leaves nothing on the
// others.
func TestPrecheckInterrupted(t *testing.T) {
	t.Parallel()
	s := newPrecheckSite(t)
	hanging := hosttest.Start(t, hosttest.Options{})
	hanging.Silence()
	text, err := os.ReadFile(s.inventory)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, s.inventory, strings.Replace(string(text), "ssh: {port: 1}",
		fmt.Sprintf("ssh: {port: %d, key: %s}", hanging.Port, hanging.KeyFile), 1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Once both others have answered, somebody gives up.
	watch := &watcher{want: []string{`"ref":"host0"`, `"ref":"host1"`}, then: cancel}
	var out bytes.Buffer
	code := cli.Main(ctx, []string{
		"precheck", "--json", "-i", s.inventory, "--known-hosts", s.known, "--record",
		filepath.Join(s.dir, "facts"),
	}, terminal.Streams{Out: &out, Err: watch})
	if code != 130 || out.Len() > 0 {
		t.Errorf("exit code %d\n%s%s", code, watch.text.String(), out.String())
	}
	for _, varlib := range s.varlibs {
		if entries, err := os.ReadDir(varlib); err != nil || len(entries) > 0 {
			t.Errorf("what was on the host is %v, %v", entries, err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "facts")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half of what would be known was recorded: %v", err)
	}
}

// A watcher does something when everything that it wants has been written.
type watcher struct {
	mu   sync.Mutex
	text strings.Builder
	want []string
	then func()
}

// Write implements io.Writer.
func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if !slices.ContainsFunc(w.want, func(s string) bool { return !strings.Contains(w.text.String(), s) }) {
		w.then()
	}
	return len(p), nil
}
