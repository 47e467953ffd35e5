package cli

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/kkbundle/kkbundle/plain"
)

// plainInterval is how often progress is printed where no terminal can redraw a line: often enough to see that it lives,
// rare enough for a CI log.
const plainInterval = 10 * time.Second

// A meter shows how far a transfer of bytes is: one live line on a terminal, a line now and then elsewhere, events with
// --json, nothing with --quiet. Its methods may be called concurrently.
type meter struct {
	name  string
	now   func() time.Time
	start time.Time
	bar   *mpb.Bar  // nil without a terminal
	end   func()    // takes the live line away
	out   io.Writer // plain lines; nil prints none
	watch *events   // nil emits none

	mu       sync.Mutex // of lines only: the bar calls back while it is told something, and has locks of its own
	last     time.Time
	lastDone int64
}

// A console is a stream that may be a terminal with a live line at its end: what is written meanwhile appears above that.
type console struct {
	out  io.Writer
	live atomic.Pointer[mpb.Progress]
	// matrix is the live picture of a run of the installer.
	matrix atomic.Pointer[matrix]
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	if m := c.matrix.Load(); m != nil {
		return m.Write(p)
	}
	if live := c.live.Load(); live != nil {
		if n, err := live.Write(p); !errors.Is(err, mpb.ErrDone) {
			return n, err
		}
	}
	return c.out.Write(p)
}

func (g *globals) newMeter(name string) *meter {
	m := startMeter(name, time.Now)
	if g.watched() {
		m.watch = g.events
	}
	if g.quiet || g.json {
		return m
	}
	f, isTerminal := g.terminal()
	if !isTerminal {
		m.out = g.Err
		return m
	}
	pool := mpb.New(mpb.WithOutput(f), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
	m.bar = pool.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name+" "), decor.Percentage(decor.WCSyncSpace)),
		mpb.AppendDecorators(
			decor.CountersKibiByte("% .1f / % .1f "),
			decor.AverageSpeed(decor.SizeB1024(0), "% .1f "),
			decor.Any(func(s decor.Statistics) string { return "ETA " + m.eta(s.Current, s.Total) }),
		))
	g.console.live.Store(pool)
	m.end = sync.OnceFunc(func() {
		m.bar.Abort(true)
		pool.Wait()
		g.console.live.Store(nil)
	})
	return m
}

func startMeter(name string, now func() time.Time) *meter {
	start := now()
	return &meter{name: name, now: now, start: start, last: start, end: func() {}}
}

// set says that done of total bytes are there. The total may grow as more becomes known.
func (m *meter) set(done, total int64) {
	switch {
	case m.bar != nil:
		m.bar.SetTotal(max(total, done+1), false) // never complete before stop
		m.bar.SetCurrent(done)
	case m.out != nil:
		m.plain(done, total)
	case m.watch != nil:
		m.emit(done, total)
	}
}

func (m *meter) emit(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.now(); now.Sub(m.last) >= eventInterval {
		m.last = now
		m.watch.emit(event{Event: "progress", Phase: m.name, Done: &done, Total: &total})
	}
}

func (m *meter) plain(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if now.Sub(m.last) < plainInterval || total <= 0 {
		return
	}
	speed := float64(max(done-m.lastDone, 0)) / now.Sub(m.last).Seconds()
	m.last, m.lastDone = now, done
	_, _ = fmt.Fprintf(m.out, "%s: %s of %s, %s/s, ETA %s\n", m.name, plain.Size(done), plain.Size(total), plain.Size(int64(speed)), m.eta(done, total))
}

// eta extrapolates from the whole run, which no single stalled or cached item distorts much.
func (m *meter) eta(done, total int64) string {
	elapsed := m.now().Sub(m.start)
	if done <= 0 || total <= done || elapsed < time.Second {
		return "-"
	}
	left := time.Duration(float64(elapsed) * float64(total-done) / float64(done))
	return left.Round(time.Second).String()
}

// stop takes the live line away; a second call does nothing.
func (m *meter) stop() { m.end() }
