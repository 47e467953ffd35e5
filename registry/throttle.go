package registry

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// A throttle bounds how many requests are under way at a registry. An answer that says too many halves the bound, and as many
// good answers as the bound raise it by one again, up to what the user allowed. While the registry asked for a pause, nothing
// starts.
type throttle struct {
	most int
	now  func() time.Time

	mu    sync.Mutex
	limit int
	busy  int
	good  int
	round int       // counts the times that the bound went down
	until time.Time // nothing starts before
	queue []chan struct{}
}

func newThrottle(most int) *throttle { return &throttle{most: most, limit: most, now: time.Now} }

// start waits for its turn. What it returns belongs to end.
func (t *throttle) start(ctx context.Context) (round int, err error) {
	t.mu.Lock()
	if t.busy >= t.limit {
		turn := make(chan struct{})
		t.queue = append(t.queue, turn)
		t.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			t.giveUp(turn)
			return 0, context.Cause(ctx)
		}
		t.mu.Lock()
	} else {
		t.busy++
	}
	pause := t.until.Sub(t.now())
	t.mu.Unlock()
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			t.end(0, nil)
			return 0, context.Cause(ctx)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.round, nil
}

// giveUp takes a place in the queue back, or hands on the turn that came meanwhile.
func (t *throttle) giveUp(turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range t.queue {
		if c == turn {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
			return
		}
	}
	t.busy--
	t.next()
}

// end counts a request's outcome. Those that were under way when the bound went down do not lower it again.
func (t *throttle) end(round int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	switch wait, over := overloaded(err); {
	case over && round == t.round:
		t.limit, t.good = max(1, t.limit/2), 0
		t.round++
		fallthrough
	case over:
		if until := t.now().Add(wait); wait > 0 && until.After(t.until) {
			t.until = until
		}
	case err == nil:
		if t.good++; t.good >= t.limit && t.limit < t.most {
			t.limit, t.good = t.limit+1, 0
		}
	}
	t.next()
}

func (t *throttle) next() {
	for t.busy < t.limit && len(t.queue) > 0 {
		close(t.queue[0])
		t.queue = t.queue[1:]
		t.busy++
	}
}

// overloaded says whether an answer asks for fewer requests, and for what pause.
func overloaded(err error) (wait time.Duration, over bool) {
	te, ok := asRegistryError(err)
	if !ok {
		return 0, false
	}
	switch te.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return retryAfter(err), true
	}
	return 0, false
}
