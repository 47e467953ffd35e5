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
	// StallLimit is how long a command on a host may neither print, nor read what it is given, nor end, unless Options say
	// otherwise. It is more than what is waited for on hosts: systemd gives etcd and Harbor 10 minutes to start, kubeadm an
	// upgraded component 5.
	StallLimit = 15 * time.Minute
	// quietNotice is after how long such a command is named. It is named again each time that this has doubled.
	quietNotice = 2 * time.Minute
)

// A StalledError is a command that was ended because it had done nothing that can be seen for too long.
type StalledError struct{ Limit time.Duration }

// Error says for how long.
func (e *StalledError) Error() string {
	return fmt.Sprintf("it printed nothing and did not end for %s, and was given up", shortDuration(e.Limit))
}

// Hint says what to do about it.
func (e *StalledError) Hint() string {
	return "see on the host what it waits for (ps -eo pid,stat,wchan:32,args; a D is a disk or a network file system that does not answer: dmesg), mend that and run again; where it only takes long, give it more with --stall-limit"
}

// shortly writes a duration as people do: 2m and not 2m0s.
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

// A Watch looks after the commands on a host: one that hangs is named, and ended at last.
type Watch struct {
	Host  string
	Limit time.Duration
	Tell  func(task.Event)
}

func (r *Run) Watch(name string) Watch {
	return Watch{Host: name, Limit: r.Options.StallLimit, Tell: r.Tell}
}

// Run runs a command, and ends it when it is silent for too long. what says what the command is.
func (w Watch) Run(ctx context.Context, h host.Host, cmd host.Cmd, what func() string) error {
	p := &pulse{since: time.Now()}
	if cmd.Stdin != nil {
		cmd.Stdin = &beatingReader{cmd.Stdin, p}
	}
	// Writers that are not there are made: what nobody wants to read is a sign of life, too.
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
	<-watched // nothing is told of a command that has ended
	end(nil)
	return err
}

// look names a command that is silent, and calls end when it has been for the limit.
func (w Watch) watch(ctx context.Context, p *pulse, what func() string, ended <-chan struct{}, end context.CancelCauseFunc) {
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
			notice = quietNotice // it has moved
		case silent >= notice:
			w.notice(ctx, silent, what)
			notice *= 2
		}
		timer.Reset(min(notice, w.Limit) - silent)
	}
}

func (w Watch) notice(ctx context.Context, silent time.Duration, what func() string) {
	phase, step, ok := strings.Cut(task.TaskOf(ctx), "/")
	if !ok {
		phase, step = "", phase
	}
	w.Tell(task.Event{Phase: phase, Task: step, Host: w.Host, State: task.Waiting, Message: fmt.Sprintf("silent for %s: %s", shortDuration(silent), what())})
}

// A pulse is when a command has last moved.
type pulse struct {
	since time.Time
	last  atomic.Int64 // nanoseconds after since
}

func (p *pulse) beat() { p.last.Store(int64(time.Since(p.since))) }

func (p *pulse) silent() time.Duration { return time.Since(p.since) - time.Duration(p.last.Load()) }

type beatingWriter struct {
	to io.Writer // nil for nobody
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

// CloseWithError makes a pipe's other end learn that nobody reads any more.
func (r *beatingReader) CloseWithError(err error) error {
	if pipe, ok := r.from.(host.ClosableReader); ok {
		return pipe.CloseWithError(err)
	}
	return nil
}
