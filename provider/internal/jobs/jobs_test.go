package jobs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kkbundle/kkbundle/provider/internal/jobs"
)

// TestPool: a job that hangs holds one place only, a key has one job at a time, and a job that waits can be cancelled.
func TestPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told int
		p := jobs.New(2, []string{"k", "other"}, func(string) { told++ })
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = p.Run(ctx) }()
		hang := func(ctx context.Context, reached func(string)) (any, error) {
			reached("slow")
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		if !p.Start("a", "k", nil, hang) || p.Start("a", "k", nil, hang) {
			t.Error("a key has exactly one job")
		}
		for _, key := range []string{"b", "c"} {
			p.Start(key, "k", nil, func(context.Context, func(string)) (any, error) { return key, nil })
			synctest.Wait()
			if s, ok := p.Look(key); !ok || !s.Done || s.Value != key || s.Err != nil {
				t.Errorf("%s beside a job that hangs: %+v", key, s)
			}
		}
		p.Start("d", "k", nil, hang)
		synctest.Wait()
		p.Start("e", "k", nil, hang)
		synctest.Wait()
		if s, _ := p.Look("e"); s.Began || s.Done {
			t.Errorf("three at work in a pool of two: %+v", s)
		}
		if s, _ := p.Look("d"); !s.Began || s.Phase != "slow" {
			t.Errorf("the phase is lost: %+v", s)
		}
		waits := make(chan struct{})
		p.Start("g", "other", func(context.Context) error { <-waits; return nil }, func(context.Context, func(string)) (any, error) { return "g", nil })
		p.Start("h", "other", func(context.Context) error { return errors.New("not there") }, hang)
		synctest.Wait()
		if s, _ := p.Look("g"); s.Ready || s.Began {
			t.Errorf("a job that is not prepared has a place: %+v", s)
		}
		if s, _ := p.Look("h"); !s.Done || s.Began || s.Err == nil || s.Err.Error() != "not there" {
			t.Errorf("a job that could not be prepared: %+v", s)
		}
		close(waits)
		synctest.Wait()
		if s, _ := p.Look("g"); !s.Done || s.Value != "g" {
			t.Errorf("a kind waits for the places of another: %+v", s)
		}
		p.Forget("d")
		if _, ok := p.Look("d"); !ok {
			t.Error("a job at work was forgotten")
		}
		p.Cancel("e")
		p.Cancel("d")
		synctest.Wait()
		for _, key := range []string{"d", "e"} {
			if s, _ := p.Look(key); !s.Done || !errors.Is(s.Err, jobs.ErrCancelled) {
				t.Errorf("%s was not cancelled: %+v", key, s)
			}
			p.Forget(key)
			if _, ok := p.Look(key); ok {
				t.Errorf("%s was not forgotten", key)
			}
		}
		cancel()
		synctest.Wait()
		if s, _ := p.Look("a"); !s.Done {
			t.Error("the end of the manager ends jobs")
		}
		if p.Start("f", "k", nil, hang) {
			t.Error("a job began after the end")
		}
		if told == 0 {
			t.Error("nothing was told")
		}
	})
}
