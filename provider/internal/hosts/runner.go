// Package hosts does the work on hosts by running the program kkbundle: it writes the inventory and the login's files,
// follows the events, and turns exit codes into failures. Nothing else here knows how a host is reached.
package hosts

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A Call is one run of kkbundle. Arguments never contain a secret: every user of a machine sees them.
type Call struct {
	Args  []string
	Stdin []byte
	// Progress gets every event of the run, if it is set.
	Progress func(Event)
}

// An Event is a line that kkbundle --json prints on standard error.
type Event struct {
	Event    string `json:"event"` // task, progress, log, item, error
	Phase    string `json:"phase"`
	Task     string `json:"task"`
	State    string `json:"state"`
	Message  string `json:"message"`
	ExitCode int    `json:"exitCode"`
	Hint     string `json:"hint"`
}

// A Runner runs kkbundle and returns its standard output. The error of a run that kkbundle reports as failed is a
// *Failure.
type Runner interface {
	Run(ctx context.Context, call Call) ([]byte, error)
}

// A Failure is the error that a run of kkbundle ended with.
type Failure struct {
	Code          int // see docs/reference/exit-codes.md
	Message, Hint string
}

// Error returns kkbundle's message with the remedy.
func (f *Failure) Error() string {
	if f.Hint == "" {
		return f.Message
	}
	return f.Message + "; " + f.Hint
}

// withoutCommand names a step in place of the command that failed: in bootstrap data its arguments can be secret, and
// conditions and events are read by many.
func (f *Failure) withoutCommand(step string) *Failure {
	const code = ": exit code "
	_, after, ok := strings.Cut(f.Message, code)
	if !ok {
		return f
	}
	return &Failure{Code: f.Code, Message: step + code + after, Hint: f.Hint}
}

// The exit codes that make a difference here. docs/reference/exit-codes.md has all; a number never changes its meaning.
const (
	exitFile        = 10 // cluster file, inventory or document invalid
	exitDamaged     = 11 // bundle damaged or not readable by this version
	exitState       = 12 // the host is not in a state for it
	exitUnreachable = 13 // host unreachable, or login refused
	exitTask        = 16 // a step failed on the host
	exitBusy        = 17 // locked by another run
	exitSignature   = 20 // bundle not signed by a trusted key
	exitMissing     = 21 // something that is needed is missing
	exitUsage       = 64
)

// Unreachable reports whether the host was not reached, or refused the login.
func (f *Failure) Unreachable() bool { return f.Code == exitUnreachable }

// Busy reports whether another run of kkbundle is at work on the host.
func (f *Failure) Busy() bool { return f.Code == exitBusy }

// OnHost reports whether a step failed on the host.
func (f *Failure) OnHost() bool { return f.Code == exitTask }

// Refused reports whether kkbundle left the host as it is, because it is not in a state for the work: it belongs to
// another machine, say.
func (f *Failure) Refused() bool { return f.Code == exitState }

// Input reports whether the bundle or one of the files is at fault: the same run fails again.
func (f *Failure) Input() bool {
	switch f.Code {
	case exitFile, exitDamaged, exitState, exitSignature, exitMissing, exitUsage:
		return true
	}
	return false
}

const (
	maxEvent  = 1 << 20  // bytes of a line
	maxOutput = 64 << 20 // bytes of standard output: the listing of a large bundle
	maxNoise  = 4 << 10  // bytes of standard error that are no event
	// gracePeriod is the time that a run has after SIGTERM to leave hosts in order.
	gracePeriod = 30 * time.Second
)

// A Program is a Runner that executes the file Path. Environment is all that it sees of this process's variables, and
// of its own.
type Program struct {
	Path        string
	Environment []string
}

// Run implements Runner. A cancelled run gets SIGTERM, which kkbundle obeys between two commands on the host.
func (p *Program) Run(ctx context.Context, call Call) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.Path, append([]string{"--json"}, call.Args...)...)
	cmd.Env = p.Environment
	cmd.Stdin = bytes.NewReader(call.Stdin)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = gracePeriod
	out := &limited{left: maxOutput}
	cmd.Stdout = out
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	last, noise := follow(pipe, call.Progress)
	err = cmd.Wait()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("kkbundle %s: %w", verb(call.Args), context.Cause(ctx))
	case err == nil && out.left < 0:
		return nil, fmt.Errorf("kkbundle %s printed more than %d bytes", verb(call.Args), maxOutput)
	case err == nil:
		return out.data.Bytes(), nil
	case !errors.As(err, &ended):
		return nil, fmt.Errorf("kkbundle %s: %w", verb(call.Args), err)
	case last.Message != "":
		return nil, &Failure{Code: ended.ExitCode(), Message: last.Message, Hint: last.Hint}
	}
	return nil, &Failure{Code: ended.ExitCode(), Message: fmt.Sprintf("kkbundle %s: %s: %s", verb(call.Args), ended, strings.TrimSpace(noise))}
}

func verb(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// follow reads events until the end and returns the last error event, and the beginning of all that was no event.
func follow(r io.Reader, progress func(Event)) (last Event, noise string) {
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(lines)
		if text := bytes.TrimSpace(line); len(text) > 0 {
			var e Event
			switch json.Unmarshal(text, &e) {
			case nil:
				if e.Event == "error" {
					last = e
				}
				if progress != nil {
					progress(e)
				}
			default:
				noise += string(text[:min(len(text), maxNoise-min(len(noise), maxNoise))]) + "\n"
			}
		}
		if err != nil {
			return last, noise
		}
	}
}

// readLine returns the next line. Bytes beyond maxEvent are dropped, so that the program never waits for a reader.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line) < maxEvent {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// limited keeps bytes up to a limit and takes the rest without keeping it; left is negative then.
type limited struct {
	data bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left >= 0 {
		l.data.Write(p)
	}
	return len(p), nil
}

// Environment returns the environment of a Program: the variables of this process that find files, and a home of its
// own, so that no key, known_hosts or trust policy of this machine counts.
func Environment(home string) []string {
	env := []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home, "XDG_CACHE_HOME=" + home, "XDG_CONFIG_DIRS=" + home}
	for _, name := range []string{"PATH", "TMPDIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
