package fetch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sync/singleflight"

	"github.com/kkbundle/kkbundle/manifest"
)

// A session is the state of one run: connections, credentials and counters shared by its items.
type session struct {
	opts      Options
	platforms []string                // normalized
	referrers manifest.ReferrerPolicy // for images without a policy of their own
	root      string                  // path of the manifest's trusted root
	log       *slog.Logger
	logins    netrc
	hosts     *Hosts
	proxy     func(*http.Request) (*url.URL, error)
	dirs      []*sourceDir       // directories with existing content
	flights   singleflight.Group // one transfer at a time per digest or URL
	buffers   sync.Pool

	// contentLater means that items are finished before their content of known size arrives.
	contentLater bool

	choosing sync.Mutex // of packages

	mu         sync.Mutex
	known      map[string][]*peer // by upstream host
	transports map[credentials]*http.Transport
	repos      map[string]*repository   // by upstream repository
	pages      map[string][]byte        // indexes of Helm repositories and files of checksums, by URL
	apis       map[string]*referrersAPI // by upstream host

	total, done, cached atomic.Int64
}

func newSession(o Options) (*session, error) {
	if o.Store == nil {
		return nil, errors.New("fetch: no store")
	}
	if o.Jobs <= 0 {
		o.Jobs = DefaultJobs
	}
	if o.Keychain == nil {
		o.Keychain = authn.DefaultKeychain
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Policy == "" {
		o.Policy = manifest.PolicyStrict
	}
	if o.Hosts == nil {
		o.Hosts = NewHosts()
	}
	if o.MaxUnknown <= 0 {
		o.MaxUnknown = maxUnknown
	}
	o.Retry = o.Retry.withDefaults()
	s := &session{
		opts:    o,
		log:     o.Logger,
		buffers: sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }},
		hosts:   o.Hosts,
		proxy:   proxies(),
		known:   map[string][]*peer{},
		repos:   map[string]*repository{},
		pages:   map[string][]byte{},
		apis:    map[string]*referrersAPI{},

		transports: map[credentials]*http.Transport{},
	}
	var err error
	if s.platforms, err = normalPlatforms(o.Platforms); err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	if s.logins, err = readNetrc(); err != nil {
		return nil, err
	}
	if s.dirs, err = s.openDirs(); err != nil {
		return nil, err
	}
	return s, nil
}

func (r Retry) withDefaults() Retry {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	if r.Attempts <= 0 {
		r.Attempts = 6
	}
	set(&r.Wait, 500*time.Millisecond)
	set(&r.MaxWait, 20*time.Second)
	set(&r.MaxRetryAfter, 2*time.Minute)
	set(&r.Idle, time.Minute)
	return r
}

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
	for _, d := range s.dirs {
		d.close()
	}
}

// count updates the counters and reports them.
func (s *session) count(total, done, cached int64) {
	s.total.Add(total)
	s.done.Add(done)
	s.cached.Add(cached)
	s.emit(Event{Type: EventBytes})
}

func (s *session) emit(e Event) {
	if s.opts.Progress == nil {
		return
	}
	e.Total, e.Done, e.Cached = s.total.Load(), s.done.Load(), s.cached.Load()
	s.opts.Progress(e)
}

// once runs f, or waits for a running f with the same key and shares its outcome.
func once[T any](s *session, key string, f func() (T, error)) (T, error) {
	v, err, _ := s.flights.Do(key, func() (any, error) { return f() })
	if err != nil {
		var zero T
		return zero, err
	}
	return v.(T), nil // f returns a T
}

// failures collects the errors of concurrent items.
type failures struct {
	mu   sync.Mutex
	list []*ItemError
}

func (f *failures) add(e *ItemError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, e)
}

// err returns *Errors, nil if nothing failed. If the context ended, its cause comes first, and items that failed only
// because of it are left out.
func (f *failures) err(ctx context.Context, items int) error {
	list := f.list
	cause := context.Cause(ctx)
	if cause != nil {
		list = slices.DeleteFunc(list, func(e *ItemError) bool {
			return errors.Is(e, cause) || errors.Is(e, context.Canceled) || errors.Is(e, context.DeadlineExceeded)
		})
		cause = fmt.Errorf("fetch stopped (downloaded data is kept): %w", cause)
	}
	if len(list) == 0 {
		return cause
	}
	slices.SortFunc(list, func(a, b *ItemError) int {
		return strings.Compare(a.Kind+"\n"+a.Ref+"\n"+a.Platform, b.Kind+"\n"+b.Ref+"\n"+b.Platform)
	})
	failed := &Errors{Failed: list, Items: items}
	if cause != nil {
		return errors.Join(cause, failed)
	}
	return failed
}
