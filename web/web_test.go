package web_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/web"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"7": 7 * time.Second, "": 0, "-5": 0, "soon": 0, "99999999999999999999": 0,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := web.RetryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q: got %s, want %s", value, got, want)
		}
	}
}

func TestBackoffIsBounded(t *testing.T) {
	t.Parallel()
	b := web.Patience()
	for attempt := 1; attempt < 100; attempt++ {
		if wait := b.Pause(attempt); wait < b.First/2 || wait > b.Longest {
			t.Errorf("attempt %d: %s", attempt, wait)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("7")
	f.Add("Wed, 21 Oct 2026 07:28:00 GMT")
	f.Add("-1")
	f.Fuzz(func(t *testing.T, value string) {
		if d := web.RetryAfter(http.Header{"Retry-After": {value}},
			time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)); d < 0 {
			t.Errorf("%q: %s", value, d)
		}
	})
}
