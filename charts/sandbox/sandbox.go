// Package sandbox runs code that is fed by strangers as another process that has nothing: no files, no network, no
// other processes, no privileges, and little time and memory.
//
// A template can loop or allocate without an end, and nothing within a process can stop it. A program of others can
// do anything that its user can. So both run as children. A child is this program itself, started with Command as its
// argument; it reads its work from standard input, confines itself, and then either does a Task or becomes the
// program (Program). It is killed when its time is over.
//
// On Linux a child has these barriers. Where a system lacks one, the others still hold: a Reply names the missing
// ones, and a Program needs those of Needed.
//
//   - namespaces of its own: network (empty), processes, mounts (it sees its readable directory alone), IPC and names. Other users than
//     root need a user namespace for them.
//   - another user without capabilities, if the parent is root; no new privileges in any case.
//   - Landlock: it reads and executes below its readable directory alone, and writes nothing.
//   - seccomp: a list of the system calls that the Go runtime and the C library need. Every other call fails with EPERM. Files are opened
//     for reading only, threads are the only children, and signals reach the process itself only.
//   - limits of memory, open files, file sizes, and processor time.
package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// Command is the argument with which a program starts itself as a sandbox. Main of every program that uses this
// package calls Tasks.Run if it is the first argument, before anything else: so does TestMain of its tests.
const Command = "sandbox"

const (
	maxInput   = 64 << 20 // bytes of the input of a task
	maxAnswer  = 64 << 20 // bytes
	maxMemory  = 1 << 30  // bytes of the child
	maxStack   = 64 << 20 // bytes of a goroutine; Helm's includes nest 1,000 deep at most
	maxFiles   = 64       // open files of the child
	maxThreads = 512      // of the user that root's children become
	maxStderr  = 4096     // bytes that are kept
	memoryTick = 10 * time.Millisecond

	// inside is a variable of a child's environment, so that a program that forgot Tasks.Run does not start itself
	// without an end.
	inside = "KKBUNDLE_SANDBOX"

	exitMemory = 3 // exit codes of the child; no user sees them
	exitOrphan = 4
)

// The barriers that a system can lack.
const (
	BarrierFiles      = "closing of inherited files"
	BarrierNetwork    = "network namespace"
	BarrierProcesses  = "process namespace"
	BarrierMounts     = "mount namespace"
	BarrierPrivileges = "dropping of privileges"
	BarrierLandlock   = "Landlock"
	BarrierSeccomp    = "seccomp"
	BarrierLimits     = "resource limits"
)

// Needed returns the barriers without which no program of others runs.
func Needed() []string {
	return []string{BarrierFiles, BarrierPrivileges, BarrierLandlock, BarrierSeccomp}
}

// ErrTime means that a child took longer than it may.
var ErrTime = errors.New("the time limit passed")

// A FailedError means that a child ended without an answer.
type FailedError struct {
	Err    error
	Stderr string // its beginning
}

// Error describes the reason, with the first line of standard error.
func (e *FailedError) Error() string {
	var exit *exec.ExitError
	switch {
	case errors.As(e.Err, &exit) && exit.ExitCode() == exitMemory, strings.Contains(e.Stderr, "out of memory"),
		strings.Contains(e.Stderr, "cannot allocate memory"),
		strings.Contains(e.Stderr, "failed to allocate"),    // the race detector
		strings.Contains(e.Stderr, "pthread_create failed"): // no memory for the stack of a thread
		return fmt.Sprintf("rendering takes more than %s of memory: a template repeats without an end",
			plain.Size(maxMemory))
	case strings.Contains(e.Stderr, "stack overflow"), strings.Contains(e.Stderr, "stack exceeds"):
		return "templates include one another without an end"
	}
	first, _, _ := strings.Cut(strings.TrimSpace(e.Stderr), "\n")
	return strings.TrimSpace(fmt.Sprintf("the sandbox process failed: %v %s", e.Err, first))
}

// Unwrap returns the reason.
func (e *FailedError) Unwrap() error { return e.Err }

// A Task is work that a child does: it gets its request and its input, and may ask its parent. An error is for the
// user.
type Task func(w Work) (answer any, err error)

// Work is what a task is given.
type Work struct {
	Request json.RawMessage
	Input   []byte
	// Ask asks the parent (Job.Answer) a question.
	Ask func(question, answer any) error
}

