//go:build linux

package installer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestRunDoesContinuesAndRests(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	var done sync.Map
	broken := true
	fine := func(*task.Host) error { return nil }
	phases := []task.Phase{
		{Name: "one", Tasks: []task.Task{
			sitetest.FlagTask("a", task.Each, &done, fine),
			sitetest.FlagTask("b", task.First, &done, fine),
		}},
		{Name: "two", Tasks: []task.Task{
			sitetest.FlagTask("c", task.Each, &done, func(t *task.Host) error {
				if broken && t.Name == "node1" {
					return errors.New("no space left")
				}
				return nil
			}),
			sitetest.FlagTask("d", task.Each, &done, fine),
		}},
		{Name: "three", Tasks: []task.Task{sitetest.FlagTask("e", task.Here, &done, fine)}},
	}
	err := s.Run(t, nil).Phases(t.Context(), phases)
	var failed *engine.TaskError
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
	if diff := cmp.Diff(s.States(), want); diff != "" {
		t.Errorf("first run (-got +want):\n%s", diff)
	}
	broken = false
	r := s.Run(t, nil)
	if err := r.Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want = []string{
		"a@cp1 done", "a@node1 done", "a@node2 done", "b@cp1 done", "c@cp1 done", "c@node1 changed", "c@node2 done",
		"d@cp1 done", "d@node1 changed", "d@node2 done", "e@ done",
	}
	if diff := cmp.Diff(s.States(), want); diff != "" {
		t.Errorf("second run (-got +want):\n%s", diff)
	}
	if r.Report.Changed != 2 || r.Report.Done != 9 {
		t.Errorf("report %+v", r.Report)
	}
}

func TestRunDry(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Options.DryRun = true
	var done sync.Map
	done.Store("acp1", true)
	broken := errors.New("a dry run does something")
	never := func(*task.Host) error { return broken }
	phases := []task.Phase{{Name: "one", Tasks: []task.Task{
		sitetest.FlagTask("a", task.Each, &done, never),
		{Name: "check", Do: func(context.Context, *task.Host) error { return never(nil) }},
		{Name: "look", InDryRun: true, Where: task.Here, Do: func(context.Context, *task.Host) error { return nil }},
	}}}
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want := []string{"a@cp1 done", "a@node1 would", "check@cp1 skipped", "check@node1 skipped", "look@ done"}
	if diff := cmp.Diff(s.States(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	entries, err := os.ReadDir(s.Options.WorkDir)
	if err != nil || len(entries) > 0 {
		t.Errorf("a dry run leaves %v in the work directory (%v)", entries, err)
	}
}

func TestRunSideBySideAndOneByOne(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2", "node3")
	r := s.Run(t, nil)
	var all sync.WaitGroup
	all.Add(4)
	var now, most atomic.Int32
	var order []string
	phases := []task.Phase{{Name: "one", Tasks: []task.Task{
		{Name: "together", Do: func(context.Context, *task.Host) error {
			all.Done()
			all.Wait() // hangs unless all four are here at once
			return nil
		}},
		{Name: "apart", Where: task.OneByOne, Do: func(_ context.Context, t *task.Host) error {
			most.Store(max(most.Load(), now.Add(1)))
			order = append(order, t.Name)
			now.Add(-1)
			if t.Name == "node2" {
				return errors.New("broken")
			}
			return nil
		}},
	}}}
	err := r.Phases(t.Context(), phases)
	if err == nil || most.Load() != 1 || strings.Join(order, " ") != "cp1 node1 node2" {
		t.Errorf("got %v, %d at once, order %v", err, most.Load(), order)
	}
}

func TestRunCancelled(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Run(t, nil).Phases(ctx, []task.Phase{{Name: "one", Tasks: []task.Task{
		{Name: "a", Where: task.First, Do: func(context.Context, *task.Host) error { cancel(); return nil }},
		{Name: "b", Do: func(context.Context, *task.Host) error { t.Error("it goes on"); return nil }},
	}}})
	var failed *engine.TaskError
	if !errors.Is(err, context.Canceled) || errors.As(err, &failed) {
		t.Errorf("got %v", err)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	s.Options.Limit = []string{"node2"}
	nothing := func(context.Context, *task.Host) error { return nil }
	r := s.Run(t, nil)
	err := r.Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{
		{Name: "each", Do: nothing},
		{Name: "first", Where: task.First, Roles: []manifest.Role{manifest.RoleControlPlane}, Do: nothing},
	}}})
	if diff := cmp.Diff(s.States(), []string{"each@node2 done", "first@cp1 done"}); diff != "" || err != nil {
		t.Errorf("%v (-got +want):\n%s", err, diff)
	}
	if got := names(r.Needed()); got != "cp1 node2" {
		t.Errorf("it connects to %s", got)
	}
}

