package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/plain"
)

// A process is a program that was started somewhere.
type process interface {
	// Stdin takes what the program reads; Close is the end of it.
	Stdin() io.WriteCloser
	// Wait returns the exit code after everything that was written has been delivered. An error means that the code is
	// not known: the machine was lost.
	Wait() (int, error)
	// Kill gives the program up: Wait returns soon after, whatever the program does.
	Kill()
}

// A starter starts a program with the login user's rights. The two writers are used by different goroutines until Wait
// returns.
type starter interface {
	start(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error)
	close() error
}

// machine is a Host made of a way to start programs and a way to become root.
type machine struct {
	name  string
	start starter
	root  elevation
	// patience is how long each of the first commands may take.
	patience time.Duration
}

// String returns the host's name.
func (m *machine) String() string { return m.name }

// Close ends all connections.
func (m *machine) Close() error { return m.start.close() }

// launcher runs the command after it has said, on both streams, that it is about to: what comes before that line is
// from login scripts and sudo. It also says its process id, which is the command's, so that the command can be killed.
const launcher = `printf '%s %s\n' "$0" $$; printf '%s %s\n' "$0" $$ >&2; exec "$@"`

// Run runs a command as root.
func (m *machine) Run(ctx context.Context, cmd Cmd) error {
	if err := cmd.check(); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	r := newRun(m, cmd)
	args := slices.Concat(m.root.prefix(r.prompt), []string{"sh", "-c", launcher, r.mark, "env"}, environment(), cmd.Env, cmd.Args)
	p, err := m.start.start(ctx, args, r.stdout, r.stderr)
	if err != nil {
		return err
	}
	return r.finish(ctx, p)
}

// A run is one command on its way.
type run struct {
	machine *machine
	cmd     Cmd
	mark    string // the line that the launcher begins with
	prompt  string // what sudo asks with

	stdout, stderr *stream
	tail           *capped.Tail  // the end of the command's standard error
	ended          chan struct{} // closed when the program has ended
}

func newRun(m *machine, cmd Cmd) *run {
	r := &run{machine: m, cmd: cmd, mark: "kkbundle-" + rand.Text(), tail: &capped.Tail{Most: maxStderr}, ended: make(chan struct{})}
	if m.root.password != nil {
		r.prompt = "kkbundle-" + rand.Text() + ":"
	}
	r.stdout = newStream(r.mark, "", cmd.Stdout)
	errs := io.Writer(r.tail)
	if cmd.Stderr != nil {
		errs = io.MultiWriter(cmd.Stderr, r.tail)
	}
	r.stderr = newStream(r.mark, r.prompt, errs)
	return r
}

// finish feeds a started process and waits for it.
func (r *run) finish(ctx context.Context, p process) error {
	type ending struct {
		code int
		err  error
	}
	ended := make(chan ending, 1)
	go func() {
		code, err := p.Wait()
		close(r.ended)
		ended <- ending{code, err}
	}()
	end := func() error {
		e := <-ended
		return r.result(ctx, e.code, e.err)
	}
	if err := r.begin(ctx, p.Stdin()); err != nil {
		_ = p.Stdin().Close() // a sudo that waits for a password gives up
		r.abandon(ctx, p)
		<-ended
		return err
	}
	// Feeding is not waited for: the reader may be blocked for as long as it likes after the command has ended.
	if r.stderr.hasStarted() {
		go r.feed(p.Stdin())
	}
	select {
	case e := <-ended:
		return r.result(ctx, e.code, e.err)
	case <-ctx.Done():
		r.abandon(ctx, p)
		return end()
	case <-r.stdout.broken:
	case <-r.stderr.broken:
	}
	r.abandon(ctx, p)
	return end()
}

