package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
	"github.com/kkbundle/kkbundle/testdata/lab/upstream"
)

// A scenario is what a test wants of the lab.
type scenario struct {
	hosts int
	// with is what the upstream has besides.
	with []software.Extra
	// checkout is software.Options.Checkout, for an extra that needs it.
	checkout string
	// releases of the hosts' Debian in turn; nil means those in $HOSTS_OS, by default bookworm.
	releases []software.Release
	// standIns are programs in the lab's software that take the place of genuine ones.
	standIns []string
	// given are files that cannot be built here: URLs without a scheme. The test is skipped without them.
	given []string
	// noCluster means that no cluster is installed: the result proves none.
	noCluster bool
	// groups of the inventory; nil makes the first host everything but a worker, and the others workers.
	groups hosts.Groups
	// edit, if set, changes the upstream's manifest.yaml, cluster.yaml or any other file beside them before anything
	// is built.
	edit func(t *testing.T, dir string)
}

// A thread is the lab that the subtests of a scenario share: the upstream on one side, hosts on the other, and the
// bundle between them.
type thread struct {
	kkbundle  string // the program under test
	upstream  *upstream.Server
	lab       *hosts.Lab
	dir       string // manifest and bundle
	bin       string // the commands that the lab has built
	inventory string
	env       []string
	nodes     int      // of the cluster
	admin     int      // the number of the host that kubectl runs on; 0 is the first
	systems   []string // of the hosts, as debian/12
	machines  []string // their architectures
	kind      results.Lab
	pristine  string // the hosts' traces before anything was done
	moves     []results.Move
}

// needsGiven skips the test unless somebody has given a file that cannot be built.
func needsGiven(t *testing.T, url string) {
	t.Helper()
	file, there, err := software.Given(url)
	if err != nil {
		t.Fatal(err)
	}
	if !there {
		t.Skipf("%s cannot be built here, and has to be given: see the lab's README", file)
	}
}

