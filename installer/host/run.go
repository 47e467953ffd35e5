package host

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // scripts
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/pace"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A process is a started program.
type process interface {
	// Stdin is the program's input; Close ends it.
	Stdin() io.WriteCloser
	// Wait returns the exit code after all output has been delivered. An error means that the code is unknown: the
	// machine was lost.
	Wait() (int, error)
	// Kill abandons the program: Wait returns soon after in any case.
	Kill()
}

// A starter starts a program with the login user's rights. Different goroutines use the two writers until Wait returns.
type starter interface {
	start(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error)
	close() error
}

// machine is a Host built from a way to start programs and a way to become root.
type machine struct {
	name  string
	start starter
	root  elevation
	// patience is the time limit for each of the first commands.
	patience time.Duration
	// pace limits the bytes of commands' input, nil limits nothing.
	pace *pace.Limit
}

// String returns the host's name.
func (m *machine) String() string { return m.name }

// Close ends all connections.
func (m *machine) Close() error { return m.start.close() }

// launchScript prints a mark line on both streams before it runs the command: earlier output is from login scripts and
// sudo. The line contains its process id, which becomes the command's, so that the command can be killed.
// It travels with every command, so its description is here.
//
//go:embed scripts/launch.sh
var launchScript string

// launched is a command as it is started: the line that the launcher begins with is its mark. Nothing of the login's
// environment reaches it: a proxy of /etc/environment would lead kubectl and kubeadm's static pods astray.
func (m *machine) launched(r *run) []string {
	return slices.Concat(m.root.prefix(r.prompt), Script(r.mark, launchScript, "env", "-i"), environment(), r.cmd.Env,
		r.cmd.Args)
}

// Run runs a command as root.
func (m *machine) Run(ctx context.Context, cmd Cmd) error {
	if err := cmd.check(); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	r := newRun(m, cmd)
	p, err := m.start.start(ctx, m.launched(r), r.stdout, r.stderr)
	if err != nil {
		return err
	}
	return r.finish(ctx, p)
}

// A run is one running command.
type run struct {
	machine *machine
	cmd     Cmd
	mark    string // the beginning of the launcher's line
	prompt  string // sudo's prompt

	stdout, stderr *stream
	tail           *capped.Tail  // the end of the command's standard error
	ended          chan struct{} // closed when the program has ended
}

func newRun(m *machine, cmd Cmd) *run {
	r := &run{
		machine: m, cmd: cmd, mark: "kkbundle-" + rand.Text(), tail: &capped.Tail{Most: maxStderr},
		ended: make(chan struct{}),
	}
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
		_ = p.Stdin().Close() // a sudo waiting for a password gives up
		// The command may begin all the same, and its output waits for a reader that may still be writing.
		r.unfed(err)
		r.abandon(ctx, p)
		<-ended
		return err
	}
	// Feeding is not awaited: the reader may stay blocked after the command has ended.
	if r.stderr.hasStarted() {
		go r.feed(ctx, p.Stdin())
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

// begin waits until the command has started, and answers sudo's password prompt.
func (r *run) begin(ctx context.Context, stdin io.Writer) error {
	timeout := time.NewTimer(sudoTimeout)
	defer timeout.Stop()
	if !r.machine.root.sudo {
		timeout.Stop() // no prompt is possible: a busy host may take as long as ctx permits
	}
	asked := false
	for {
		select {
		case <-r.stderr.started:
			return nil
		case <-r.ended: // ended before the command began: result has the reason
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

func (r *run) feed(ctx context.Context, stdin io.WriteCloser) {
	if r.cmd.Stdin != nil {
		// A command that ends without reading everything has not failed; if the host is lost, Wait returns that.
		_, err := io.Copy(stdin, r.machine.pace.Reader(ctx, r.cmd.Stdin))
		r.unfed(io.ErrClosedPipe)
		if _, cut := errors.AsType[*pace.WaitError](err); cut {
			return // the command would take the part for all of its input; it is killed with ctx
		}
	}
	_ = stdin.Close()
}

// unfed tells the writer of the command's input that nobody reads it any more.
func (r *run) unfed(reason error) {
	if pipe, ok := r.cmd.Stdin.(ClosableReader); ok {
		_ = pipe.CloseWithError(reason)
	}
}

// result returns Run's error.
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
			&LoginError{User: r.machine.root.user, Code: code, Said: strings.TrimSpace(r.stderr.preamble() + " " +
				r.stdout.preamble())})
	case code != 0:
		return &ExitError{Host: r.machine.name, Args: r.cmd.Args, Code: code, Stderr: plain.Strip(r.tail.String())}
	}
	return nil
}

func (r *run) cancelled(ctx context.Context) error {
	return fmt.Errorf("%s: %s: %w", r.machine.name, commandLine(r.cmd.Args), context.Cause(ctx))
}

func (r *run) sudoError(reason string) error { return r.machine.sudoError(reason, r.stderr.preamble()) }

//go:embed scripts/kill-group.sh
var killGroupScript string

// abandon kills the command on the host, and then its connection.
func (r *run) abandon(ctx context.Context, p process) {
	defer p.Kill()
	limit := max(killTimeout, r.machine.patience/killShare)
	// The line with the process id may still be in transit although the command has begun.
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
	k := newRun(r.machine, Cmd{Args: Script("kill-group.sh", killGroupScript, strconv.Itoa(pid))})
	killer, err := r.machine.start.start(withPriority(ctx), r.machine.launched(k), k.stdout, k.stderr)
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

// maxPreamble bounds the output before a command starts: a login script that prints endlessly is refused.
const maxPreamble = 1 << 20

// A stream carries one of a command's output streams. It looks for the launcher's line and, before that, for sudo's
// prompt. Output before the line is kept separately, output after it goes to the writer.
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

// maxPrompts exceeds the number of sudo's prompts.
const maxPrompts = 16

func newStream(mark, prompt string, to io.Writer) *stream {
	to = cmp.Or(to, io.Discard)
	return &stream{
		mark: mark, prompt: prompt, to: to,
		started: make(chan struct{}), broken: make(chan struct{}),
		prompted: make(chan struct{}, maxPrompts),
	}
}

// Write never fails: unwanted output must not block a command.
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

// scan consumes output before the command and returns the command's own.
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

// cutMark cuts text at the launcher's line: its mark and a process id. A mark followed by something else is from sudo,
// which repeats a refused command.
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

// preamble returns the end of the output before the command, on one line.
func (s *stream) preamble() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := capped.Tail{Most: maxStderr}
	_, _ = t.Write(s.before)
	return oneLine(plain.Strip(t.String()))
}

type priorityKey struct{}

// withPriority marks a program that must start even if every ordinary place is taken, because it frees places.
func withPriority(ctx context.Context) context.Context {
	return context.WithValue(ctx, priorityKey{}, true)
}

func hasPriority(ctx context.Context) bool { return ctx.Value(priorityKey{}) != nil }
