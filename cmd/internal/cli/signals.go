package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A signalError is the error of a run that a signal ended, and the cause of its context.
type signalError struct {
	syscall.Signal
	err error // of the run
}

// Error returns the run's error, if there is one.
func (e *signalError) Error() string {
	if e.err == nil {
		return e.String()
	}
	return e.err.Error()
}

// Unwrap returns the run's error.
func (e *signalError) Unwrap() error { return e.err }

// endedBy reports whether a signal ended the run.
func endedBy(err error, s syscall.Signal) bool {
	e, ok := errors.AsType[*signalError](err)
	return ok && e.Signal == s
}

// WithSignals returns a context that ends at the signals that end a program: commands remove unfinished files then. A
// second Ctrl-C or SIGTERM ends the program at once. SIGPIPE counts only if nobody reads the output or the messages
// any more: an error of a network connection has it, too.
func WithSignals(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	pipes := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(pipes, syscall.SIGPIPE)
	go func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case s := <-signals:
				cancel(&signalError{Signal: s.(syscall.Signal)})
			case <-pipes:
				if unread() {
					cancel(&signalError{Signal: syscall.SIGPIPE})
				}
			}
		}
		// not SIGHUP, which comes twice: from the terminal and from the shell
		signal.Reset(os.Interrupt, syscall.SIGTERM)
	}()
	return ctx, func() { cancel(nil) }
}

// ended returns the error of a run, which is a signalError if a signal ended it. The run may see the closed pipe
// before its context ends.
func ended(ctx context.Context, err error, downloaded *interruptedDownloadError) error {
	s, ok := errors.AsType[*signalError](context.Cause(ctx))
	switch {
	case ok:
		return &signalError{s.Signal, interrupted(ctx, err, downloaded)}
	case ctx.Err() != nil:
		return interrupted(ctx, err, downloaded)
	case errors.Is(err, syscall.EPIPE) && unread():
		return &signalError{syscall.SIGPIPE, err}
	}
	return err
}

// unread reports whether standard output or standard error is a pipe, a connection or a terminal whose other end is
// closed.
func unread() bool {
	fds := []unix.PollFd{{Fd: int32(syscall.Stdout)}, {Fd: int32(syscall.Stderr)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && (fds[0].Revents|fds[1].Revents)&(unix.POLLERR|unix.POLLHUP) != 0
}
