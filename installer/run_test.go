//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/manifest"
)

// flag is a task that is done on a host once it was done.
func flagTask(name string, where Where, done *sync.Map, do func(t *Target) error) Task {
	return Task{
		Name: name, Where: where,
		Done: func(_ context.Context, t *Target) (bool, error) {
			_, ok := done.Load(name + t.Name)
			return ok, nil
		},
		Do: func(_ context.Context, t *Target) error {
			if err := do(t); err != nil {
				return err
			}
			done.Store(name+t.Name, true)
			return nil
		},
	}
}

func TestRunDoesContinuesAndRests(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1", "node2")
	var done sync.Map
	broken := true
	fine := func(*Target) error { return nil }
	phases := []Phase{
		{Name: "one", Tasks: []Task{flagTask("a", Each, &done, fine), flagTask("b", First, &done, fine)}},
		{Name: "two", Tasks: []Task{
			flagTask("c", Each, &done, func(t *Target) error {
				if broken && t.Name == "node1" {
					return errors.New("no space left")
				}
				return nil
			}),
			flagTask("d", Each, &done, fine),
		}},
		{Name: "three", Tasks: []Task{flagTask("e", Here, &done, fine)}},
	}
	err := s.run(t, nil).phases(t.Context(), phases)
	var failed *TaskError
	if !errors.As(err, &failed) || failed.Host != "node1" || failed.Task != "c" || failed.Phase != "two" {
		t.Fatalf("got %v, want node1's failure", err)
	}
	if err.Error() != "node1: two c: no space left" {
		t.Errorf("message %q", err)
	}
	want := []string{
		"a@cp1 changed", "a@node1 changed", "a@node2 changed", "b@cp1 changed",
		"c@cp1 changed", "c@node1 failed", "c@node2 changed",
		"d@cp1 changed", "d@node2 changed", "e@ changed",
	}
	if diff := cmp.Diff(s.states(), want); diff != "" {
		t.Errorf("first run (-got +want):\n%s", diff)
	}
	broken = false
	r := s.run(t, nil)
	if err := r.phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want = []string{
		"a@cp1 done", "a@node1 done", "a@node2 done", "b@cp1 done", "c@cp1 done", "c@node1 changed", "c@node2 done",
		"d@cp1 done", "d@node1 changed", "d@node2 done", "e@ done",
	}
	if diff := cmp.Diff(s.states(), want); diff != "" {
		t.Errorf("second run (-got +want):\n%s", diff)
	}
	if r.report.Changed != 2 || r.report.Done != 9 {
		t.Errorf("report %+v", r.report)
	}
}

