package upstream

import (
	"context"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/web"
)

// A gate bounds the concurrent requests to one host, and holds all of them back while the host asks clients to wait.
// The bound is halved when the host reports too many requests, and grows by one for each round of good answers, like
// TCP's congestion control.
type gate struct {
	slots chan struct{}

	mu       sync.Mutex
	until    time.Time
	allowed  int // usable part of cap(slots)
	withheld int // slots kept unused; the last ones follow when their requests end
	round    int // number of halvings: several refusals in one round halve the bound once
	good     int // good answers since the bound changed
}

func newGate(limit int) *gate { return &gate{slots: make(chan struct{}, limit), allowed: limit} }

// enter waits until a request may be sent. Its end must be reported to the returned pass.
func (g *gate) enter(ctx context.Context) (*pass, error) {
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for {
		g.mu.Lock()
		p, pause := &pass{g: g, round: g.round}, time.Until(g.until)
		g.mu.Unlock()
		if pause <= 0 {
			return p, nil
		}
		if err := web.Sleep(ctx, pause); err != nil {
			p.leave()
			return nil, err
		}
	}
}

// hold blocks all requests for a while.
func (g *gate) hold(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := time.Now().Add(d); until.After(g.until) {
		g.until = until
	}
}

// A pass is one request in progress.
type pass struct {
	g     *gate
	round int
}

// crowded records that the host reported too many requests.
func (p *pass) crowded() {
	g := p.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.round != g.round {
		return // another request of this round has reported it
	}
	g.round++
	g.good = 0
	g.allowed = max(1, g.allowed/2)
}

// fine records a good answer.
func (p *pass) fine() {
	g := p.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.allowed == cap(g.slots) {
		return
	}
	if g.good++; g.good < g.allowed {
		return
	}
	g.good = 0
	g.allowed++
	if g.withheld > cap(g.slots)-g.allowed {
		g.withheld--
		<-g.slots
	}
}

// leave ends the request.
func (p *pass) leave() {
	g := p.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.withheld < cap(g.slots)-g.allowed {
		g.withheld++
		return
	}
	<-g.slots
}
