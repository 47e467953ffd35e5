//go:build linux

package mutate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/internal/capped"
)

const (
	// jobVariable makes the test binary a worker: see TestWorker.
	jobVariable = "KKBUNDLE_MUTATE_JOB"
	// countVariable is the number of mutations in all; seedVariable, KIND:SEED, repeats a single one.
	countVariable = "MUTATIONS"
	seedVariable  = "MUTATION"

	shortRun = 200 // mutations without countVariable

	mib = 1 << 20
	// hardLimit ends a worker (RLIMIT_DATA), so that a fault does not take the machine's memory. It counts what the
	// heap ever reserved, of which a kind's bound (resident memory) is a part.
	hardLimit = 4 << 30
	// maxFailures ends a kind's run.
	maxFailures = 10
	// startLimit is the least time in which a worker begins its first mutation.
	startLimit = 2 * time.Minute
)

// A kind is a kind of hostile input, with its bounds. They hold for everything that is done with one mutation.
type kind struct {
	name string
	// share is the kind's part of all mutations, in percent.
	share int
	// memory bounds the peak of resident memory over the memory before the mutation, in bytes. Garbage counts.
	memory int64
	// cpu bounds the processor time of all threads, which does not depend on the machine's other work.
	cpu time.Duration
	// wall bounds the time in which nothing is reported: an endless wait takes no processor time.
	wall time.Duration
	// prepare makes the input that is mutated. The function that it returns mutates it, calls ready, from where its
	// cost counts, uses it once, and returns the mutation's name.
	prepare func(t *testing.T) func(ctx context.Context, r *rand.Rand, ready func()) string
}

func kinds() []kind {
	return []kind{
		{"bundle", 30, 192 * mib, 5 * time.Second, 2 * time.Minute, prepareBundle},
		{"registry", 25, 384 * mib, 5 * time.Second, 2 * time.Minute, prepareRegistry},
		{"chart", 20, 640 * mib, 10 * time.Second, 2 * time.Minute, prepareChart},
		{"host", 25, 1024 * mib, 10 * time.Second, 2 * time.Minute, prepareHost},
	}
}

// A job is the work of a worker: mutations with the seeds from From to To, without To.
type job struct {
	Kind     string
	From, To uint64
}

// A measured is a mutation with its cost. Began is set at its beginning, the rest at its end.
type measured struct {
	Began  bool `json:",omitempty"`
	Seed   uint64
	Name   string        `json:",omitempty"`
	Memory int64         `json:",omitempty"`
	CPU    time.Duration `json:",omitempty"`
}

// TestMutations gives every kind its share of mutations. A failure names the seed; MUTATION=KIND:SEED repeats it.
func TestMutations(t *testing.T) {
	total := shortRun
	if text := os.Getenv(countVariable); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s=%s: give a number", countVariable, text)
		}
		total = n
	}
	only, seed, single := strings.Cut(os.Getenv(seedVariable), ":")
	for _, k := range kinds() {
		if only != "" && k.name != only {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			j := job{Kind: k.name, To: uint64(total * k.share / 100)}
			if single {
				var err error
				if j.From, err = strconv.ParseUint(seed, 10, 64); err != nil {
					t.Fatalf("%s=%s: give KIND:SEED", seedVariable, os.Getenv(seedVariable))
				}
				j.To = j.From + 1
			}
			outcome := k.run(t.Context(), t.TempDir(), j)
			t.Log(outcome)
			for _, failure := range outcome.failures {
				t.Errorf("repeat with %s=%s: %s", seedVariable, k.name, failure)
			}
		})
	}
}

// An outcome is the result of a kind's mutations.
type outcome struct {
	kind     kind
	count    int
	names    map[string]int // how often each mutation was made
	memory   measured       // the largest
	cpu      measured       // the slowest
	failures []string
}

func (o *outcome) String() string {
	return fmt.Sprintf("%s: %d mutations of %d sorts; most memory %d MiB of %d (seed %d, %s); most time %s of %s (seed %d, %s)", o.kind.name, o.count, len(o.names),
		o.memory.Memory/mib, o.kind.memory/mib, o.memory.Seed, o.memory.Name, o.cpu.CPU.Round(time.Millisecond),
		o.kind.cpu, o.cpu.Seed, o.cpu.Name)
}