// Tasks are those that a program knows, by name.
type Tasks map[string]Task

// A Job has a child do a task.
type Job struct {
	Task    string
	Request any
	Input   io.Reader // of Size bytes, at most 64 MiB
	Size    int64
	// Readable is the absolute path of a directory that the task may read; "" is none.
	Readable string
	// Answer, if set, answers the task's questions.
	Answer func(ctx context.Context, question json.RawMessage) (any, error)
}

// A Reply is the answer of a task, with the barriers that this system lacks.
type Reply struct {
	Answer  json.RawMessage
	Missing []string
}

// Do runs the job. The error is ErrTime if the limit passed, a *FailedError if the child failed, that of Input if
// that could not be read, or that of the task.
func (j Job) Do(ctx context.Context, limit time.Duration) (r Reply, err error) {
	if j.Readable != "" && !filepath.IsAbs(j.Readable) {
		return r, fmt.Errorf("sandbox: %s is no absolute path", j.Readable)
	}
	request, err := json.Marshal(j.Request)
	if err != nil {
		return r, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, ErrTime)
	defer cancel()
	var failed string
	c := child{call: call{Task: j.Task, Request: request, Size: j.Size, Readable: j.Readable}, input: j.Input, dir: "/"}
	c.receive = func(stdin io.Writer, stdout io.Reader) error {
		for in := json.NewDecoder(stdout); ; {
			var m message
			if err := in.Decode(&m); err != nil {
				return fmt.Errorf("unreadable answer: %w", err)
			}
			if m.Question == nil {
				r, failed = Reply{Answer: m.Answer, Missing: m.Missing}, m.Error
				return nil
			}
			if err := j.answer(limited, stdin, m.Question); err != nil {
				return err
			}
		}
	}
	if err := c.run(limited); err != nil {
		return r, err
	}
	if failed != "" {
		return r, errors.New(failed)
	}
	return r, nil
}

// answer answers a question of the child.
func (j Job) answer(ctx context.Context, stdin io.Writer, question json.RawMessage) error {
	if j.Answer == nil {
		return errors.New("an unexpected question")
	}
	var m message
	answer, err := j.Answer(ctx, question)
	if err == nil {
		m.Answer, err = json.Marshal(answer)
	}
	if err != nil {
		m.Error = err.Error()
	}
	return json.NewEncoder(stdin).Encode(m)
}

// A call is the first line that a child reads. The input follows, then answers to questions.
type call struct {
	Task     string          `json:",omitempty"`
	Request  json.RawMessage `json:",omitempty"`
	Size     int64           `json:",omitempty"`
	Readable string          `json:",omitempty"`
	Program  []string        `json:",omitempty"` // its name in Readable and its arguments, instead of a task
	Seconds  uint64          `json:",omitempty"` // of processor time of the program
	// Namespaces reports whether the child has its own processes and mounts.
	Namespaces bool `json:",omitempty"`
}

// A message is a line that a child writes, and that its parent answers.
type message struct {
	Question json.RawMessage `json:",omitempty"`
	Answer   json.RawMessage `json:",omitempty"`
	Error    string          `json:",omitempty"`
	Missing  []string        `json:",omitempty"`
}

// A child is this program as another process.
type child struct {
	call    call
	input   io.Reader // may be nil
	dir     string    // its working directory
	receive func(stdin io.Writer, stdout io.Reader) error
}

