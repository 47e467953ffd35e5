package upstream

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/web"
)

// TestGate lets fewer requests through when the host says that it is too many, and more again when it answers well.
func TestGate(t *testing.T) {
	t.Parallel()
	g := newGate(8)
	fill := func() (in []*pass) {
		for {
			select {
			case g.slots <- struct{}{}:
				in = append(in, &pass{g: g, round: g.round})
			default:
				return in
			}
		}
	}
	in := fill()
	for _, p := range in { // all are told so at once
		p.judge(&web.StatusError{Code: http.StatusTooManyRequests})
	}
	for _, p := range in {
		p.leave()
	}
	if in = fill(); len(in) != 4 {
		t.Fatalf("%d at once after one round that was too much", len(in))
	}
	for range 10 {
		in[0].round = g.round
		in[0].judge(&web.StatusError{Code: http.StatusServiceUnavailable})
	}
	for _, p := range in {
		p.leave()
	}
	if in = fill(); len(in) != 1 {
		t.Fatalf("%d at once though one is too many", len(in))
	}
	for range 100 {
		in[0].judge(&web.StatusError{Code: http.StatusPartialContent})
	}
	in[0].leave()
	if in = fill(); len(in) != 8 {
		t.Errorf("%d at once after many good answers", len(in))
	}
	for _, p := range in {
		p.leave()
	}
	g.hold(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.enter(ctx); err == nil || len(g.slots) != 0 {
		t.Errorf("%v, %d in use", err, len(g.slots))
	}
}

func TestMayTell(t *testing.T) {
	t.Parallel()
	v := &server{}
	began := time.Unix(1000, 0)
	for _, c := range []struct {
		after int
		want  bool
	}{{4, false}, {5, true}, {6, false}, {34, false}, {35, true}, {36, false}} {
		if got := v.mayTell(began, began.Add(time.Duration(c.after)*time.Second)); got != c.want {
			t.Errorf("after %d s: %v", c.after, got)
		}
	}
}