func (o *outcome) add(m measured) {
	o.count++
	o.names[m.Name]++
	if m.Memory > o.memory.Memory {
		o.memory = m
	}
	if m.CPU > o.cpu.CPU {
		o.cpu = m
	}
	if m.Memory > o.kind.memory {
		o.fail(m.Seed, "%s took %d MiB, the bound is %d MiB", m.Name, m.Memory/mib, o.kind.memory/mib)
	}
	if m.CPU > o.kind.cpu {
		o.fail(m.Seed, "%s took %s of processor time, the bound is %s", m.Name, m.CPU, o.kind.cpu)
	}
}

func (o *outcome) fail(seed uint64, format string, args ...any) {
	o.failures = append(o.failures, fmt.Sprintf("%d: %s", seed, fmt.Sprintf(format, args...)))
}

// run has workers do the job. After a fault that ends a worker, another one continues behind the seed.
func (k kind) run(ctx context.Context, dir string, j job) *outcome {
	o := &outcome{kind: k, names: map[string]int{}}
	for j.From < j.To && len(o.failures) < maxFailures {
		next, err := k.work(ctx, dir, j, o)
		if err == nil {
			break
		}
		o.fail(next-1, "%v", err)
		if next == j.From { // the worker did not begin
			break
		}
		j.From = next
	}
	return o
}

// work runs one worker. The error is the fault that ended it; next is the seed to continue with.
func (k kind) work(ctx context.Context, dir string, j job, o *outcome) (next uint64, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return j.From, err
	}
	self, err := os.Executable()
	if err != nil {
		return j.From, err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return j.From, err
	}
	defer in.Close()
	said := &capped.Head{Most: 16 << 10}
	cmd := exec.CommandContext(ctx, self, "-test.run=^TestWorker$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text), "TMPDIR="+dir, "HOME="+dir, "GOGC=", "GOMEMLIMIT=")
	cmd.Stdout, cmd.Stderr = said, said
	cmd.ExtraFiles = []*os.File{out}
	err = errors.Join(cmd.Start(), out.Close())
	if err != nil {
		return j.From, err
	}
	hung := false
	silence := time.AfterFunc(max(k.wall, startLimit), func() {
		hung = true
		_ = cmd.Process.Signal(unix.SIGQUIT) // Go prints the goroutines
	})
	next = j.From
	for lines := json.NewDecoder(in); ; {
		var m measured
		if lines.Decode(&m) != nil {
			break
		}
		silence.Reset(k.wall)
		next = m.Seed + 1
		if !m.Began {
			o.add(m)
		}
	}
	err = cmd.Wait()
	silence.Stop()
	switch {
	case err == nil:
		return next, nil
	case hung:
		return next, fmt.Errorf("nothing happened for %s\n%s", k.wall, said.Bytes())
	}
	return next, fmt.Errorf("%w\n%s", err, said.Bytes())
}

// TestWorker is the work of a worker process; it does nothing in any other.
func TestWorker(t *testing.T) {
	text := os.Getenv(jobVariable)
	if text == "" {
		t.Skip("a part of TestMutations")
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: hardLimit, Max: hardLimit}); err != nil {
		t.Fatal(err)
	}
	for _, k := range append(kinds(), badKinds()...) {
		if k.name == j.Kind {
			work(t, k, j)
		}
	}
}

func work(t *testing.T, k kind, j job) {
	t.Helper()
	once := k.prepare(t)
	report := json.NewEncoder(os.NewFile(3, "report"))
	for seed := j.From; seed < j.To; seed++ {
		if err := report.Encode(measured{Began: true, Seed: seed}); err != nil {
			t.Fatal(err)
		}
		m, err := measure(func(ready func()) string {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			return once(ctx, rand.New(rand.NewPCG(seed, 13)), ready)
		})
		if err != nil {
			t.Fatal(err)
		}
		m.Seed = seed
		if err := report.Encode(m); err != nil {
			t.Fatal(err)
		}
	}
}

