package installer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestEventually tries until something is so, and says what was not when the time is over: not that the last try was cut short.
func TestEventually(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries, ready := 0, errors.New("not ready")
		err := eventually(t.Context(), time.Minute, func(context.Context) error {
			if tries++; tries < 10 {
				return ready
			}
			return nil
		})
		if err != nil || tries != 10 {
			t.Errorf("got %v after %d tries", err, tries)
		}
		tries = 0
		begin := time.Now()
		err = eventually(t.Context(), time.Minute, func(ctx context.Context) error {
			if tries++; tries < 10 {
				return ready
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || err.Error() != "not ready (waited 1m0s)" || time.Since(begin) != time.Minute {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
	})
}