// begin waits until the command has started, and gives sudo its password when it asks.
func (r *run) begin(ctx context.Context, stdin io.Writer) error {
	timeout := time.NewTimer(sudoTimeout)
	defer timeout.Stop()
	if !r.machine.root.sudo {
		timeout.Stop() // nothing can ask for anything: a busy host may take as long as ctx lets it
	}
	asked := false
	for {
		select {
		case <-r.stderr.started:
			return nil
		case <-r.ended: // before the command began: result says why
			return nil
		case <-r.stderr.prompted:
			if asked {
				return r.sudoError("the password is wrong")
			}
			asked = true
			if err := r.machine.root.answer(ctx, stdin); err != nil {
				return fmt.Errorf("%s: password for sudo: %w", r.machine.name, err)
			}
			timeout.Reset(sudoTimeout) // a person may have typed it
		case <-timeout.C:
			return r.sudoError(fmt.Sprintf("the command had not started after %s", sudoTimeout))
		case <-ctx.Done():
			if slow := new(SlowError); r.machine.root.sudo && errors.As(context.Cause(ctx), &slow) {
				return r.sudoError("the command had not started after " + slow.Limit.String())
			}
			return r.cancelled(ctx)
		}
	}
}

func (r *run) feed(stdin io.WriteCloser) {
	if r.cmd.Stdin != nil {
		// A command that ends without reading everything is not a failure; if the host is lost Wait says so.
		_, _ = io.Copy(stdin, r.cmd.Stdin)
		if pipe, ok := r.cmd.Stdin.(ClosableReader); ok {
			_ = pipe.CloseWithError(io.ErrClosedPipe)
		}
	}
	_ = stdin.Close()
}

// result makes Run's error.
func (r *run) result(ctx context.Context, code int, err error) error {
	switch {
	case ctx.Err() != nil && (err != nil || code != 0):
		return r.cancelled(ctx)
	case r.stdout.err() != nil:
		return fmt.Errorf("%s: output of %s: %w", r.machine.name, commandLine(r.cmd.Args), r.stdout.err())
	case r.stderr.err() != nil:
		return fmt.Errorf("%s: messages of %s: %w", r.machine.name, commandLine(r.cmd.Args), r.stderr.err())
	case err != nil:
		return fmt.Errorf("%s: %w", commandLine(r.cmd.Args), err)
	case !r.stderr.hasStarted() && r.machine.root.sudo:
		return r.sudoError("sudo did not run the command")
	case !r.stderr.hasStarted():
		return fmt.Errorf("%s: %s: %w", r.machine.name, commandLine(r.cmd.Args),
			&LoginError{User: r.machine.root.user, Code: code, Said: strings.TrimSpace(r.stderr.preamble() + " " + r.stdout.preamble())})
	case code != 0:
		return &ExitError{Host: r.machine.name, Args: r.cmd.Args, Code: code, Stderr: plain.Strip(r.tail.String())}
	}
	return nil
}

func (r *run) cancelled(ctx context.Context) error {
	return fmt.Errorf("%s: %s: %w", r.machine.name, commandLine(r.cmd.Args), context.Cause(ctx))
}

func (r *run) sudoError(reason string) error {
	return r.machine.sudoError(reason, r.stderr.preamble())
}

// killGroup ends a command and everything it started: first the polite way, then for good. The process group is looked
// up because sudo may have made one of its own. $1 is the command's process id.
const killGroup = `group() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 3; }
g=$(group "$1"); [ -n "$g" ] && [ "$g" -gt 1 ] || exit 0
kill -s TERM -- "-$g" 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do [ -d "/proc/$1" ] || break; sleep 0.1 2>/dev/null || sleep 1; done
kill -s KILL -- "-$g" 2>/dev/null
exit 0`

// abandon kills the command on the host, and then the connection to it.
func (r *run) abandon(ctx context.Context, p process) {
	defer p.Kill()
	limit := max(killTimeout, r.machine.patience/killShare)
	// The line with the process id may still be on its way although the command has begun.
	select {
	case <-r.stderr.started:
	case <-r.ended:
		return
	case <-time.After(limit):
	}
	pid := r.stderr.pid()
	if pid <= 1 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	k := newRun(r.machine, Cmd{Args: []string{"sh", "-c", killGroup, "sh", strconv.Itoa(pid)}})
	args := slices.Concat(r.machine.root.prefix(k.prompt), []string{"sh", "-c", launcher, k.mark, "env"}, environment(), k.cmd.Args)
	killer, err := r.machine.start.start(withPriority(ctx), args, k.stdout, k.stderr)
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = killer.Wait()
		close(k.ended)
	}()
	_ = k.begin(ctx, killer.Stdin())
	_ = killer.Stdin().Close()
	select {
	case <-done:
	case <-ctx.Done():
		killer.Kill()
		<-done
	}
}

