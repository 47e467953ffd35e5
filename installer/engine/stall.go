package engine

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
)

const (
	// StallLimit is the default time without output, input or end after which a command is killed. It exceeds the
	// timeouts on hosts: systemd waits 10 minutes for the start of etcd and Harbor, kubeadm 5 for an upgraded
	// component.
	StallLimit = 15 * time.Minute
	// quietNotice is the silence before an event names the command. It doubles with each event.
	quietNotice = 2 * time.Minute
)

// A StalledError means that a command was killed because it showed no activity.
type StalledError struct{ Limit time.Duration }

// Error returns the time of silence.
func (e *StalledError) Error() string {
	return fmt.Sprintf("command produced no output for %s; killed", shortDuration(e.Limit))
}

// Hint returns the remedy.
func (e *StalledError) Hint() string {
	return "find the cause on the host (ps -eo pid,stat,wchan:32,args; state D means that a disk or a network file system does not answer: see dmesg), fix it and run again; if the command only takes long, raise --stall-limit"
}

// shortDuration writes 2m instead of 2m0s.
func shortDuration(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// A Watch reports commands that hang on a host, and finally ends them.
type Watch struct {
	Host  string
	Limit time.Duration
	Tell  func(task.Event)
}

// Watch returns the Watch for a host.
func (r *Run) Watch(name string) Watch {
	return Watch{Host: name, Limit: r.Options.StallLimit, Tell: r.Tell}
}

// Run runs a command, and ends it after Limit without activity. what returns its description.
func (w Watch) Run(ctx context.Context, h host.Host, cmd host.Cmd, what func() string) error {
	p := &pulse{since: time.Now()}
	if cmd.Stdin != nil {
		cmd.Stdin = &beatingReader{cmd.Stdin, p}
	}
	// Output that nobody reads is a sign of life, too.
	cmd.Stdout, cmd.Stderr = &beatingWriter{cmd.Stdout, p}, &beatingWriter{cmd.Stderr, p}
	w.Limit += task.PatienceOf(ctx)
	limited, end := context.WithCancelCause(ctx)
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		w.watch(ctx, p, what, ended, end)
	}()
	err := h.Run(limited, cmd)
	close(ended)
	<-watched // no event after the end of the command
	end(nil)
	return err
}

// watch reports a silent command, and calls end after Limit.
func (w Watch) watch(ctx context.Context, p *pulse, what func() string, ended <-chan struct{},
	end context.CancelCauseFunc,
) {
	notice := quietNotice
	timer := time.NewTimer(min(notice, w.Limit))
	defer timer.Stop()
	for {
		select {
		case <-ended:
			return
		case <-timer.C:
		}
		silent := p.silent()
		switch {
		case silent >= w.Limit:
			end(&StalledError{w.Limit})
			return
		case silent < quietNotice:
			notice = quietNotice
		case silent >= notice:
			w.notice(ctx, silent, what)
			notice *= 2
		}
		timer.Reset(min(notice, w.Limit) - silent)
	}
}

func (w Watch) notice(ctx context.Context, silent time.Duration, what func() string) {
	phase, step, ok := strings.Cut(task.NameOf(ctx), "/")
	if !ok {
		phase, step = "", phase
	}
	w.Tell(task.Event{
		Phase: phase, Task: step, Host: w.Host, State: task.Waiting,
		Message: fmt.Sprintf("silent for %s: %s", shortDuration(silent), what()),
	})
}

// A pulse is the time of a command's last activity.
type pulse struct {
	since time.Time
	last  atomic.Int64 // nanoseconds after since
}

func (p *pulse) beat() { p.last.Store(int64(time.Since(p.since))) }

func (p *pulse) silent() time.Duration { return time.Since(p.since) - time.Duration(p.last.Load()) }

type beatingWriter struct {
	to io.Writer // nil discards
	*pulse
}

func (w *beatingWriter) Write(p []byte) (int, error) {
	w.beat()
	if w.to == nil {
		return len(p), nil
	}
	return w.to.Write(p)
}

type beatingReader struct {
	from io.Reader
	*pulse
}

func (r *beatingReader) Read(p []byte) (int, error) {
	r.beat()
	return r.from.Read(p)
}

// CloseWithError closes a pipe, so that its writer stops.
func (r *beatingReader) CloseWithError(err error) error {
	if pipe, ok := r.from.(host.ClosableReader); ok {
		return pipe.CloseWithError(err)
	}
	return nil
}
