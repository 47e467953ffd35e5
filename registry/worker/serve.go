//go:build linux

package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// A Server is a registry inside this process.
type Server interface {
	Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error
	RunMetrics(ctx context.Context, l net.Listener) error
	Reload() error
	Close() error
}

// A Backend does the work of a worker.
type Backend struct {
	Open    func(ctx context.Context, o Options, log *slog.Logger) (Server, error)
	Collect func(ctx context.Context, o CollectOptions, log *slog.Logger) (Collected, error)
}

// Serve is the worker: it answers requests on standard input until kkbundle closes it. SIGTERM and Ctrl-C, which a
// terminal sends to both processes, let transfers finish.
func Serve(ctx context.Context, b Backend) error {
	signal.Ignore(syscall.SIGHUP) // kkbundle reloads
	ctx, cancel := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer cancel()
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0) // for ps and top, where it would be 3, the name of its file
	l, err := newLink(os.Stdin)
	if err != nil {
		return err
	}
	s := &served{Backend: b, link: l}
	buffer := make([]byte, maxMessage)
	for {
		var r request
		file, err := l.receive(&r, buffer)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("requests of kkbundle: %w", err)
		}
		if r.Do == stop {
			cancel()
			continue
		}
		go func() {
			a := answer{ID: r.ID}
			a.Failure = failed(s.do(ctx, r, file, &a))
			_ = l.send(a, nil) // without kkbundle, the worker ends
		}()
	}
}

// A served is the state of a worker. Its server is set before any request that needs it.
type served struct {
	Backend
	link
	server Server
	pair   atomic.Pointer[tls.Certificate]
}

func (s *served) do(ctx context.Context, r request, file *os.File, a *answer) (err error) {
	if r.Certificate != nil {
		pair, err := r.Certificate.unpack()
		if err != nil {
			return err
		}
		s.pair.Store(pair)
	}
	log := slog.New(&forward{link: s.link, level: r.Level})
	switch r.Do {
	case open:
		s.server, err = s.Open(ctx, *r.Open, log)
		return err
	case collect:
		c, err := s.Collect(ctx, *r.Collect, log)
		a.Collected = &c
		return err
	case run, metrics:
		l, err := net.FileListener(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
		if r.Do == metrics {
			return s.server.RunMetrics(ctx, l)
		}
		var current func() *tls.Certificate
		if r.Certificate != nil {
			current = s.pair.Load
		}
		return s.server.Run(ctx, l, current)
	case reload:
		return s.server.Reload()
	case closed:
		return s.server.Close()
	}
	return fmt.Errorf("request %q is unknown", r.Do)
}

// forward sends log records to kkbundle.
type forward struct {
	link
	level slog.Level
	attrs []attr
}

// Enabled implements slog.Handler.
func (f *forward) Enabled(_ context.Context, l slog.Level) bool { return l >= f.level }

// Handle implements slog.Handler.
func (f *forward) Handle(_ context.Context, r slog.Record) error {
	x := &record{Time: r.Time, Level: r.Level, Message: r.Message, Attrs: append([]attr(nil), f.attrs...)}
	r.Attrs(func(a slog.Attr) bool { x.Attrs = append(x.Attrs, packAttr(a)); return true })
	return f.send(answer{Record: x}, nil)
}

// WithAttrs implements slog.Handler.
func (f *forward) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *f
	more.attrs = append([]attr(nil), f.attrs...)
	for _, a := range attrs {
		more.attrs = append(more.attrs, packAttr(a))
	}
	return &more
}

// WithGroup implements slog.Handler. The registry's records have no groups.
func (f *forward) WithGroup(string) slog.Handler { return f }