// run starts the child and waits until it ends.
func (c child) run(ctx context.Context) error {
	if os.Getenv(inside) != "" {
		return fmt.Errorf("this program does not call Tasks.Run if its first argument is %q", Command)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	// The kernel kills the child when the thread that started it ends: it must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stderr := &capped.Head{Most: maxStderr}
	var sent, failed error
	for _, namespaces := range separations() {
		cmd := exec.CommandContext(ctx, exe, Command)
		cmd.Args[0] = os.Args[0]
		cmd.Env = []string{"GOTRACEBACK=none", inside + "=1"}
		cmd.Dir = c.dir
		cmd.WaitDelay = time.Second
		cmd.Stderr = stderr
		c.call.Namespaces = namespaces(cmd)
		sent, failed = c.converse(cmd)
		if cmd.Process != nil || ctx.Err() != nil { // otherwise this system refuses the namespaces
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case sent != nil: // the error of the child would mislead
		return sent
	case failed != nil:
		return &FailedError{failed, string(stderr.Bytes())}
	}
	return nil
}

// converse runs the child. Its standard input stays open until it has ended: for the child, the end of it is the end
// of the parent.
func (c child) converse(cmd *exec.Cmd) (sent, err error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	result := make(chan error, 1)
	go func() { result <- c.send(stdin) }()
	limited := &io.LimitedReader{R: stdout, N: maxAnswer}
	err = c.receive(stdin, limited)
	if limited.N == 0 {
		err = fmt.Errorf("answer exceeds %d bytes", maxAnswer)
	}
	var kill *time.Timer
	if err != nil { // a child that fails closes its output first, and then says how by its end
		kill = time.AfterFunc(time.Second, func() { _ = cmd.Process.Kill() })
	}
	_, _ = io.Copy(io.Discard, limited)
	ended := cmd.Wait()
	// it succeeded, and this machine was too busy to read the end of its standard error
	if errors.Is(ended, exec.ErrWaitDelay) {
		ended = nil
	}
	if ended != nil && (kill == nil || kill.Stop()) {
		err = ended
	}
	return <-result, err
}

// send writes the call and the input. It returns the error of the input: a child that ends early reports why itself.
func (c child) send(stdin io.WriteCloser) error {
	if json.NewEncoder(stdin).Encode(c.call) != nil || c.input == nil {
		return nil
	}
	from := &errorReader{r: c.input}
	_, _ = io.Copy(stdin, from)
	if from.err != nil {
		_ = stdin.Close() // so that the child does not wait for the rest
	}
	return from.err
}

// errorReader keeps the error that ended reading.
type errorReader struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (r *errorReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// Run is the work of a child: it reads a call from r and writes messages to w. It confines the whole process, so call
// it only where the program was started with Command.
func (t Tasks) Run(r io.Reader, w io.Writer) error {
	in := bufio.NewReader(r)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var c call
	if err := json.Unmarshal(line, &c); err != nil {
		return err
	}
	if len(c.Program) > 0 {
		return c.become()
	}
	task, ok := t[c.Task]
	if !ok {
		return fmt.Errorf("this program has no task %q", c.Task)
	}
	limitMemory()
	input := make([]byte, min(c.Size, maxInput))
	if _, err := io.ReadFull(in, input); err != nil {
		return err
	}
	out := json.NewEncoder(w)
	answers := make(chan message)
	go func() {
		for from := json.NewDecoder(in); ; {
			var m message
			if from.Decode(&m) != nil { // it ends when the parent does
				os.Exit(exitOrphan) //nolint:forbidigo // this process is the sandbox
			}
			answers <- m
		}
	}()
	missing := confinement{readable: c.Readable, namespaces: c.Namespaces}.enter()
	ask := func(question, answer any) error {
		data, err := json.Marshal(question)
		if err != nil {
			return err
		}
		if err := out.Encode(message{Question: data}); err != nil {
			return err
		}
		m := <-answers
		if m.Error != "" {
			return errors.New(m.Error)
		}
		return json.Unmarshal(m.Answer, answer)
	}
	last := message{Missing: missing}
	answer, err := task(Work{c.Request, input, ask})
	if err == nil {
		last.Answer, err = json.Marshal(answer)
	}
	if err != nil {
		last.Error = err.Error()
	}
	return out.Encode(last)
}

// limitMemory limits the memory of this process and disables the HTTP client of libraries.
func limitMemory() {
	log.SetOutput(io.Discard) // Helm logs there
	http.DefaultTransport = noNetwork{}
	debug.SetMaxStack(maxStack)
	debug.SetMemoryLimit(maxMemory / 4 * 3) // collect harder before giving up
	go func() {
		samples := []metrics.Sample{
			{Name: "/memory/classes/total:bytes"},
			{Name: "/memory/classes/heap/released:bytes"},
		}
		for range time.Tick(memoryTick) {
			metrics.Read(samples)
			if samples[0].Value.Uint64()-samples[1].Value.Uint64() > maxMemory {
				os.Exit(exitMemory) //nolint:forbidigo // this process is the sandbox
			}
		}
	}()
}

// noNetwork refuses every request.
type noNetwork struct{}

// RoundTrip implements http.RoundTripper.
func (noNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%s is not fetched: put a copy below the manifest's directory and name that",
		r.URL.Redacted())
}
