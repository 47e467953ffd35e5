package upstream

import (
	"context"
	"sync"
	"time"
)

// A breaker keeps the jobs of a run from all asking a host that answers nothing properly. One of them asks at a time;
// the others wait and count its failures as their own. After a job has used up its attempts, every further request is
// the only attempt, until the host answers properly again. It is safe for concurrent use.
type breaker struct {
	mu     sync.Mutex
	fine   time.Time // the last proper answer
	failed int       // probes that failed since then
	open   bool      // a job has used up its attempts since then
	test   *probe    // the request that the others wait for, nil if there is none
}

// A probe is the one request to a host in trouble.
type probe struct{ ended chan struct{} }

// answered records a proper answer.
func (b *breaker) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fine, b.failed, b.open = time.Now(), 0, false
	b.finish()
}

// usedUp records that a job whose trouble began then has no attempts left.
func (b *breaker) usedUp(began time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = b.open || b.fine.Before(began)
}

// isOpen reports whether requests have a single attempt.
func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// next returns the number of failed attempts after one more: the job's own n, or the probes since the trouble began.
func (b *breaker) next(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(n, b.failed) + 1
}

// turn waits until a job with n failed attempts, the first of them at the time began, may ask again. It returns the
// job's probe, or nil if the host answers others properly. It returns false if more probes have failed than the job
// knows of.
func (b *breaker) turn(ctx context.Context, began time.Time, n int) (mine *probe, ok bool, err error) {
	for {
		b.mu.Lock()
		other := b.test
		switch {
		case b.fine.After(began):
			b.mu.Unlock()
			return nil, true, nil
		case b.open || b.failed >= n:
			b.mu.Unlock()
			return nil, false, nil
		case other == nil:
			mine = &probe{ended: make(chan struct{})}
			b.test = mine
			b.mu.Unlock()
			return mine, true, nil
		}
		b.mu.Unlock()
		select {
		case <-other.ended:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// fail ends a job's probe that had no proper answer. It does nothing if the probe has ended, and for nil.
func (b *breaker) fail(p *probe) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p != nil && p == b.test {
		b.failed++
		b.finish()
	}
}

func (b *breaker) finish() {
	if b.test != nil {
		close(b.test.ended)
		b.test = nil
	}
}