func start(t *testing.T, want scenario) *thread {
	t.Helper()
	if testing.Short() {
		t.Skip("a cluster takes minutes and the lab's software; see make e2e")
	}
	if err := hosts.Check(); err != nil {
		t.Fatalf("this machine cannot run the lab: %v", err)
	}
	th, made := connect(t, want)
	state := filepath.Join(t.TempDir(), "lab")
	releases, err := want.hostReleases()
	if err != nil {
		t.Fatal(err)
	}
	lab, err := hosts.Up(t.Context(), hosts.Options{
		State: state, RootFS: made.RootFS, Roots: made.RootsOf(releases),
		Hosts: want.hosts, Groups: want.groups, Log: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	th.lab, th.inventory = lab, lab.InventoryFile()
	downAtEnd(t, lab.Down)
	th.noteSystems(t)
	return th
}

// downTime is what a busy machine needs to stop a test's hosts.
const downTime = 90 * time.Second

// downAtEnd stops the hosts of a test at its end, and a little before its time limit: go ends it there without its
// cleanup, and the hosts would go on running beside all later tests.
func downAtEnd(t *testing.T, down func(context.Context) error) {
	t.Helper()
	once := sync.OnceValue(func() error { return down(context.WithoutCancel(t.Context())) })
	if limit, limited := t.Deadline(); limited {
		overtime := time.AfterFunc(time.Until(limit)-downTime, func() {
			fmt.Fprintf(os.Stderr, "%s is at its time limit: its hosts are stopped\n", t.Name())
			_ = once() // Cleanup reports it
		})
		t.Cleanup(func() { overtime.Stop() })
	}
	t.Cleanup(func() {
		if err := once(); err != nil {
			t.Errorf("the lab left something behind: %v", err)
		}
	})
}

// noteSystems learns the distributions of the hosts. A test without them leaves no result.
func (th *thread) noteSystems(t *testing.T) {
	t.Helper()
	for _, h := range th.lab.Hosts {
		th.systems = append(th.systems, results.HostID(th.on(t, h.Number, "cat /etc/os-release")))
		th.machines = append(th.machines, results.ArchOf(th.on(t, h.Number, "uname -m")))
	}
}

// hostReleases returns the releases of the hosts: those of the scenario, or of $HOSTS_OS.
func (want scenario) hostReleases() ([]software.Release, error) {
	if want.releases != nil {
		return want.releases, nil
	}
	return software.ParseReleases(os.Getenv("HOSTS_OS"))
}

// connect starts the upstream. The thread has no hosts yet.
func connect(t *testing.T, want scenario) (*thread, *software.Software) {
	t.Helper()
	for _, url := range want.given {
		needsGiven(t, url)
	}
	program, err := filepath.Abs("../../../bin/kkbundle")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run make build", err)
	}
	releases, err := want.hostReleases()
	if err != nil {
		t.Fatal(err)
	}
	made, err := software.Build(t.Context(), software.Options{
		With: want.with, Checkout: want.checkout, Hosts: releases, Log: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	th := &thread{kkbundle: program, dir: dir, bin: made.Bin, kind: results.Namespaces}
	th.keepResult(t, want)
	th.env = append(os.Environ(), "DOCKER_CONFIG="+filepath.Join(dir, "docker"), "KKBUNDLE_CACHE="+
		filepath.Join(dir, "cache"))
	th.upstream, err = upstream.Start(upstream.Options{Content: made.Upstream, Extra: made.Extra, State: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = th.upstream.Close() })
	if want.edit != nil {
		want.edit(t, dir)
	}
	return th, made
}

// keepResult writes the test's result at its end, if a directory for results is named and the hosts were up.
func (th *thread) keepResult(t *testing.T, want scenario) {
	t.Helper()
	begin, dir := time.Now(), os.Getenv(results.DirEnv)
	t.Cleanup(func() {
		if dir == "" || t.Skipped() || len(th.systems) == 0 {
			return
		}
		r := results.Result{
			Test: t.Name(), Outcome: results.Passed, Lab: th.kind, Hosts: th.systems, Arches: th.machines,
			StandIns: want.standIns, Given: givenSources(t, want.given),
			Date: begin.UTC().Format(time.DateOnly), Seconds: int(time.Since(begin).Seconds()), Moves: th.moves,
		}
		if t.Failed() {
			r.Outcome = results.Failed
		}
		version, err := exec.Command(th.kkbundle, "version").Output() //nolint:noctx // the test's own context has ended
		if err != nil {
			t.Error(err)
		}
		r.Version = field(string(version), 1)
		if !want.noCluster {
			if r.Cluster, err = results.ClusterOf(filepath.Join(th.dir, "cluster.yaml")); err != nil {
				t.Error(err)
			}
		}
		if err := results.Write(dir, r); err != nil {
			t.Error(err)
		}
	})
}

// givenSources names the programs in given files.
func givenSources(t *testing.T, urls []string) (all []string) {
	t.Helper()
	for _, url := range urls {
		sources, err := software.GivenSources(url)
		if err != nil {
			t.Error(err)
		}
		all = append(all, sources...)
	}
	return all
}

// A step is a subtest that goes on from where the one before it ended.
type step struct {
	name string
	run  func(*testing.T)
}

// steps runs them in turn, and none after one that failed.
func steps(t *testing.T, list []step) {
	t.Helper()
	for _, s := range list {
		if !t.Run(s.name, s.run) {
			t.FailNow()
		}
	}
}

// A result is what a run of kkbundle came to.
type result struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

func run(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	begin := time.Now()
	err := cmd.Run()
	r := result{stdout: out.String(), stderr: errs.String(), took: time.Since(begin)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	case err != nil:
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return r
}

// must fails the test unless the run ended with code.
func (r result) must(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\n%s\n%s", r.code, code, r.stdout, r.stderr)
	}
	return r
}

// connected runs kkbundle where the upstream is.
func (th *thread) connected(t *testing.T, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), th.kkbundle, args...)
	cmd.Dir, cmd.Env = th.dir, th.env
	return run(t, cmd)
}

// site is a kkbundle command in the hosts' network, from where the upstream is out of reach.
func (th *thread) site(t *testing.T, command string, flags ...string) *exec.Cmd {
	t.Helper()
	args := slices.Concat(strings.Fields(command), []string{"-i", th.inventory}, flags)
	if !slices.Contains(flags, "--known-hosts") {
		args = append(args, "--known-hosts", th.lab.KnownHostsFile())
	}
	return th.lab.Command(t.Context(), th.kkbundle, append(args, th.bundle())...)
}

// makeBundle builds the scenario's bundle.
func (th *thread) makeBundle(t *testing.T) {
	t.Helper()
	th.connected(t, "build", "-o", th.bundle(), "manifest.yaml").must(t, 0)
}

// rewrite replaces text of a file, which has to be there.
func rewrite(t *testing.T, file string, replacements ...string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			t.Fatalf("%s has no %q", file, replacements[i])
		}
		text = strings.Replace(text, replacements[i], replacements[i+1], 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (th *thread) bundle() string { return filepath.Join(th.dir, "lab-1.0.0.kkb") }

// on runs a shell line on a host and returns what it prints.
func (th *thread) on(t *testing.T, number int, line string) string {
	t.Helper()
	h, err := th.lab.Host(number)
	if err != nil {
		t.Fatal(err)
	}
	out, err := th.lab.SSH(t.Context(), h, line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", h.Name, line, err, out)
	}
	return string(out)
}

// adminHost is the number of the host that kubectl runs on.
func (th *thread) adminHost() int { return max(th.admin, 1) }

// kubectl runs it on the admin's host, with a cache that is not where traces looks.
func (th *thread) kubectl(t *testing.T, args string) string {
	t.Helper()
	return th.on(t, th.adminHost(), "KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf "+args)
}

// requests returns what the upstream was asked since the last call.
func (th *thread) requests(t *testing.T, seen *int) []upstream.Request {
	t.Helper()
	all, err := th.upstream.Requests()
	if err != nil {
		t.Fatal(err)
	}
	fresh := all[*seen:]
	*seen = len(all)
	return fresh
}

// killAt runs an install and ends it at a task: see killCommandAt.
func (th *thread) killAt(t *testing.T, task string) {
	t.Helper()
	killCommandAt(t, th.site(t, "install", "--json"), task)
}

// lines calls a function with each line that is written.
type lineWriter struct {
	rest []byte
	call func([]byte)
}

func lines(call func([]byte)) *lineWriter { return &lineWriter{call: call} }

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		w.call(line)
		w.rest = rest
	}
}

// eventually polls until the condition holds: for what Kubernetes does in its own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 60 {
		if ok() {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	t.Fatalf("%s: not within half a minute", what)
}

func field(s string, n int) string {
	fields := strings.Fields(s)
	if n >= len(fields) {
		return ""
	}
	return fields[n]
}
