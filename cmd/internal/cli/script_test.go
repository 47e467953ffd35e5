package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/registry/harbor/harbortest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestMain makes the test binary kkbundle where it is called so: scripts run real processes that can be interrupted and
// killed. Journeys have crane, too, another client of registries.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kkbundle": func() {
			ctx, stop := cli.WithSignals(context.Background())
			defer stop()
			os.Exit(cli.Main(ctx, os.Args[1:], terminal.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
		},
		"crane":    craneMain,
		"htpasswd": htpasswdMain,
	})
}

type upstreamKey struct{}

// TestScripts runs testdata/script: one file for each thing that users do, or that goes wrong for them. Each has its
// own upstream, whose addresses are in $REGISTRY, $FILES, $PLAIN, $SECURE, $GIT and $CA, in YAML files too, and the
// manifests of testdata/manifests in its directory.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/script",
		RequireUniqueNames: true,
		Setup:              setup,
		Condition:          condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":        exits,
			"exited":       exited,
			"flip":         flip,
			"truncate":     truncate,
			"requested":    requested,
			"pushed":       pushed,
			"asked":        asked,
			"fault":        fault,
			"pipeline":     pipeline,
			"installer":    installer,
			"forget":       forget,
			"stalled":      stalled,
			"halfway":      halfway,
			"signal":       sendSignal,
			"rendering":    rendering,
			"rendered":     rendered,
			"empty":        emptyDir,
			"withdraw":     withdraw,
			"restore":      restore,
			"shape":        shape,
			"stand-ins":    standIns,
			"missing-each": missingEach,
			"apt-suite":    aptSuite(t),
			"without":      without,
			"sign":         sign,
			"attach":       attach,
			"harbor":       harbor,
			"proxy":        proxy,
			"release":      release,
			"put":          put,
			"tags":         tags,
			"layers":       layers,
			"web":          web,
		},
	})
}

func setup(env *testscript.Env) error {
	u, err := startUpstream(env.WorkDir)
	if err != nil {
		return err
	}
	env.Defer(u.stop)
	env.Values[upstreamKey{}] = u
	signers(env)
	env.Vars = append(env.Vars, u.environment(env.WorkDir)...)
	git := httptest.NewServer(gittest.Backend(filepath.Join(env.WorkDir, "git")))
	env.Defer(git.Close)
	env.Vars = append(env.Vars, "GIT="+git.URL, "GITHOST="+strings.TrimPrefix(git.URL, "http://"))
	env.Vars = append(env.Vars, "XDG_STATE_HOME="+filepath.Join(env.WorkDir, "state"))
	env.Vars = append(env.Vars, "GORACE=atexit_sleep_ms=0") // by default each process waits a second for others' races
	known := map[string]string{}
	for _, v := range env.Vars {
		key, value, _ := strings.Cut(v, "=")
		known[key] = value
	}
	shared, err := filepath.Glob("testdata/manifests/*.yaml")
	if err != nil {
		return err
	}
	for _, path := range shared {
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(env.WorkDir, filepath.Base(path)), data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return filepath.WalkDir(env.WorkDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" && filepath.Base(path) != "config.json" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := os.Expand(string(data), func(key string) string { return known[key] })
		return os.WriteFile(path, []byte(text), 0o600)
	})
}

func condition(name string) (bool, error) {
	if name == "harbor" {
		return harbortest.Available() == nil, nil
	}
	if name == "root" {
		return os.Geteuid() == 0, nil
	}
	if name != "mounts" {
		return false, errors.New("unknown condition " + name)
	}
	return exec.Command("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt").Run() == nil, nil //nolint:noctx // ends at once
}

func of(ts *testscript.TestScript) *upstream { return ts.Value(upstreamKey{}).(*upstream) }

// exits CODE COMMAND... runs a command that has to end with that exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	code := 0
	err := ts.Exec(args[1], args[2:]...)
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		code = failed.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if args[0] != strconv.Itoa(code) {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// stalled waits until a download stopped in the middle and part of it is in the cache.
func stalled(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: stalled")
	}
	ts.Check(os.MkdirAll(ts.Getenv("KKBUNDLE_CACHE"), 0o700))
	untilStalled(ts)
	// so the first is whole
	meanwhile(ts, func() bool { return partBytes(ts.Getenv("KKBUNDLE_CACHE")) >= 2*cachePiece })
}

