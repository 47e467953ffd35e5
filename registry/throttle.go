package registry

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/web"
)

// A throttle bounds the concurrent requests to a registry. An answer about too many requests halves the bound; as many
// good answers as the bound raise it by one again, up to the user's limit. Nothing starts during a pause requested by
// the registry.
type throttle struct {
	most int
	now  func() time.Time

	mu    sync.Mutex
	limit int
	busy  int
	good  int
	round int       // number of reductions
	until time.Time // end of the pause
	queue []chan struct{}
}

func newThrottle(most int) *throttle { return &throttle{most: most, limit: most, now: time.Now} }

// start waits for its turn. Pass the result to end.
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

// giveUp leaves the queue, or hands on a turn received meanwhile.
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

// end records a request's outcome. Requests already running at a reduction do not cause another.
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

// overloaded reports whether an answer asks for fewer requests, and for how long.
func overloaded(err error) (wait time.Duration, over bool) {
	te, ok := asRegistryError(err)
	if !ok {
		return 0, false
	}
	switch te.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if status := web.Status(err); status != nil {
			wait = min(status.After, web.MaxRetryAfter)
		}
		return wait, true
	}
	return 0, false
}
