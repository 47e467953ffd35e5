package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"os/user"
	"sync"
	"syscall"
	"time"
)

// LocalOptions configure commands on this machine.
type LocalOptions struct {
	// Name is the host's name in messages; "" is localhost.
	Name string
	// SudoPassword is called if this user is not root and sudo requires a password; nil if there is none.
	SudoPassword Secret
	// Patience is as in SSHOptions.
	Patience time.Duration
}

// Local returns the machine that this program runs on. The error is a *SudoError if commands cannot become root.
func Local(ctx context.Context, o LocalOptions) (Host, error) {
	o.Name = cmp.Or(o.Name, "localhost")
	name := "this user"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	m := &machine{
		name: o.Name, start: &local{host: o.Name}, root: elevation{user: name},
		patience: cmp.Or(o.Patience, firstTimeout),
	}
	if err := m.elevate(ctx, remember(o.SudoPassword)); err != nil {
		return nil, err
	}
	return m, nil
}

// local starts programs on this machine.
type local struct{ host string }

func (l *local) close() error { return nil }

func (l *local) start(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.host, context.Cause(ctx))
	}
	// Not exec.CommandContext: a cancelled command is killed with all its children, see abandon.
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &localProcess{cmd: cmd}
	pipes := [2]io.ReadCloser{}
	var err [3]error
	p.stdin, err[0] = cmd.StdinPipe()
	pipes[0], err[1] = cmd.StdoutPipe()
	pipes[1], err[2] = cmd.StderrPipe()
	if err := errors.Join(err[:]...); err != nil {
		return nil, fmt.Errorf("%s: %w", l.host, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.host, err)
	}
	p.pipes = pipes
	p.copies.Go(func() { _, _ = io.Copy(stdout, pipes[0]) })
	p.copies.Go(func() { _, _ = io.Copy(stderr, pipes[1]) })
	return p, nil
}

type localProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	pipes  [2]io.ReadCloser
	copies sync.WaitGroup
	once   sync.Once
}

func (p *localProcess) Stdin() io.WriteCloser { return p.stdin }

func (p *localProcess) Wait() (int, error) {
	p.copies.Wait() // before cmd.Wait, which closes the pipes
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalCode + int(status.Signal()), nil
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

// signalCode is added to a signal's number to form an exit code, as in shells.
const signalCode = 128

func (p *localProcess) Kill() {
	p.once.Do(func() {
		_ = p.cmd.Process.Kill()
		for _, pipe := range p.pipes {
			_ = pipe.Close()
		}
	})
}