// halfway waits until a download stopped in the middle.
func halfway(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: halfway")
	}
	untilStalled(ts)
}

// sendSignal sends a signal to the process that halfway saw.
func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM}
	if neg || len(args) != 1 || signals[args[0]] == 0 {
		ts.Fatalf("usage: signal HUP|TERM")
	}
	ts.Check(of(ts).kept.Process.Signal(signals[args[0]]))
}

func untilStalled(ts *testscript.TestScript) {
	u, cmds := of(ts), ts.BackgroundCmds()
	u.kept = cmds[len(cmds)-1]
	meanwhile(ts, func() bool {
		select {
		case <-u.files.stalled:
			return true
		default:
			return false
		}
	})
}

// meanwhile waits for what the process that was started last does, as long as it runs.
func meanwhile(ts *testscript.TestScript, done func() bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		runs := of(ts).kept.Process.Signal(syscall.Signal(0)) == nil
		switch {
		case done():
			return
		case !runs:
			ts.Fatalf("it ended by itself")
		}
	}
}

// rendering waits until a process that was started in the background has a child of its own, which renders a chart.
func rendering(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: rendering")
	}
	cmds, u := ts.BackgroundCmds(), of(ts)
	u.kept = cmds[len(cmds)-1]
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C { // the test's own time limit ends it
		if u.child = childOf(ts, u.kept.Process.Pid); u.child != "" {
			return
		}
	}
}

// rendered wants the child that rendering saw to be gone.
func rendered(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: rendered")
	}
	if _, err := os.Stat(of(ts).child); !errors.Is(err, fs.ErrNotExist) {
		ts.Fatalf("%s is still there: %v", of(ts).child, err)
	}
}

// childOf returns the directory of a process's child in /proc, "" if it has none.
func childOf(ts *testscript.TestScript, parent int) string {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	ts.Check(err)
	for _, file := range files {
		data, _ := os.ReadFile(file) // it may have ended
		_, fields, _ := strings.Cut(string(data), ") ")
		if list := strings.Fields(fields); len(list) > 1 && list[1] == strconv.Itoa(parent) {
			return filepath.Dir(file)
		}
	}
	return ""
}

func partBytes(cache string) int64 {
	var n int64
	parts, _ := filepath.Glob(filepath.Join(cache, "*", "part", "*"))
	for _, p := range parts {
		if info, err := os.Stat(p); err == nil {
			n += info.Size()
		}
	}
	return n
}

// exited CODE wants the exit code of the process that stalled saw, after wait.
func exited(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: exited CODE")
	}
	if code := of(ts).kept.ProcessState.ExitCode(); args[0] != strconv.Itoa(code) {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// flip FILE OFFSET changes a bit of a file, counted from its end if OFFSET is negative. FILE may be a pattern.
func flip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip FILE OFFSET")
	}
	for _, path := range glob(ts, args[0]) {
		data, err := os.ReadFile(path)
		ts.Check(err)
		i, err := strconv.Atoi(args[1])
		ts.Check(err)
		if i < 0 {
			i += len(data)
		}
		if i < 0 || i >= len(data) {
			ts.Fatalf("%s has %d bytes", path, len(data))
		}
		data[i] ^= 1
		ts.Check(os.WriteFile(path, data, 0o600))
	}
}

func glob(ts *testscript.TestScript, pattern string) []string {
	paths, err := filepath.Glob(ts.MkAbs(pattern))
	ts.Check(err)
	if len(paths) == 0 {
		ts.Fatalf("no file is called %s", pattern)
	}
	return paths
}

// truncate FILE BYTES takes that many bytes off a file's end.
func truncate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: truncate FILE BYTES")
	}
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), info.Size()-n))
}

// [!] requested PATTERN reports whether the file server or, as "METHOD /v2/...", the source registry got such a
// request.
func requested(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] requested PATTERN")
	}
	re, err := regexp.Compile(args[0])
	ts.Check(err)
	list := of(ts).files.seen()
	for _, r := range of(ts).source.Requests() {
		list = append(list, r.Method+" "+r.Path)
	}
	found := false
	for _, r := range list {
		found = found || re.MatchString(r)
	}
	if found == neg {
		ts.Fatalf("requests:\n%s", strings.Join(list, "\n"))
	}
}

