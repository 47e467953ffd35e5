package terminal

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// plainInterval is the time between two lines of progress without a terminal: a sign of life that does not fill a CI
// log.
const plainInterval = 10 * time.Second

// A Meter shows the progress of a transfer: a live line on a terminal, otherwise a line every plainInterval, events
// with --json, nothing with --quiet. Its methods are safe for concurrent use.
type Meter struct {
	Name  string
	now   func() time.Time
	start time.Time
	bar   *mpb.Bar  // nil without a terminal
	end   func()    // removes the live line
	out   io.Writer // for plain lines; nil prints none
	watch *events   // nil emits none

	items struct {
		sync.Mutex // the bar reads while it is drawn
		names      []string
	}

	mu       sync.Mutex // guards plain lines; the bar has its own locks and calls back while it is updated
	last     time.Time
	lastDone int64
}

// NewMeter starts a meter for a phase. Stop it at the end.
func (c *Console) NewMeter(name string) *Meter {
	m := startMeter(name, time.Now)
	if c.Watched() {
		m.watch = c.events
	}
	if c.Quiet || c.JSON {
		return m
	}
	f, isTerminal := c.File()
	if !isTerminal {
		m.out = c.Err
		return m
	}
	c.screen.meters.Lock()
	defer c.screen.meters.Unlock()
	if c.screen.meters.stopped {
		return m
	}
	// When a bar is aborted, mpb draws it once more. That frame is empty, so that nothing of it stays on the screen.
	shown := func(d decor.Decorator) decor.Decorator { return decor.OnAbort(d, "") }
	m.bar, m.end = c.live(f, 0, mpb.BarFillerMiddleware(emptyOnAbort),
		mpb.PrependDecorators(shown(decor.Name("\r"+name+" ")), shown(decor.Percentage(decor.WCSyncSpace))),
		mpb.AppendDecorators(
			shown(decor.CountersKibiByte("% .1f / % .1f ")),
			shown(decor.AverageSpeed(decor.SizeB1024(0), "% .1f ")),
			shown(decor.Any(func(s decor.Statistics) string {
				return "ETA " +
					m.eta(s.Current, s.Total) + m.doing(" ")
			})),
		))
	c.screen.meters.end = m.end
	return m
}

// emptyOnAbort shows nothing in the place of an aborted bar.
func emptyOnAbort(base mpb.BarFiller) mpb.BarFiller {
	return mpb.BarFillerFunc(func(w io.Writer, s decor.Statistics) error {
		if s.Aborted {
			return nil
		}
		return base.Fill(w, s)
	})
}

// StopMeters removes the live line of the meter and keeps further ones from showing one. It is for an interrupted
// run, which does not go on and may take a moment to end.
func (c *Console) StopMeters() {
	c.screen.meters.Lock()
	defer c.screen.meters.Unlock()
	c.screen.meters.stopped = true
	if c.screen.meters.end != nil {
		c.screen.meters.end()
	}
}

// live shows a bar at the end of the screen until end is called.
func (c *Console) live(f *os.File, total int64, options ...mpb.BarOption) (bar *mpb.Bar, end func()) {
	pool := mpb.New(mpb.WithOutput(f), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
	bar = pool.AddBar(total, append(options, mpb.BarRemoveOnComplete())...)
	c.screen.live.Store(pool)
	return bar, sync.OnceFunc(func() {
		bar.Abort(true)
		pool.Wait()
		_, _ = io.WriteString(f, "\r\x1b[J") // Ctrl-C moved the cursor: the terminal shows ^C
		c.screen.live.Store(nil)
	})
}

func startMeter(name string, now func() time.Time) *Meter {
	start := now()
	return &Meter{Name: name, now: now, start: start, last: start, end: func() {}}
}

// Set reports that done of total bytes are transferred. The total may grow.
func (m *Meter) Set(done, total int64) {
	switch {
	case m.bar != nil:
		m.bar.SetTotal(max(total, done+1), false) // a complete bar ends before Stop
		m.bar.SetCurrent(done)
	case m.out != nil:
		m.plain(done, total)
	case m.watch != nil:
		m.emit(done, total)
	}
}

func (m *Meter) emit(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.now(); now.Sub(m.last) >= eventInterval {
		m.last = now
		m.watch.emit(Event{Event: "progress", Phase: m.Name, Done: &done, Total: &total})
	}
}

func (m *Meter) plain(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if now.Sub(m.last) < plainInterval || total <= 0 {
		return
	}
	speed := float64(max(done-m.lastDone, 0)) / now.Sub(m.last).Seconds()
	m.last, m.lastDone = now, done
	_, _ = fmt.Fprintf(m.out, "%s: %s of %s, %s/s, ETA %s%s\n", m.Name, plain.Size(done), plain.Size(total),
		plain.Size(int64(speed)), m.eta(done, total), m.doing(": "))
}

// Begin notes that work on an item began.
func (m *Meter) Begin(name string) {
	m.items.Lock()
	defer m.items.Unlock()
	m.items.names = append(m.items.names, name)
}

// Finish notes that work on an item ended.
func (m *Meter) Finish(name string) {
	m.items.Lock()
	defer m.items.Unlock()
	if i := slices.Index(m.items.names, name); i >= 0 {
		m.items.names = slices.Delete(m.items.names, i, i+1)
	}
}

// doing returns the item that was begun first, and the number of others, after a separator; "" without items.
func (m *Meter) doing(separator string) string {
	const most = 32
	m.items.Lock()
	defer m.items.Unlock()
	n := len(m.items.names)
	if n == 0 {
		return ""
	}
	text := separator + plain.Clip(plain.Line(path.Base(m.items.names[0])), most)
	if n > 1 {
		text += fmt.Sprintf(" +%d", n-1)
	}
	return text
}

// eta extrapolates from the whole run, so that a stalled or cached item distorts it little.
func (m *Meter) eta(done, total int64) string {
	elapsed := m.now().Sub(m.start)
	if done <= 0 || total <= done || elapsed < time.Second {
		return "-"
	}
	left := time.Duration(float64(elapsed) * float64(total-done) / float64(done))
	return left.Round(time.Second).String()
}

// Stop removes the live line. A second call does nothing.
func (m *Meter) Stop() { m.end() }

// Phases returns a function that shows the progress of successive phases. Call stop at the end.
func (c *Console) Phases() (progress func(phase string, done, total int64), stop func()) {
	var mu sync.Mutex
	var m *Meter
	progress = func(phase string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if m == nil || m.Name != phase {
			if m != nil {
				m.Stop()
			}
			m = c.NewMeter(phase)
		}
		m.Set(done, total)
	}
	return progress, func() {
		if m != nil {
			m.Stop()
		}
	}
}
