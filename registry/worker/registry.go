//go:build linux

package worker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
)

// A Registry is a registry in a worker. Its methods are those of embedded.Registry.
type Registry struct {
	*process
	certificate atomic.Pointer[func() *tls.Certificate] // set by Run
}

// Open starts the program as a worker that opens a registry. The error is a *dirlock.LockedError if another process
// may write there.
func Open(ctx context.Context, program []byte, o Options, log *slog.Logger) (*Registry, error) {
	p, err := start(ctx, program, log)
	if err != nil {
		return nil, err
	}
	if _, err := p.ask(ctx, request{Do: open, Open: &o}, nil); err != nil {
		return nil, errors.Join(err, p.end())
	}
	return &Registry{process: p}, nil
}

// Collect collects garbage in a worker. The error is a *dirlock.LockedError while a registry may write.
func Collect(ctx context.Context, program []byte, o CollectOptions, log *slog.Logger) (Collected, error) {
	p, err := start(ctx, program, log)
	if err != nil {
		return Collected{}, err
	}
	a, err := p.ask(ctx, request{Do: collect, Collect: &o}, nil)
	if err := errors.Join(err, p.end()); err != nil {
		return Collected{}, err
	}
	return *a.Collected, nil
}

// Run serves on the listener until ctx ends, gives running transfers some time to finish, and closes it. certificate
// is called here and at each Reload; nil is plain HTTP.
func (r *Registry) Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error {
	if certificate != nil {
		r.certificate.Store(&certificate)
	}
	return r.listen(ctx, run, l)
}

// RunMetrics serves /metrics and /healthz on a separate listener until ctx ends.
func (r *Registry) RunMetrics(ctx context.Context, l net.Listener) error {
	return r.listen(ctx, metrics, l)
}

func (r *Registry) listen(ctx context.Context, do verb, l net.Listener) error {
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	x := request{Do: do}
	if do == run {
		if err := r.addCertificate(&x); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	_, err = r.ask(ctx, x, f)
	return err
}

func (r *Registry) addCertificate(x *request) (err error) {
	if current := r.certificate.Load(); current != nil {
		x.Certificate, err = packCertificate((*current)())
	}
	return err
}

// Reload reads the users files again, and hands the current certificate over.
func (r *Registry) Reload() error {
	x := request{Do: reload}
	if err := r.addCertificate(&x); err != nil {
		return err
	}
	_, err := r.ask(context.Background(), x, nil)
	return err
}

// Close ends the registry and its process. Run must have ended.
func (r *Registry) Close() error {
	_, err := r.ask(context.Background(), request{Do: closed}, nil)
	return errors.Join(err, r.end())
}

// A process is a worker.
type process struct {
	link
	cmd  *exec.Cmd
	log  *slog.Logger
	done chan struct{} // closed when the worker has ended

	mu      sync.Mutex
	waiting map[int]chan answer
	last    int   // ID
	ended   error // why, once done is closed
}

func start(ctx context.Context, program []byte, log *slog.Logger) (*process, error) {
	cmd, l, err := launch(program)
	if err != nil {
		return nil, err
	}
	return newProcess(ctx, cmd, l, log), nil
}

// newProcess takes only the values of ctx for log records: Close ends the process.
func newProcess(ctx context.Context, cmd *exec.Cmd, l link, log *slog.Logger) *process {
	p := &process{link: l, cmd: cmd, log: log, done: make(chan struct{}), waiting: map[int]chan answer{}}
	go p.read(context.WithoutCancel(ctx))
	return p
}

// read takes answers and records until the worker ends.
func (p *process) read(ctx context.Context) {
	buffer := make([]byte, maxMessage)
	var err error
	for err == nil {
		var a answer
		if _, err = p.receive(&a, buffer); err != nil {
			break
		}
		if a.Record != nil {
			p.write(ctx, a.Record)
			continue
		}
		p.mu.Lock()
		c := p.waiting[a.ID]
		delete(p.waiting, a.ID)
		p.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = nil
	}
	p.ended = errors.Join(err, p.conn.Close(), p.cmd.Wait())
	close(p.done)
}

func (p *process) write(ctx context.Context, r *record) {
	x := slog.NewRecord(r.Time, r.Level, r.Message, 0)
	for _, a := range r.Attrs {
		x.AddAttrs(a.unpack())
	}
	_ = p.log.Handler().Handle(ctx, x) // a log is not checked
}

// level returns the lowest level that is logged.
func (p *process) level(ctx context.Context) slog.Level {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if p.log.Enabled(ctx, l) {
			return l
		}
	}
	return slog.LevelError
}

// ask sends a request, closes its file and returns the answer. When ctx ends, it asks the worker to stop and still
// waits for the answer.
func (p *process) ask(ctx context.Context, r request, file *os.File) (answer, error) {
	c := make(chan answer, 1)
	p.mu.Lock()
	p.last++
	r.ID, r.Level = p.last, p.level(ctx)
	p.waiting[r.ID] = c
	p.mu.Unlock()
	err := p.send(r, file)
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", name, err)
	}
	interrupted := ctx.Done()
	for {
		select {
		case <-interrupted:
			interrupted = nil
			_ = p.send(request{Do: stop}, nil) // a worker that has ended is reported below
		case <-p.done:
			return answer{}, fmt.Errorf("%s ended by itself: %w", name, cmp.Or(p.ended, io.ErrUnexpectedEOF))
		case a := <-c:
			if a.Failure != nil {
				return a, &workerError{*a.Failure, ctx.Err()}
			}
			return a, nil
		}
	}
}

// end closes the worker's socket, which ends it.
func (p *process) end() error {
	if err := p.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	<-p.done
	return nil
}