// [!] pushed REGISTRY reports whether a registry got any content.
func pushed(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] pushed REGISTRY")
	}
	s, ok := of(ts).registry(args[0])
	if !ok {
		ts.Fatalf("no registry is called %s", args[0])
	}
	if n := s.Received(); (n > 0) == neg {
		ts.Fatalf("%s got %d bytes", args[0], n)
	}
}

// [!] asked REGISTRY PATTERN reports whether a registry got such a request, as "METHOD /v2/... STATUS".
func asked(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] asked REGISTRY PATTERN")
	}
	s, ok := of(ts).registry(args[0])
	re, err := regexp.Compile(args[1])
	if !ok || err != nil {
		ts.Fatalf("no registry is called %s, or %v", args[0], err)
	}
	var list []string
	found := false
	for _, r := range s.Requests() {
		list = append(list, fmt.Sprintf("%s %s %d", r.Method, r.Path, r.Status))
		found = found || re.MatchString(list[len(list)-1])
	}
	if found == neg {
		ts.Fatalf("requests:\n%s", strings.Join(list, "\n"))
	}
}

// fault REGISTRY PATTERN BYTES makes an answer to a GET of such a path stop after so many bytes, as the file server
// does below /slow/.
func fault(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: fault REGISTRY PATTERN BYTES")
	}
	s, ok := of(ts).registry(args[0])
	if !ok {
		ts.Fatalf("no registry is called %s", args[0])
	}
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	files := of(ts).files
	s.AddFaults(registrytest.Fault{
		Method: "GET", Path: regexp.MustCompile(args[1]), Times: -1,
		Effect: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				first, stops := files.stops(r)
				if !stops {
					next.ServeHTTP(w, r)
					return
				}
				next.ServeHTTP(&stallingWriter{
					ResponseWriter: w, left: max(n-rangeStart(r), 0),
					stop: func() { files.stall(r, first) },
				}, r)
			})
		},
	})
}

// A stallingWriter sends so many bytes and calls stop then.
type stallingWriter struct {
	http.ResponseWriter
	left int
	stop func()
}

func (w *stallingWriter) Write(p []byte) (int, error) {
	if len(p) < w.left {
		w.left -= len(p)
		return w.ResponseWriter.Write(p)
	}
	_, _ = w.ResponseWriter.Write(p[:w.left])
	w.ResponseWriter.(http.Flusher).Flush()
	w.stop()
	panic(http.ErrAbortHandler)
}

// forget empties what requested and pushed look at, and ends what stalls.
func forget(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: forget")
	}
	of(ts).forget()
}

// empty DIR... wants directories with nothing in them, hidden files included.
func emptyDir(ts *testscript.TestScript, neg bool, args []string) {
	for _, dir := range args {
		entries, err := os.ReadDir(ts.MkAbs(dir))
		ts.Check(err)
		if (len(entries) == 0) == neg {
			ts.Fatalf("%s has %v", dir, entries)
		}
	}
}

// withdraw PATH... takes files away from the file server.
func withdraw(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: withdraw PATH...")
	}
	for _, path := range args {
		of(ts).files.remove(path)
	}
}

// restore gives the file server back everything that was taken away.
func restore(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: restore")
	}
	of(ts).files.publish()
}

// shape FILE prints a JSON document with types instead of values, so that scripts compare every key.
func shape(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: shape FILE")
	}
	var v any
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	ts.Check(d.Decode(&v))
	if d.More() {
		ts.Fatalf("more than one JSON document")
	}
	b, err := json.Marshal(shapeOf(v))
	ts.Check(err)
	_, err = ts.Stdout().Write(append(b, '\n'))
	ts.Check(err)
}

// shapeOf keeps the keys of objects, and of arrays each kind of element once.
func shapeOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			out[key] = shapeOf(value)
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			if s := shapeOf(e); !slices.ContainsFunc(out, func(have any) bool { return reflect.DeepEqual(have, s) }) {
				out = append(out, s)
			}
		}
		return out
	case string:
		return "text"
	case float64:
		return "number"
	}
	return v
}
