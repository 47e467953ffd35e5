package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// outage runs a build of many files from one server. From the second request on it answers nothing properly, until so
// many requests were refused; it returns their number.
func outage(t *testing.T, refuse func(http.ResponseWriter), until int64) (refused int64, err error) {
	t.Helper()
	const files, attempts = 40, 6
	var asked, failed atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 && failed.Load() < until {
			failed.Add(1)
			refuse(w)
			return
		}
		_, _ = fmt.Fprint(w, r.URL.Path)
	}))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	o := fetch.Options{
		Store: newStore(t), Platforms: []string{"linux/amd64"}, Logger: slog.New(slog.DiscardHandler),
		Hosts: fetch.NewHosts(), Jobs: 8,
		Sources: []sources.Source{{Host: host, PlainHTTP: true}},
		Retry: fetch.Retry{
			Attempts: attempts, Wait: 2 * time.Millisecond, MaxWait: 20 * time.Millisecond,
			Idle: never,
		},
	}
	pins := make([]manifest.Pin, files)
	for i := range pins {
		path := fmt.Sprintf("/file-%d", i)
		pins[i] = filePin(srv.URL+path, []byte(path))
	}
	if _, err := fetch.All(t.Context(), lock(pins[0]), o); err != nil { // the host is known to work
		t.Fatal(err)
	}
	_, err = fetch.All(context.WithoutCancel(t.Context()), lock(pins[1:]...), o)
	return failed.Load(), err
}

func refusals() map[string]func(http.ResponseWriter) {
	return map[string]func(http.ResponseWriter){
		"bad gateway":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"unavailable":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"closed at once ": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
}

// TestOutageIsAskedByOne asserts that a host that answers nothing any more is asked by one job at a time, and that
// its outage is found out once and not for each file.
func TestOutageIsAskedByOne(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused, err := outage(t, refuse, 1<<40)
			var failed *fetch.Errors
			if !errors.As(err, &failed) || len(failed.Failed) != 39 {
				t.Fatalf("want 39 failed files, got %v", err)
			}
			// The requests that ran already, the attempts of one job, and one for each file after that.
			if most := int64(8 + 5 + 39); refused > most {
				t.Errorf("%d requests were refused, want at most %d", refused, most)
			}
		})
	}
}

// TestOutageThatEnds asserts that an outage shorter than the attempts fails nothing.
func TestOutageThatEnds(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := outage(t, refuse, 10); err != nil {
				t.Error(err)
			}
		})
	}
}
