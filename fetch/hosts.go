package fetch

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	// quietFor is how long trouble with a host goes on before anybody is told, and tellEvery how often they are.
	quietFor  = 5 * time.Second
	tellEvery = 30 * time.Second
)

// Hosts is what a run learns of the hosts that it asks: how many requests they bear, and which cannot be reached. A run of
// several calls (Resolve, Estimate, All) gives them the same, so that a mirror that is down is waited for once. It is safe
// for concurrent use.
type Hosts struct {
	mu      sync.Mutex
	servers map[string]*server
}

// NewHosts returns what is known before anything was asked.
func NewHosts() *Hosts { return &Hosts{servers: map[string]*server{}} }

// server returns what is known of a host. The limit of requests at once counts the first time.
func (h *Hosts) server(host string, limit int) *server {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.servers[host] == nil {
		h.servers[host] = &server{host: host, gate: newGate(limit)}
	}
	return h.servers[host]
}

// A server is what is known of one host[:port] that is asked.
type server struct {
	host string
	gate *gate

	mu       sync.Mutex
	answered bool      // it said something in this run, whatever it was
	good     bool      // and once something else than that it does not work
	lost     error     // why it is not asked again in this run
	told     time.Time // when somebody was told about it last
	named    bool      // somebody was told that others are asked instead
}

// heard says that it answered with a status.
func (v *server) heard(status int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answered = true
	v.good = v.good || !retryableStatus(status)
}

func (v *server) silent() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.answered
}

// giveUp remembers why the host is not asked again.
func (v *server) giveUp(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lost == nil {
		v.lost = err
	}
}

// given returns why the host is not asked again, nil if it is.
func (v *server) given() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lost == nil {
		return nil
	}
	return &permanentError{v.lost}
}

// mayTell tells whether trouble that began at a time is worth a line now.
func (v *server) mayTell(began, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Sub(began) < quietFor || now.Sub(v.told) < tellEvery {
		return false
	}
	v.told = now
	return true
}

// passOver says, once for a host, that others are asked instead. One that does not work at all is not asked again.
func (v *server) passOver(ctx context.Context, log *slog.Logger, err error) {
	broken := aboutServer(err)
	if !broken && !answeredWith(err, http.StatusUnauthorized, http.StatusForbidden) {
		log.DebugContext(ctx, "a mirror lacks something; the next place is asked", "mirror", v.host, "error", err)
		return
	}
	v.mu.Lock()
	first := !v.named
	v.named = true
	// One address that fails does not make a bad server of one that answers others.
	if broken && v.lost == nil && (statusOf(err) == nil || !v.good) {
		v.lost = err
	}
	v.mu.Unlock()
	if first {
		log.WarnContext(ctx, "a mirror does not deliver; the next place is asked", "mirror", v.host, "error", err)
	}
}

// aboutServer tells a server that does not work from one that refuses or lacks this one thing.
func aboutServer(err error) bool {
	var (
		status *statusError
		final  *permanentError
	)
	if errors.As(err, &status) {
		return retryableStatus(status.code)
	}
	var gone *unreachableError
	return errors.As(err, &gone) || isTLS(err) || !errors.As(err, &final) && !errors.Is(err, errMismatch) && !isLie(err)
}

// answeredWith tells whether every place that was asked answered with one of the codes.
func answeredWith(err error, codes ...int) bool {
	var all *everywhereError
	if errors.As(err, &all) {
		for _, e := range all.errs {
			if !answeredWith(e, codes...) {
				return false
			}
		}
		return true
	}
	var status *statusError
	if errors.As(err, &status) {
		for _, c := range codes {
			if status.code == c {
				return true
			}
		}
	}
	return false
}

// lacking tells whether there is no such thing, as the codes say it, wherever anybody could be asked: a host that is never
// reached is often why there is a mirror.
func lacking(err error, codes ...int) bool {
	var all *everywhereError
	if !errors.As(err, &all) {
		return answeredWith(err, codes...)
	}
	said := false
	for _, e := range all.errs {
		var gone *unreachableError
		if errors.As(e, &gone) {
			continue
		}
		if !answeredWith(e, codes...) {
			return false
		}
		said = true
	}
	return said
}

// inTurn calls f for one peer after the other until it succeeds. The error has what each of them said. A failure of the
// store, or the end of the context, ends it.
func (s *session) inTurn(ctx context.Context, peers []*peer, f func(i int) error) error {
	var failed []error
	for i, p := range peers {
		if err := p.server.given(); err != nil && p.spare {
			failed = append(failed, err)
			continue
		}
		err := f(i)
		var store *storeError
		if err == nil || context.Cause(ctx) != nil || errors.As(err, &store) {
			return err
		}
		failed = append(failed, err)
		if p.spare {
			p.server.passOver(ctx, s.log, err)
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return &everywhereError{failed}
}

// An everywhereError has what each of several places said.
type everywhereError struct{ errs []error }

// Error has one after the other.
func (e *everywhereError) Error() string {
	text := ""
	for i, err := range e.errs {
		if i > 0 {
			text += "; then "
		}
		text += err.Error()
	}
	return text
}

// Unwrap lets errors.Is and errors.As look into each.
func (e *everywhereError) Unwrap() []error { return e.errs }
