package registry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kkbundle/kkbundle/web"
)

func TestThrottle(t *testing.T) {
	t.Parallel()
	tooMany := &transport.Error{StatusCode: http.StatusTooManyRequests}
	th := newThrottle(8)
	start := func() int {
		round, err := th.start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return round
	}
	var rounds []int
	for range 8 {
		rounds = append(rounds, start())
	}
	for _, r := range rounds[:4] {
		th.end(r, tooMany)
	}
	if th.limit != 4 {
		t.Errorf("four answers of one round: limit %d, want 4", th.limit)
	}
	for _, r := range rounds[4:] {
		th.end(r, nil)
	}
	if th.limit != 5 { // four good ones
		t.Errorf("after as many good answers: limit %d, want 5", th.limit)
	}
	for range 3 {
		th.end(start(), tooMany)
	}
	if th.limit != 1 {
		t.Errorf("limit %d, want 1: it never stops all", th.limit)
	}
	for range 100 {
		th.end(start(), errors.New("other"))
	}
	if th.limit != 1 {
		t.Errorf("limit %d after other errors, want 1", th.limit)
	}
	for range 100 {
		th.end(start(), nil)
	}
	if th.limit != 8 || th.busy != 0 {
		t.Errorf("limit %d with %d under way, want 8 and none", th.limit, th.busy)
	}
}

// TestThrottleWaits: who waits gets a turn when another ends, and gives it back when he gives up.
func TestThrottleWaits(t *testing.T) {
	t.Parallel()
	th := newThrottle(1)
	first, err := th.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := th.start(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	turn := make(chan error)
	go func() {
		_, err := th.start(t.Context())
		turn <- err
	}()
	th.end(first, nil)
	if err := <-turn; err != nil {
		t.Error(err)
	}
}

// TestThrottlePauses: the registry's Retry-After holds for all requests.
func TestThrottlePauses(t *testing.T) {
	t.Parallel()
	th := newThrottle(4)
	now := time.Unix(0, 0)
	th.now = func() time.Time { return now }
	round, _ := th.start(t.Context())
	th.end(round, &web.StatusError{After: time.Hour, Err: &transport.Error{StatusCode: http.StatusServiceUnavailable}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := th.start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a request started in the pause: %v", err)
	}
	now = now.Add(web.MaxRetryAfter)
	if _, err := th.start(ctx); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}