func names(targets []*task.Host) string {
	var list []string
	for _, t := range targets {
		list = append(list, t.Name)
	}
	return strings.Join(list, " ")
}

func TestSettle(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	active := true
	h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "is-active" && !active {
			return &host.ExitError{Code: 3}
		}
		return nil
	})
	content := "one\n"
	fail := errors.New("it does not start")
	applied := fail
	step := task.Settle(task.Task{Name: "demo"}, func(context.Context, *task.Host) (task.Setting, error) {
		return task.Setting{
			Files: []task.File{{Path: "/etc/demo.conf", Mode: 0o600, Data: []byte(content)}},
			Units: []string{"demo.service"},
			Apply: func(context.Context, *task.Host) error { return applied },
		}, nil
	})
	phases := []task.Phase{{Name: "one", Tasks: []task.Task{step}}}
	at := func(what, state string) {
		t.Helper()
		err := s.Run(t, nil).Phases(t.Context(), phases)
		if got := strings.Join(s.States(), " "); got != "demo@cp1 "+state || (err != nil) != (state == "failed") {
			t.Errorf("%s: %s, %v; want %s", what, got, err, state)
		}
	}
	at("applying fails", "failed")
	if h.Content("/etc/demo.conf") != content {
		t.Error("the file was not written")
	}
	applied = nil
	at("the file is there, but was not applied", "changed")
	restarts := h.Said("systemctl")
	want := []string{"systemctl daemon-reload", "systemctl enable demo.service", "systemctl restart demo.service"}
	if diff := cmp.Diff(restarts, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	at("nothing to do", "done")
	h.Put(t, "/etc/demo.conf", "somebody was here\n")
	at("the file was changed", "changed")
	active = false
	at("the unit died", "changed")
	active = true
	content = "two\n"
	at("it shall be different", "changed")
	if h.Content("/etc/demo.conf") != content {
		t.Error("the new content was not written")
	}
	at("nothing to do again", "done")
}

// systemctl is-active wants only one of its units to run.
func TestSettleNoticesOneStoppedUnit(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	stopped := ""
	h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "is-active" && !slices.ContainsFunc(cmd.Args[3:],
			func(unit string) bool { return unit != stopped }) {
			return &host.ExitError{Code: 3}
		}
		return nil
	})
	step := task.Settle(task.Task{Name: "demo"}, func(context.Context, *task.Host) (task.Setting, error) {
		return task.Setting{
			Files: []task.File{{Path: "/etc/demo.conf", Mode: 0o600, Data: []byte("one\n")}},
			Units: []string{"one.service", "two.service"},
		}, nil
	})
	for _, want := range []struct{ stopped, state string }{
		{"", "changed"},
		{"", "done"},
		{"one.service", "changed"},
		{"two.service", "changed"},
	} {
		stopped = want.stopped
		if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{step}}}); err != nil {
			t.Fatal(err)
		}
		if got := s.States(); !slices.Equal(got, []string{"demo@cp1 " + want.state}) {
			t.Errorf("%q stopped: %q", want.stopped, got)
		}
	}
}

