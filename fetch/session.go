package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/fetch/packagesets"
	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/web/logins"
)

// A session is one run over many items: it orders the work, and the parts know the kinds of items.
type session struct {
	jobs       int
	find       func(context.Context, []Chart) ([]Found, error)
	firstUse   func(FirstUse) error
	events     *progress
	log        *slog.Logger
	network    *upstream.Network
	dirs       *upstream.SourceDirs
	cache      *upstream.Cache
	registries *registries.Registries
	images     *images
	files      *files
	charts     *helmCharts
	// repositories are those of Git; registries has others.
	repositories *repositories
	packages     *packagesets.Sets
}

func newSession(o Options) (*session, error) {
	if o.Store == nil {
		return nil, errors.New("fetch: no store")
	}
	o = o.withDefaults()
	platforms, err := normalPlatforms(o.Platforms)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	logins, err := logins.ReadNetrc()
	if err != nil {
		return nil, err
	}
	base := upstream.BaseDir(o.Dir)
	s := &session{
		jobs: o.Jobs, find: o.Find, firstUse: o.FirstUse, events: &progress{report: o.Progress}, log: o.Logger,
		network: upstream.NewNetwork(o.Sources, base, o.Hosts, o.Logger),
	}
	s.cache = &upstream.Cache{Store: o.Store, Count: s.events.count}
	if s.dirs, err = upstream.OpenDirs(o.Sources, base, s.cache, o.Logger); err != nil {
		return nil, err
	}
	loader := &upstream.Downloader{
		Sender: &upstream.Sender{Limits: o.Retry, Log: o.Logger}, Cache: s.cache, Dirs: s.dirs,
		Records: upstream.NewRecords(o.Memory, o.Store, o.Logger), MaxUnknown: o.MaxUnknown,
	}
	site := &webFiles{
		network: s.network, loader: loader, log: o.Logger, logins: logins, overrides: o.Overrides, platforms: platforms,
		pages: map[string][]byte{},
	}
	local := &localFiles{dir: base, cache: s.cache}
	s.registries = registries.New(s.network, loader, o.Keychain)
	kept := newKept(o.Keep)
	s.images = &images{
		kept: kept, registries: s.registries, dir: base, log: o.Logger, hosts: o.Hosts, platforms: platforms,
		policy: o.Policy, indexes: map[string]pinnedIndex{},
	}
	s.files = &files{kept: kept, web: site, local: local, cache: s.cache, self: o.Self, platforms: platforms}
	s.charts = &helmCharts{kept: kept, web: site, registries: s.registries, local: local, cache: s.cache}
	s.repositories = &repositories{
		kept: kept, web: site, sender: loader.Sender, cache: s.cache, scratch: o.Scratch, log: o.Logger,
	}
	s.packages = &packagesets.Sets{
		Network: networkFiles{site}, Override: site.override, Dir: base, Log: o.Logger, Jobs: o.Jobs,
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Jobs <= 0 {
		o.Jobs = DefaultJobs
	}
	if o.Keychain == nil {
		o.Keychain = logins.New(o.Logger)
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Policy = cmp.Or(o.Policy, manifest.PolicyStrict)
	o.Hosts = cmp.Or(o.Hosts, NewHosts())
	if o.MaxUnknown <= 0 {
		o.MaxUnknown = upstream.MaxUnknown
	}
	o.Retry = o.Retry.WithDefaults()
	return o
}

func (s *session) close() {
	s.network.Close()
	s.dirs.Close()
}

// each calls f with 0 to n-1, at most s.jobs at once.
func (s *session) each(n int, f func(i int)) {
	var group errgroup.Group
	group.SetLimit(s.jobs)
	for i := range n {
		group.Go(func() error { f(i); return nil })
	}
	_ = group.Wait() // f reports failures itself
}

// progress counts a run's bytes and reports events.
type progress struct {
	report              func(Event) // nil reports nothing
	total, done, cached atomic.Int64
}

// count updates the counters and reports them.
func (p *progress) count(total, done, cached int64) {
	p.total.Add(total)
	p.done.Add(done)
	p.cached.Add(cached)
	p.emit(Event{Type: EventBytes})
}

func (p *progress) emit(e Event) {
	if p.report == nil {
		return
	}
	e.Total, e.Done, e.Cached = p.total.Load(), p.done.Load(), p.cached.Load()
	p.report(e)
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
