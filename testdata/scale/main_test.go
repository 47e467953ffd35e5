//go:build linux

package scale

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// jobVariable makes the test binary a supervisor: see supervise.
	jobVariable = "KKBUNDLE_SCALE_JOB"

	mib = 1 << 20
	gib = 1 << 30
)

// big says that the full sizes are wanted.
var big = os.Getenv("KKBUNDLE_BIG") == "1"

// scratch is where the program is built; TestMain removes it.
var scratch string

func TestMain(m *testing.M) {
	if text := os.Getenv(jobVariable); text != "" {
		if err := supervise(text); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "supervise:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "kkbundle-scale-"); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	return m.Run()
}

// build makes the program once for all tests, as it is released: without cgo, whose runtime counts as its memory.
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "kkbundle")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path,
		"github.com/kkbundle/kkbundle/cmd/kkbundle")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

func program(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A job is a command to be watched.
type job struct {
	Group string // directory of the control group that it runs in; "" is the test's own
	Args  []string
}

// A usage is what a process took, as the kernel counted it.
type usage struct {
	Status      string // "exit status 0"
	Wall, CPU   time.Duration
	Peak        int64 // most bytes resident at a time
	Read, Wrote int64 // bytes through read and write calls: files, sockets and pipes
	Loaded      int64 // bytes that a disk had to be asked for
	Stored      int64 // bytes that were sent to a disk
}

func (u usage) ok() bool { return u.Status == "exit status 0" }

// supervise runs a job and writes its usage to file 3. It is a process of its own because a process inherits the peak
// of the one that starts it, and the test binary, with servers in it, may be larger than what it measures.
func supervise(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	if j.Group != "" {
		if err := os.WriteFile(filepath.Join(j.Group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())),
			0o600); err != nil {
			return err
		}
	}
	cmd := exec.Command(j.Args[0], j.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	u := usage{Wall: time.Since(start)}
	counters, err := readCounters(fmt.Sprintf("/proc/%d/io", cmd.Process.Pid)) // before it is reaped
	if err != nil {
		return err
	}
	u.Read, u.Wrote, u.Loaded, u.Stored = counters["rchar"], counters["wchar"], counters["read_bytes"],
		counters["write_bytes"]
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	u.Status = cmd.ProcessState.String()
	u.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	u.Peak = cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	return json.NewEncoder(os.NewFile(3, "usage")).Encode(u)
}

// readCounters reads a file of lines "name: number" or "name number".
func readCounters(path string) (map[string]int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	counters := map[string]int64{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil {
			counters[strings.TrimSuffix(name, ":")] = n
		}
	}
	return counters, nil
}

// measure runs a command in a control group ("" for none) and returns what it took and what it printed.
func measure(t testing.TB, group string, args ...string) (usage, string) {
	t.Helper()
	text, err := json.Marshal(job{Group: group, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var printed bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(defaults(), jobVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = &printed, &printed
	cmd.ExtraFiles = []*os.File{out}
	err = cmd.Run()
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, printed.String())
	}
	var u usage
	if err := json.NewDecoder(in).Decode(&u); err != nil {
		t.Fatal(err)
	}
	return u, printed.String()
}

// defaults is the environment without what tunes the memory of Go's programs: what is promised is promised without.
func defaults() []string { return append(os.Environ(), "GOGC=", "GOMEMLIMIT=") }

// must is measure for a command that has to succeed.
func must(t testing.TB, group string, args ...string) usage {
	t.Helper()
	u, out := measure(t, group, args...)
	if !u.ok() {
		t.Fatalf("%q: %s\n%s", args, u.Status, out)
	}
	return u
}