// Only a change of live files leaves the units alone.
func TestSettleLive(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	h.Answer("systemctl", func(context.Context, host.Cmd) error { return nil })
	config, secret := "one\n", "one\n"
	step := task.Settle(task.Task{Name: "demo"}, func(context.Context, *task.Host) (task.Setting, error) {
		return task.Setting{
			Files: []task.File{
				{Path: "/etc/demo.conf", Mode: 0o600, Data: []byte(config)},
				{Path: "/etc/demo.secret", Mode: 0o640, Data: []byte(secret), Live: true},
			},
			Units: []string{"demo.service"},
			Reload: func(ctx context.Context, t *task.Host) error {
				return t.Run(ctx, "systemctl", "reload", "demo.service")
			},
		}, nil
	})
	at := func(what string, step task.Task, restart, reload bool) {
		t.Helper()
		h.Said("")
		if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{step}}}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		ran := h.Said("systemctl")
		if slices.Contains(ran, "systemctl restart demo.service") != restart ||
			slices.Contains(ran, "systemctl reload demo.service") != reload {
			t.Errorf("%s: ran %q", what, ran)
		}
		if restart || reload {
			if h.Content("/etc/demo.conf") != config || h.Content("/etc/demo.secret") != secret {
				t.Errorf("%s: the files are not as they should be", what)
			}
		}
	}
	live, ok := step.LiveOnly()
	if !ok {
		t.Fatal("a setting has live files")
	}
	at("live files of a host without the setting", live, false, false)
	at("the first time", step, true, false)
	secret = "two\n"
	at("another secret", step, false, true)
	at("nothing to do", step, false, false)
	secret = "three\n"
	at("live files alone", live, false, true)
	at("nothing to do again", step, false, false)
	config, secret = "two\n", "four\n"
	if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{live}}}); err == nil ||
		h.Content("/etc/demo.secret") != "three\n" {
		t.Errorf("live files alone, where more differs: %v", err)
	}
	at("both", step, true, false)
	// A run that is killed between the stamp and the live file.
	secret = "five\n"
	at("another secret", step, false, true)
	h.Put(t, "/etc/demo.secret", "four\n")
	at("after a kill", step, false, true)
}

