package terminal

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A VisitPrinter shows the number of hosts that answered: a live line on a terminal, otherwise a line every
// plainInterval. With --json, each host is an event.
type VisitPrinter struct {
	*Console
	total int
	timer *Meter // for the remaining time

	mu                sync.Mutex
	asked, done, lost int
	last              time.Time
	bar               *mpb.Bar
	end               func()
}

// NewVisitPrinter starts a VisitPrinter. It prints nothing if asks is false: a replay connects to no host.
func (c *Console) NewVisitPrinter(hosts int, asks bool) *VisitPrinter {
	p := &VisitPrinter{Console: c, total: hosts, timer: startMeter("hosts", time.Now), end: func() {}}
	p.last = p.timer.start
	f, isTerminal := c.File()
	switch {
	case c.Quiet || c.JSON || !asks:
	case isTerminal:
		// a complete bar ends before Stop
		p.bar, p.end = c.live(f, int64(hosts)+1, mpb.PrependDecorators(decor.Name("hosts ")),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return p.line() })))
	default:
		c.Note("asking %s", plain.Count(hosts, "host"))
	}
	return p
}

// Event counts one event. Calls must not overlap.
func (p *VisitPrinter) Event(e task.Event) {
	if e.Host == "" || e.State == task.Progress {
		return
	}
	p.mu.Lock()
	switch e.State {
	case task.Started:
		p.asked++
	case task.Failed:
		p.lost++
	default:
		p.done++
	}
	answered, now := p.done+p.lost, p.timer.now()
	due := p.bar == nil && now.Sub(p.last) >= plainInterval
	if due {
		p.last = now
	}
	p.mu.Unlock()
	if e.State != task.Started {
		var err error
		if e.State == task.Failed {
			err = errors.New(e.Message)
		}
		p.Item("precheck", ItemName{Kind: "host", Ref: e.Host}, err)
	}
	switch {
	case p.bar != nil:
		p.bar.SetCurrent(int64(answered))
	case due:
		p.Note("hosts: %s", p.line())
	}
}

// line returns the counts.
func (p *VisitPrinter) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%d of %d answered", p.done, p.total)
	if p.lost > 0 {
		text += fmt.Sprintf(", %d not reached", p.lost)
	}
	if asking := p.asked - p.done - p.lost; asking > 0 {
		text += fmt.Sprintf(", %d being asked", asking)
	}
	return text + ", ETA " + p.timer.eta(int64(p.done+p.lost), int64(p.total))
}

// Stop removes the live line.
func (p *VisitPrinter) Stop() { p.end() }