// measure has the kernel measure a function from its call of ready on: the peak of resident memory counts what was
// freed meanwhile.
func measure(do func(ready func()) string) (m measured, err error) {
	var before int64
	var start time.Duration
	failed := errors.New("the function did not call ready")
	m.Name = do(func() { before, start, failed = beginning() })
	if failed != nil {
		return m, failed
	}
	end, err := processorTime()
	if err != nil {
		return m, err
	}
	_, peak, err := resident()
	m.Memory, m.CPU = peak-before, end-start
	return m, err
}

// beginning resets the peak of resident memory, and returns the memory and the processor time of now.
func beginning() (memory int64, cpu time.Duration, err error) {
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return 0, 0, err
	}
	if memory, _, err = resident(); err != nil {
		return 0, 0, err
	}
	cpu, err = processorTime()
	return memory, cpu, err
}

// resident returns the resident memory of this process and its peak.
func resident() (now, peak int64, err error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = n << 10
		case "VmHWM":
			peak = n << 10
		}
	}
	if now == 0 || peak == 0 {
		return 0, 0, errors.New("/proc/self/status has no VmRSS and VmHWM")
	}
	return now, peak, nil
}

// processorTime returns the processor time of this process and of its children that have ended.
func processorTime() (time.Duration, error) {
	total := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return 0, err
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total, nil
}

// badKinds break each promise on purpose: TestFaultsAreNoticed.
func badKinds() []kind {
	bad := func(name string, wall time.Duration, once func()) kind {
		return kind{name, 0, 64 * mib, 500 * time.Millisecond, wall, func(*testing.T) func(context.Context, *rand.Rand,
			func()) string {
			return func(_ context.Context, r *rand.Rand, ready func()) string {
				ready()
				if r.IntN(2) >= 0 {
					once()
				}
				return name
			}
		}}
	}
	return []kind{
		bad("good", time.Minute, func() {}),
		bad("memory", time.Minute, func() {
			data := bytes.Repeat([]byte{1}, 100*mib) // and it is garbage at once
			_, _ = io.Discard.Write(data)
		}),
		bad("more memory than the machine may lose", time.Minute, func() {
			for kept := [][]byte(nil); ; runtime.KeepAlive(kept) {
				kept = append(kept, bytes.Repeat([]byte{1}, 100*mib))
			}
		}),
		bad("time", time.Minute, func() {
			begin, _ := processorTime()
			for now := begin; now < begin+2*time.Second; now, _ = processorTime() {
				_ = strings.Repeat("x", 1000)
			}
		}),
		bad("panic", time.Minute, func() { panic("out of range") }),
		bad("panic elsewhere", time.Minute, func() { go panic("out of range"); time.Sleep(time.Hour) }),
		// select {} ends at once where no other goroutine can run
		bad("hang", 3*time.Second, func() { time.Sleep(time.Hour) }),
	}
}

// TestFaultsAreNoticed holds that the measurements of TestMutations can fail: memory that is freed again, memory
// without an end, time, a panic in any goroutine and an endless wait.
func TestFaultsAreNoticed(t *testing.T) {
	want := map[string]string{
		"good":                                  "",
		"memory":                                "the bound is 64 MiB",
		"more memory than the machine may lose": "out of memory",
		"time":                                  "of processor time",
		"panic":                                 "panic: out of range",
		"panic elsewhere":                       "panic: out of range",
		"hang":                                  "nothing happened for 3s",
	}
	for _, k := range badKinds() {
		o := k.run(t.Context(), t.TempDir(), job{Kind: k.name, To: 2})
		text, noticed := want[k.name], 0
		for _, failure := range o.failures {
			if strings.Contains(failure, text) {
				noticed++
			}
		}
		switch {
		case text == "" && len(o.failures) > 0:
			t.Errorf("%s: %q failed", k.name, o.failures)
		case text != "" && noticed != 2: // the second worker continues; the same mutation may also have taken too long
			t.Errorf("%s: %d of %q have %q, want 2", k.name, noticed, o.failures, text)
		}
	}
}