func TestRunDry(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	s.options.DryRun = true
	var done sync.Map
	done.Store("acp1", true)
	broken := errors.New("a dry run does something")
	never := func(*Target) error { return broken }
	phases := []Phase{{Name: "one", Tasks: []Task{
		flagTask("a", Each, &done, never),
		{Name: "check", Do: func(context.Context, *Target) error { return never(nil) }},
		{Name: "look", Look: true, Where: Here, Do: func(context.Context, *Target) error { return nil }},
	}}}
	if err := s.run(t, nil).phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want := []string{"a@cp1 done", "a@node1 would", "check@cp1 skipped", "check@node1 skipped", "look@ done"}
	if diff := cmp.Diff(s.states(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	entries, err := os.ReadDir(s.options.WorkDir)
	if err != nil || len(entries) > 0 {
		t.Errorf("a dry run leaves %v in the work directory (%v)", entries, err)
	}
}

func TestRunSideBySideAndOneByOne(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1", "node2", "node3")
	r := s.run(t, nil)
	var all sync.WaitGroup
	all.Add(4)
	var now, most atomic.Int32
	var order []string
	phases := []Phase{{Name: "one", Tasks: []Task{
		{Name: "together", Do: func(context.Context, *Target) error {
			all.Done()
			all.Wait() // hangs unless all four are here at once
			return nil
		}},
		{Name: "apart", Where: OneByOne, Do: func(_ context.Context, t *Target) error {
			most.Store(max(most.Load(), now.Add(1)))
			order = append(order, t.Name)
			now.Add(-1)
			if t.Name == "node2" {
				return errors.New("broken")
			}
			return nil
		}},
	}}}
	err := r.phases(t.Context(), phases)
	if err == nil || most.Load() != 1 || strings.Join(order, " ") != "cp1 node1 node2" {
		t.Errorf("got %v, %d at once, order %v", err, most.Load(), order)
	}
}

func TestRunCancelled(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	ctx, cancel := context.WithCancel(t.Context())
	err := s.run(t, nil).phases(ctx, []Phase{{Name: "one", Tasks: []Task{
		{Name: "a", Where: First, Do: func(context.Context, *Target) error { cancel(); return nil }},
		{Name: "b", Do: func(context.Context, *Target) error { t.Error("it goes on"); return nil }},
	}}})
	var failed *TaskError
	if !errors.Is(err, context.Canceled) || errors.As(err, &failed) {
		t.Errorf("got %v", err)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1", "node2")
	s.options.Limit = []string{"node2"}
	nothing := func(context.Context, *Target) error { return nil }
	r := s.run(t, nil)
	err := r.phases(t.Context(), []Phase{{Name: "one", Tasks: []Task{
		{Name: "each", Do: nothing},
		{Name: "first", Where: First, Roles: []manifest.Role{manifest.RoleControlPlane}, Do: nothing},
	}}})
	if diff := cmp.Diff(s.states(), []string{"each@node2 done", "first@cp1 done"}); diff != "" || err != nil {
		t.Errorf("%v (-got +want):\n%s", err, diff)
	}
	if got := names(r.needed()); got != "cp1 node2" {
		t.Errorf("it connects to %s", got)
	}
}

func names(targets []*Target) string {
	var list []string
	for _, t := range targets {
		list = append(list, t.Name)
	}
	return strings.Join(list, " ")
}

func TestSettle(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	h := s.hosts["cp1"]
	active := true
	h.answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "is-active" && !active {
			return &host.ExitError{Code: 3}
		}
		return nil
	})
	content := "one\n"
	fail := errors.New("it does not start")
	applied := fail
	task := settle(Task{Name: "demo"}, func(context.Context, *Target) (setting, error) {
		return setting{
			files: []textFile{{"/etc/demo.conf", 0o600, []byte(content)}},
			units: []string{"demo.service"},
			apply: func(context.Context, *Target) error { return applied },
		}, nil
	})
	phases := []Phase{{Name: "one", Tasks: []Task{task}}}
	at := func(what, state string) {
		t.Helper()
		err := s.run(t, nil).phases(t.Context(), phases)
		if got := strings.Join(s.states(), " "); got != "demo@cp1 "+state || (err != nil) != (state == "failed") {
			t.Errorf("%s: %s, %v; want %s", what, got, err, state)
		}
	}
	at("applying fails", "failed")
	if h.content("/etc/demo.conf") != content {
		t.Error("the file was not written")
	}
	applied = nil
	at("the file is there, but was not applied", "changed")
	restarts := h.said("systemctl")
	want := []string{"systemctl daemon-reload", "systemctl enable demo.service", "systemctl restart demo.service"}
	if diff := cmp.Diff(restarts, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	at("nothing to do", "done")
	h.put(t, "/etc/demo.conf", "somebody was here\n")
	at("the file was changed", "changed")
	active = false
	at("the unit died", "changed")
	active = true
	content = "two\n"
	at("it shall be different", "changed")
	if h.content("/etc/demo.conf") != content {
		t.Error("the new content was not written")
	}
	at("nothing to do again", "done")
}

func TestHostPreparation(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	forwarding := "1\n1\n"
	for _, h := range s.hosts {
		h.put(t, "/etc/fstab", "/dev/sda1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n")
		h.put(t, "/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n")
		h.answer("swapoff", func(context.Context, host.Cmd) error {
			h.put(t, "/proc/swaps", "Filename Type Size Used Priority\n")
			return nil
		})
		h.answer("sysctl", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Args[1] == "--ignore" && !slices.Contains(cmd.Args, "net.ipv4.conf.all.route_localnet") {
				t.Error("what kube-proxy sets is not remembered:", cmd.Args)
			}
			text := map[string]string{
				"--ignore": "fs.inotify.max_user_watches = 999999999\nnet.ipv4.ip_forward = 0\n",
				"--values": forwarding,
			}[cmd.Args[1]]
			if text != "" {
				_, _ = cmd.Stdout.Write([]byte(text))
			}
			return nil
		})
	}
	c := s.options.Cluster
	phases := []Phase{{Name: "init", Tasks: []Task{hostsTask(), swapTask(c), kernelTask(c), routeTask(c)}}}
	if err := s.run(t, nil).phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.states() {
		if !strings.HasSuffix(state, "changed") {
			t.Error(state)
		}
	}
	h := s.hosts["node1"]
	golden(t, "node1-hosts", []byte(h.content("/etc/hosts")))
	golden(t, "node1-fstab", []byte(h.content("/etc/fstab")))
	golden(t, "node1-sysctl.conf", []byte(h.content(sysctlPath)))
	golden(t, "node1-route.service", []byte(h.content("/etc/systemd/system/"+routeUnit)))
	if got := h.content(sysctlWas); got != "fs.inotify.max_user_watches = 999999999\nnet.ipv4.ip_forward = 0\n" {
		t.Errorf("what was before: %q", got)
	}
	h.said("")
	if err := s.run(t, nil).phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.states() {
		if !strings.HasSuffix(state, "done") {
			t.Error("second run:", state)
		}
	}
	forwarding = "0\n1\n" // as after a start that did not read the file
	if err := s.run(t, nil).phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if states := strings.Join(s.states(), " "); !strings.Contains(states, "kernel@cp1 changed") {
		t.Error("a parameter that was undone is not set again:", states)
	}
	h.said("")
	if err := s.run(t, nil).phases(t.Context(), []Phase{{Name: "reset", Tasks: []Task{{Name: "host", Done: notInstalled, Do: restoreHost}}}}); err != nil {
		t.Fatal(err)
	}
	want := []string{"sysctl --write fs.inotify.max_user_watches=999999999", "sysctl --write net.ipv4.ip_forward=0"}
	if diff := cmp.Diff(h.said("sysctl"), append([]string(nil), want...)); diff != "" {
		// The second run's looks are recorded, too; only writes count.
		t.Errorf("reset (-got +want):\n%s", diff)
	}
	if h.content("/etc/hosts") != "127.0.0.1 localhost\n" || !strings.Contains(h.content("/etc/fstab"), "\n/dev/sda2 none swap") || h.content(sysctlPath) != "" {
		t.Errorf("reset leaves hosts %q, fstab %q, sysctl %q", h.content("/etc/hosts"), h.content("/etc/fstab"), h.content(sysctlPath))
	}
}

func TestKernelRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.hosts["cp1"].answer("sysctl", func(_ context.Context, cmd host.Cmd) error {
		if strings.HasPrefix(cmd.Args[len(cmd.Args)-1], "fs.") || strings.HasPrefix(cmd.Args[len(cmd.Args)-1], "net.ipv4") {
			return &host.ExitError{Code: 255}
		}
		return nil
	})
	err := s.run(t, nil).phases(t.Context(), []Phase{{Name: "init", Tasks: []Task{kernelTask(s.options.Cluster)}}})
	if err == nil || !strings.Contains(err.Error(), "net.ipv4.ip_forward=1") {
		t.Errorf("got %v", err)
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	dir := t.TempDir()
	s.options.HooksDir = dir
	script := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// $0 is below the host's root.
	const log = `echo "$(basename "$0")" >>"${0%/etc/kubekey/*}/ran"` + "\n"
	script("pre_install.sh", log)
	script("kube_worker/pre_install.sh", strings.Replace(log, `$(basename "$0")`, "worker", 1))
	script("pre_install_node1.sh", log)
	script("post_install_node1.sh", log)
	task := []Phase{{Name: "pre_hook", Tasks: []Task{hookTask("pre_install")}}}
	if err := s.run(t, nil).phases(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if got := s.hosts["node1"].content("/ran"); got != "pre_install.sh\nworker\npre_install_node1.sh\n" {
		t.Errorf("on node1 ran %q", got)
	}
	if got := s.hosts["cp1"].content("/ran"); got != "pre_install.sh\n" {
		t.Errorf("on cp1 ran %q", got)
	}
	info, err := os.Stat(filepath.Join(s.hosts["node1"].root, hooksOnHost, "pre_install_node1.sh"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the script has mode %v, %v", info.Mode(), err)
	}
	s.states()
	script("pre_install_node1.sh", log+"# changed\n")
	if err := s.run(t, nil).phases(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if got := s.hosts["node1"].content("/ran"); got != "pre_install.sh\nworker\npre_install_node1.sh\npre_install_node1.sh\n" {
		t.Errorf("after one was changed, on node1 ran %q", got)
	}
	if diff := cmp.Diff(s.states(), []string{"pre_install@cp1 done", "pre_install@node1 changed"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	script("pre_install_node1.sh", "echo the disk is missing >&2\nexit 7\n")
	err = s.run(t, nil).phases(t.Context(), task)
	if err == nil || !strings.Contains(err.Error(), "hook pre_install_node1.sh") || !strings.Contains(err.Error(), "the disk is missing") {
		t.Errorf("got %v", err)
	}
	if err := s.run(t, nil).checkHooks(); err != nil {
		t.Error(err)
	}
	script("pre_install_nod1.sh", "")
	if err := s.run(t, nil).checkHooks(); err == nil || !strings.Contains(err.Error(), "pre_install_nod1.sh") {
		t.Errorf("a misspelled host: %v", err)
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	one, two := s.run(t, nil).targets[0], s.run(t, nil).targets[0]
	me := thisOwner(one.run.Now())
	release, err := one.lock(t.Context(), me)
	if err != nil {
		t.Fatal(err)
	}
	var locked *LockedError
	if _, err := two.lock(t.Context(), owner{}); !errors.As(err, &locked) || !strings.Contains(err.Error(), "process") {
		t.Errorf("a second lock: %v", err)
	}
	if _, err := two.lock(t.Context(), me); err == nil || !strings.Contains(err.Error(), "same machine") {
		t.Errorf("one machine with two names: %v", err)
	}
	release()
	if release, err = two.lock(t.Context(), owner{}); err != nil {
		t.Fatal("after the release:", err)
	}
	release()
}

func TestJournal(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	r := s.run(t, nil)
	var log strings.Builder
	r.journal.w = &log
	target := r.targets[0]
	ctx := inTask(t.Context(), "init/demo")
	if _, err := target.output(ctx, "echo", "token: abcdef.0123456789abcdef", "it's"); err != nil {
		t.Fatal(err)
	}
	if err := target.write(ctx, textFile{"/etc/secret", 0o600, []byte("hidden")}); err != nil {
		t.Fatal(err)
	}
	if _, err := target.read(ctx, "/etc/secret"); err != nil {
		t.Fatal(err)
	}
	if err := target.command(ctx, "cat", "/missing"); err == nil {
		t.Error("cat of a missing file succeeds")
	}
	text := log.String()
	for _, want := range []string{
		`cp1 init/demo $ echo 'token: ***' 'it'\''s'`, "    token: *** it's", "write /etc/secret (0600, 6 bytes)",
		"read /etc/secret", "$ cat /missing -> exit 1 in ", "No such file or directory",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	for _, secret := range []string{"hidden", "abcdef.0"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in:\n%s", secret, text)
		}
	}
}

func TestEventsAreJSON(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(Event{Version: 1, Phase: "init", Task: "swap", Host: "cp1", State: Changed, Duration: 5})
	want := `{"version":1,"time":"0001-01-01T00:00:00Z","phase":"init","task":"swap","host":"cp1","state":"changed","duration":5}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v", data, err)
	}
}
