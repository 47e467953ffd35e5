package cli

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/plain"
)

// A visitPrinter shows how many hosts have answered: a live line on a terminal, a line now and then elsewhere, and with
// --json an event for each host.
type visitPrinter struct {
	*globals
	total int
	timer *meter // for the time that is left

	mu                sync.Mutex
	asked, done, lost int
	last              time.Time
	bar               *mpb.Bar
	end               func()
}

// newVisitPrinter starts it for a number of hosts. Unless they are asked there is nothing to show.
func (g *globals) newVisitPrinter(hosts int, asks bool) *visitPrinter {
	p := &visitPrinter{globals: g, total: hosts, timer: startMeter("hosts", time.Now), end: func() {}}
	p.last = p.timer.start
	f, isTerminal := g.terminal()
	switch {
	case g.quiet || g.json || !asks:
	case isTerminal:
		pool := mpb.New(mpb.WithOutput(f), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
		p.bar = pool.AddBar(int64(hosts)+1, mpb.BarRemoveOnComplete(), // never complete before stop
			mpb.PrependDecorators(decor.Name("hosts ")),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return p.line() })))
		g.console.live.Store(pool)
		p.end = sync.OnceFunc(func() {
			p.bar.Abort(true)
			pool.Wait()
			g.console.live.Store(nil)
		})
	default:
		g.note("asking %s", plain.Count(hosts, "host"))
	}
	return p
}

// event is called with one event at a time.
func (p *visitPrinter) event(e task.Event) {
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
		p.item("precheck", itemName{Kind: "host", Ref: e.Host}, err)
	}
	switch {
	case p.bar != nil:
		p.bar.SetCurrent(int64(answered))
	case due:
		p.note("hosts: %s", p.line())
	}
}

// line is how far it is.
func (p *visitPrinter) line() string {
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

// stop takes the live line away.
func (p *visitPrinter) stop() { p.end() }
