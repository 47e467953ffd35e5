package upstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kkbundle/kkbundle/web"
)

const (
	// quietFor is how long trouble with a host lasts before it is logged, and tellEvery the interval of further log
	// lines.
	quietFor  = 5 * time.Second
	tellEvery = 30 * time.Second
)

// LevelNote is the level of log records that people should see and that are no warnings.
const LevelNote = slog.LevelInfo + 2

// Hosts holds a run's knowledge about the contacted hosts: how many requests they accept, and which are unreachable. A
// run of several calls (Resolve, Prepare, All) shares one, so that it waits only once for a mirror that is down. It is
// safe for concurrent use.
type Hosts struct {
	mu      sync.Mutex
	servers map[string]*server
	told    map[string]bool // images about which people were told
}

// NewHosts returns an empty Hosts.
func NewHosts() *Hosts { return &Hosts{servers: map[string]*server{}, told: map[string]bool{}} }

// First reports whether it is called for an image for the first time in the run.
func (h *Hosts) First(ref string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	told := h.told[ref]
	h.told[ref] = true
	return !told
}

// server returns the state of a host. The first call sets the limit of concurrent requests.
func (h *Hosts) server(host string, limit int) *server {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.servers[host] == nil {
		h.servers[host] = &server{host: host, gate: newGate(limit)}
	}
	return h.servers[host]
}

// A server is the state of one contacted host[:port].
type server struct {
	host    string
	gate    *gate
	breaker breaker
	isHTTP  atomic.Bool // the registry speaks nothing else

	mu       sync.Mutex
	answered bool      // the host has answered in this run
	good     bool      // at least one answer was no server failure
	lost     error     // the reason that the host is no longer contacted
	told     time.Time // time of the last log line
	named    bool      // the switch to other hosts was logged
}

// heard records an answer's status.
func (v *server) heard(status int) {
	if !web.PassingStatus(status) {
		v.breaker.answered()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answered = true
	v.good = v.good || !web.PassingStatus(status)
}

func (v *server) silent() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.answered
}

// giveUp records the reason that the host is no longer contacted.
func (v *server) giveUp(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lost = cmp.Or(v.lost, err)
}

// given returns the reason that the host is no longer contacted, else nil.
func (v *server) given() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lost == nil {
		return nil
	}
	return &permanentError{v.lost}
}

// mayTell reports whether trouble that began at a time should be logged now.
func (v *server) mayTell(began, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Sub(began) < quietFor || now.Sub(v.told) < tellEvery {
		return false
	}
	v.told = now
	return true
}

// passOver logs, once per host, that others are used instead. A host that does not work at all is not contacted again.
func (v *server) passOver(ctx context.Context, log *slog.Logger, err error) {
	broken := aboutServer(err)
	if !broken && !AnsweredWith(err, http.StatusUnauthorized, http.StatusForbidden) {
		log.DebugContext(ctx, "a mirror lacks a file; trying the next place", "mirror", v.host, "error", err)
		return
	}
	v.mu.Lock()
	first := !v.named
	v.named = true
	// A failure at one address does not condemn a server that answers at others.
	if broken && v.lost == nil && (web.Status(err) == nil || !v.good) {
		v.lost = err
	}
	v.mu.Unlock()
	if first {
		log.WarnContext(ctx, "a mirror does not deliver; trying the next place", "mirror", v.host, "error", err)
	}
}

// aboutServer reports whether the server itself fails, rather than refusing or lacking this one file.
func aboutServer(err error) bool {
	if status := web.Status(err); status != nil {
		return web.PassingStatus(status.Code)
	}
	_, final := errors.AsType[*permanentError](err)
	_, gone := errors.AsType[*UnreachableError](err)
	return gone || web.IsUntrusted(err) || !final && !errors.Is(err, ErrMismatch) && !IsLie(err)
}

// AnsweredWith reports whether every place answered with one of the codes.
func AnsweredWith(err error, codes ...int) bool {
	if all, ok := errors.AsType[*everywhereError](err); ok {
		return !slices.ContainsFunc(all.errs, func(e error) bool { return !AnsweredWith(e, codes...) })
	}
	status := web.Status(err)
	return status != nil && slices.Contains(codes, status.Code)
}

// Lacking reports whether every reachable place answered with one of the codes for a missing file. Unreachable hosts do
// not count: they are often the reason for a mirror.
func Lacking(err error, codes ...int) bool {
	var all *everywhereError
	if !errors.As(err, &all) {
		return AnsweredWith(err, codes...)
	}
	said := false
	for _, e := range all.errs {
		if _, gone := errors.AsType[*UnreachableError](e); gone {
			continue
		}
		if !AnsweredWith(e, codes...) {
			return false
		}
		said = true
	}
	return said
}

// InTurn calls f for one peer after the other until it succeeds. The error has every peer's error. A failure of the
// store, or the end of the context, ends it.
func (s *Sender) InTurn(ctx context.Context, peers []*Peer, f func(i int) error) error {
	var failed []error
	for i, p := range peers {
		if err := p.server.given(); err != nil && p.Spare {
			failed = append(failed, err)
			continue
		}
		err := f(i)
		var store *StoreError
		if err == nil || context.Cause(ctx) != nil || errors.As(err, &store) {
			return err
		}
		failed = append(failed, err)
		if p.Spare {
			p.server.passOver(ctx, s.Log, err)
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return &everywhereError{failed}
}

// An everywhereError holds the errors of several places.
type everywhereError struct{ errs []error }

func (e *everywhereError) Error() string {
	texts := make([]string, len(e.errs))
	for i, err := range e.errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; then ")
}

// Unwrap lets errors.Is and errors.As look into each.
func (e *everywhereError) Unwrap() []error { return e.errs }