func TestKernelRefuses(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Hosts["cp1"].Answer("sysctl", func(_ context.Context, cmd host.Cmd) error {
		if strings.HasPrefix(cmd.Args[len(cmd.Args)-1], "fs.") ||
			strings.HasPrefix(cmd.Args[len(cmd.Args)-1], "net.ipv4") {
			return &host.ExitError{Code: 255}
		}
		return nil
	})
	err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "init", Tasks: []task.Task{machine.KernelTask(s.Options.Cluster)}}})
	if err == nil || !strings.Contains(err.Error(), "net.ipv4.ip_forward=1") {
		t.Errorf("got %v", err)
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	dir := t.TempDir()
	script := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
		var err error
		if s.Options.Hooks, err = engine.DirHooks(dir); err != nil {
			t.Fatal(err)
		}
	}
	// $0 is below the host's root.
	const log = `echo "$(basename "$0")" >>"${0%/etc/kubekey/*}/ran"` + "\n"
	script("pre_install.sh", log)
	script("kube_worker/pre_install.sh", strings.Replace(log, `$(basename "$0")`, "worker", 1))
	script("pre_install_node1.sh", log)
	script("post_install_node1.sh", log)
	task := []task.Phase{{Name: "pre_hook", Tasks: []task.Task{engine.HookTask("pre_install")}}}
	if err := s.Run(t, nil).Phases(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if got := s.Hosts["node1"].Content("/ran"); got != "pre_install.sh\nworker\npre_install_node1.sh\n" {
		t.Errorf("on node1 ran %q", got)
	}
	if got := s.Hosts["cp1"].Content("/ran"); got != "pre_install.sh\n" {
		t.Errorf("on cp1 ran %q", got)
	}
	info, err := os.Stat(filepath.Join(s.Hosts["node1"].Root, engine.HooksOnHost, "pre_install_node1.sh"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the script has mode %v, %v", info.Mode(), err)
	}
	s.States()
	script("pre_install_node1.sh", log+"# changed\n")
	if err := s.Run(t, nil).Phases(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if got := s.Hosts["node1"].Content(
		"/ran"); got != "pre_install.sh\nworker\npre_install_node1.sh\npre_install_node1.sh\n" {
		t.Errorf("after one was changed, on node1 ran %q", got)
	}
	if diff := cmp.Diff(s.States(), []string{"pre_install@cp1 done", "pre_install@node1 changed"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	script("pre_install_node1.sh", "echo the disk is missing >&2\nexit 7\n")
	err = s.Run(t, nil).Phases(t.Context(), task)
	if err == nil || !strings.Contains(err.Error(), "hook pre_install_node1.sh") ||
		!strings.Contains(err.Error(), "the disk is missing") {
		t.Errorf("got %v", err)
	}
	if err := engine.CheckHooks(s.Run(t, nil).Site); err != nil {
		t.Error(err)
	}
	for name, what := range map[string]string{
		"pre_installer.sh": "no name of a hook", "pre_install_.sh": "no name of a hook", "etc/pre_install.sh": "no group etc",
		"etcd/pre_install_cp1.sh": "no name of a hook", "kube_worker/a/post_install.sh": "no group kube_worker/a",
	} {
		if _, err := engine.ParseHook(name); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", name, err)
		}
	}
	misspelled := t.TempDir()
	for _, name := range []string{"post_instal.sh", "pre-install.sh", "preinstall_node1.sh", "check.sh", "lib.sh", "README.md"} {
		if err := os.WriteFile(filepath.Join(misspelled, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := engine.DirHooks(misspelled)
	if want := []string{"post_instal.sh", "pre-install.sh", "preinstall_node1.sh"}; err != nil || !slices.Equal(found.Names, want) {
		t.Errorf("scripts with typing errors in their names: %q, %v", found.Names, err)
	}
	for text, good := range map[string]bool{
		"#!/bin/sh\r\necho\r\n": false, "\xef\xbb\xbf#!/bin/sh\n": false, "#!/bin/sh\nprintf 'a\r\n'\n": true, "echo\n": true, "": true,
	} {
		if err := engine.CheckScript([]byte(text)); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
	script("pre_install_nod1.sh", "")
	if err := engine.CheckHooks(s.Run(t, nil).Site); err == nil ||
		!strings.Contains(err.Error(), "pre_install_nod1.sh") {
		t.Errorf("a misspelled host: %v", err)
	}
}

// TestBundleHooks runs the scripts of a bundle; those for hosts of other sites are passed over.
func TestBundleHooks(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	b := bundletest.NewBuilder(t)
	for name, text := range map[string]string{
		"hooks/pre_install.sh": "all", "hooks/kube_worker/pre_install.sh": "worker", "hooks/pre_install_elsewhere.sh": "other",
		"hooks/post_install.sh": "late", "hooks/README.md": "none", "hooks/x/pre_install.sh": "no group",
		"pre_install_node1.sh": "no hook",
	} {
		text = "#!/bin/sh\necho " + text + ` >>"${0%/etc/kubekey/*}/ran"` + "\n"
		item, err := bundle.Document{Kind: bundle.KindManifest, Ref: name, Data: []byte(text)}.Put(t.Context(), b.Cache)
		if err != nil {
			t.Fatal(err)
		}
		b.Item(item)
	}
	r, err := bundle.Open(b.Bundle().Path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s.Options.Hooks = engine.BundleHooks(t.Context(), &r.Catalog)
	if err := engine.CheckHooks(s.Run(t, nil).Site); err != nil {
		t.Error(err)
	}
	phase := []task.Phase{{Name: "pre_hook", Tasks: []task.Task{engine.HookTask("pre_install")}}}
	if err := s.Run(t, nil).Phases(t.Context(), phase); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"cp1": "all\n", "node1": "all\nworker\n"} {
		if got := s.Hosts[host].Content("/ran"); got != want {
			t.Errorf("on %s ran %q", host, got)
		}
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	one, two := s.Run(t, nil).Hosts[0], s.Run(t, nil).Hosts[0]
	me := task.ThisOwner(one.Site.Now())
	release, err := engine.Lock(t.Context(), one, me)
	if err != nil {
		t.Fatal(err)
	}
	var locked *task.LockedError
	if _, err := engine.Lock(t.Context(), two, task.Owner{}); !errors.As(err, &locked) ||
		!strings.Contains(err.Error(), "process") {
		t.Errorf("a second lock: %v", err)
	}
	if _, err := engine.Lock(t.Context(), two, me); err == nil || !strings.Contains(err.Error(), "same machine") {
		t.Errorf("one machine with two names: %v", err)
	}
	release()
	if release, err = engine.Lock(t.Context(), two, task.Owner{}); err != nil {
		t.Fatal("after the release:", err)
	}
	release()
}

func TestJournal(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	r := s.Run(t, nil)
	var log strings.Builder
	r.Journal.Writer = &log
	target := r.Hosts[0]
	ctx := task.InTask(t.Context(), "init/demo")
	if _, err := target.Output(ctx, "echo", "token: abcdef.0123456789abcdef", "it's"); err != nil {
		t.Fatal(err)
	}
	if err := target.Write(ctx, task.File{Path: "/etc/secret", Mode: 0o600, Data: []byte("hidden")}); err != nil {
		t.Fatal(err)
	}
	if _, err := target.Read(ctx, "/etc/secret"); err != nil {
		t.Fatal(err)
	}
	if err := target.Run(ctx, "cat", "/missing"); err == nil {
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

// A program that looks for a file at each use needs no restart for a new one, also on a host with the stamp of an
// earlier release, which had such files in it.
func TestSettleLiveNew(t *testing.T) {
	t.Parallel()
	for _, earlier := range []bool{false, true} {
		s := sitetest.NewSite(t, "cp1")
		h := s.Hosts["cp1"]
		h.Answer("systemctl", func(context.Context, host.Cmd) error { return nil })
		config, upstreams := "one\n", []string{"a"}
		step := func(isNew bool) task.Task {
			return task.Settle(task.Task{Name: "demo"}, func(context.Context, *task.Host) (task.Setting, error) {
				files := []task.File{{Path: "/etc/demo.conf", Mode: 0o600, Data: []byte(config)}}
				for _, name := range upstreams {
					files = append(files, task.File{
						Path: "/etc/demo.d/" + name + "/hosts.toml", Mode: 0o600,
						Data: []byte(name), LiveNew: isNew,
					})
				}
				return task.Setting{Files: files, Units: []string{"demo.service"}}, nil
			})
		}
		at := func(what string, restart, otherwise bool) {
			t.Helper()
			h.Said("")
			r := s.Run(t, nil)
			if got, err := step(true).IsOtherwise(t.Context(), r.Hosts[0]); err != nil || got != otherwise {
				t.Errorf("%s: IsOtherwise is %v, %v", what, got, err)
			}
			if err := r.Phases(t.Context(), []task.Phase{{Name: "one", Tasks: []task.Task{step(true)}}}); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if ran := h.Said("systemctl"); slices.Contains(ran, "systemctl restart demo.service") != restart {
				t.Errorf("%s: ran %q", what, ran)
			}
			for _, name := range upstreams {
				if h.Content("/etc/demo.d/"+name+"/hosts.toml") != name {
					t.Errorf("%s: %s is not as it should be", what, name)
				}
			}
		}
		if earlier {
			if err := s.Run(t, nil).Phases(t.Context(),
				[]task.Phase{{Name: "one", Tasks: []task.Task{step(false)}}}); err != nil {
				t.Fatal(err)
			}
			at("after an earlier release", false, false)
		} else {
			at("the first time", true, false)
		}
		s.States()
		upstreams = []string{"a", "b", "c"}
		at("new upstreams", false, false)
		at("nothing to do", false, false)
		upstreams = []string{"a"}
		at("fewer upstreams", false, false)
		h.Put(t, "/etc/demo.conf", "by hand\n")
		at("a file that was edited on the host", true, false)
		config = "two\n"
		at("another configuration", true, true)
	}
}
