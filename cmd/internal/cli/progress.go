package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// plainInterval is how often progress is printed where no terminal can redraw a line: often enough to see that it lives,
// rare enough for a CI log.
const plainInterval = 10 * time.Second

// A meter shows how far a transfer of bytes is: one live line on a terminal, a line now and then elsewhere, nothing with
// --quiet or --json. Its methods may be called concurrently.
type meter struct {
	name  string
	start time.Time
	bar   *mpb.Bar
	pool  *mpb.Progress
	out   io.Writer // plain lines; nil prints none

	mu          sync.Mutex
	done, total int64
	last        time.Time
	lastDone    int64
}

func (g *globals) newMeter(name string) *meter {
	now := time.Now()
	m := &meter{name: name, start: now, last: now}
	if g.quiet || g.json {
		return m
	}
	f, isTerminal := g.terminal()
	if !isTerminal {
		m.out = g.Err
		return m
	}
	m.pool = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
	m.bar = m.pool.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name+" "), decor.Percentage(decor.WCSyncSpace)),
		mpb.AppendDecorators(
			decor.CountersKibiByte("% .1f / % .1f "),
			decor.AverageSpeed(decor.SizeB1024(0), "% .1f "),
			decor.Any(func(decor.Statistics) string { return "ETA " + m.eta() }),
		))
	return m
}

// set says that done of total bytes are there. The total may grow as more becomes known.
func (m *meter) set(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done, m.total = done, total
	if m.bar != nil {
		m.bar.SetTotal(max(total, done+1), false) // never complete before stop
		m.bar.SetCurrent(done)
		return
	}
	if now := time.Now(); m.out != nil && now.Sub(m.last) >= plainInterval {
		speed := float64(done-m.lastDone) / now.Sub(m.last).Seconds()
		m.last, m.lastDone = now, done
		_, _ = fmt.Fprintf(m.out, "%s: %s of %s, %s/s, ETA %s\n", m.name, size(done), size(total), size(int64(speed)), m.etaLocked())
	}
}

func (m *meter) eta() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.etaLocked()
}

// etaLocked extrapolates from the whole run, which no single stalled or cached item distorts much.
func (m *meter) etaLocked() string {
	elapsed := time.Since(m.start)
	if m.done <= 0 || m.total <= m.done || elapsed < time.Second {
		return "-"
	}
	left := time.Duration(float64(elapsed) * float64(m.total-m.done) / float64(m.done))
	return left.Round(time.Second).String()
}

// stop takes the live line away.
func (m *meter) stop() {
	if m.bar != nil {
		m.bar.Abort(true)
		m.pool.Wait()
	}
}