// maxPreamble bounds what is looked at before a command starts: a login script that prints without end is refused.
const maxPreamble = 1 << 20

// A stream carries one of a command's output streams. It looks for the launcher's line and, before that, for sudo's
// prompt; what comes before the line is kept apart, what follows goes to the writer.
type stream struct {
	mark, prompt string
	to           io.Writer

	started  chan struct{} // closed when the launcher's line was read
	broken   chan struct{} // closed when the writer failed
	prompted chan struct{} // one value for each prompt

	mu      sync.Mutex
	before  []byte
	id      int
	failure error
}

// maxPrompts is more than how often sudo asks.
const maxPrompts = 16

func newStream(mark, prompt string, to io.Writer) *stream {
	if to == nil {
		to = io.Discard
	}
	return &stream{
		mark: mark, prompt: prompt, to: to,
		started: make(chan struct{}), broken: make(chan struct{}),
		prompted: make(chan struct{}, maxPrompts),
	}
}

// Write never fails: a command must not be blocked because what it says is not wanted any more.
func (s *stream) Write(p []byte) (int, error) {
	n := len(p)
	if !s.hasStarted() {
		p = s.scan(p)
	}
	if len(p) == 0 || s.err() != nil {
		return n, nil
	}
	if _, err := s.to.Write(p); err != nil {
		s.fail(err)
	}
	return n, nil
}

// scan takes what comes before the command and returns what is already the command's.
func (s *stream) scan(p []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = append(s.before, p...)
	if s.prompt != "" {
		for {
			i := bytes.Index(s.before, []byte(s.prompt))
			if i < 0 {
				break
			}
			s.before = slices.Delete(s.before, i, i+len(s.prompt))
			select {
			case s.prompted <- struct{}{}:
			default:
			}
		}
	}
	head, id, rest, ok := cutMark(s.before, s.mark)
	if !ok {
		if len(s.before) > maxPreamble && s.failure == nil {
			s.failure = fmt.Errorf("login scripts printed more than %d bytes", maxPreamble)
			close(s.broken)
		}
		return nil
	}
	s.id = id
	s.before = head
	close(s.started)
	return rest
}

// cutMark cuts text at the launcher's line: its mark and a process id. A mark with something else behind it is sudo's,
// which repeats the command that it refuses.
func cutMark(text []byte, mark string) (head []byte, id int, rest []byte, ok bool) {
	for at := 0; ; {
		i := bytes.Index(text[at:], []byte(mark+" "))
		if i < 0 {
			return nil, 0, nil, false
		}
		at += i
		number, rest, whole := bytes.Cut(text[at+len(mark)+1:], []byte("\n"))
		if id, err := strconv.Atoi(string(bytes.TrimSpace(number))); whole && err == nil {
			return text[:at], id, rest, true
		}
		at += len(mark)
	}
}

func (s *stream) hasStarted() bool {
	select {
	case <-s.started:
		return true
	default:
		return false
	}
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		s.failure = err
		close(s.broken)
	}
}

func (s *stream) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

func (s *stream) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// preamble returns the end of what was printed before the command, on one line.
func (s *stream) preamble() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := capped.Tail{Most: maxStderr}
	_, _ = t.Write(s.before)
	return oneLine(plain.Strip(t.String()))
}

type priorityKey struct{}

// withPriority marks what must be startable even if every ordinary place is taken: ending what takes them.
func withPriority(ctx context.Context) context.Context {
	return context.WithValue(ctx, priorityKey{}, true)
}

func hasPriority(ctx context.Context) bool { return ctx.Value(priorityKey{}) != nil }
