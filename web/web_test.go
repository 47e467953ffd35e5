package web_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
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

// TestRedirectToNowhere: an address that is not valid is not repeated, since it may have a password in it, and not
// asked for again.
func TestRedirectToNowhere(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://user:s3cret#x@127.0.0.1:1:2/f")
		w.WriteHeader(http.StatusFound)
	}))
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := web.Send(&http.Client{CheckRedirect: web.CheckRedirect}, req, web.Idle)
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("it was followed")
	}
	if strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "redirects to an address that is not valid") ||
		web.Passing(err) {
		t.Errorf("got %v, passing %v", err, web.Passing(err))
	}
}
