package builder

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// Options say how a Project is used. The zero value of every field but Cache and Output is a sensible default.
type Options struct {
	Cache         string        // directory of downloads, kept for the next use
	Level         bundle.Level  // compression
	Jobs          int           // transfers at once; 0 is fetch.DefaultJobs
	Strict        bool          // texts that may be images are an *UndecidedError
	RenderTimeout time.Duration // for one chart; 0 is a minute
	Events        func(Event)   // may be nil
	Logger        *slog.Logger  // for warnings; nil discards them
	Self          fetch.Program // the kkbundle of a manifest's self; the zero value is the program that runs
	Update        bool          // of a lock that does not fit, look up unchanged items again, too

	// Only for Build:

	Output   string    // the file to write
	Stream   io.Writer // in place of Output
	PartSize int64     // bytes of the parts that Output is split into; 0 writes one file
	// Recipients, if any, encrypt the bundle: see bundle.WriteOptions.
	Recipients []age.Recipient
	Locked     bool   // fail unless the lock file fits the manifest
	NoCache    bool   // download straight into the bundle; an interrupted build starts over
	Provenance bool   // fill in Result.Provenance; only with Output
	Program    string // version of the program, for the provenance
}

// An EventType is the type of an Event.
type EventType int

// The types of events.
const (
	EventBegan     EventType = iota + 1 // a phase began
	EventProgress                       // Done of Total bytes are transferred
	EventItem                           // an item is done, or failed: Err
	EventItemBegan                      // work on an item began
	EventEnded                          // a phase ended, successfully or not
	EventNote                           // Text is worth showing to people
)

// The phases of a build, in their order. Only one is under way at a time.
const (
	PhaseResolve = "resolve"
	PhaseFetch   = "fetch"
	PhaseWrite   = "write"
	PhaseHash    = "hash"
)

// An Event reports progress. Events may be delivered concurrently and, within a phase, out of order.
type Event struct {
	Type                EventType
	Phase               string
	Done, Total         int64  // Total may grow
	Kind, Ref, Platform string // the item
	Err                 error
	Text                string // not sanitized: parts of it may come from upstream
}

// A session is one use of a project.
type session struct {
	*Project
	Options
	cache    *cache.Cache
	cacheDir string         // where the cache is
	keep     *manifest.Lock // a lock that does not fit: its pins of unchanged items are used
	memory   string         // directory of the digests of files that upstream publishes no checksum for
}

func newSession(p *Project, o Options) *session {
	o.RenderTimeout = cmp.Or(o.RenderTimeout, time.Minute)
	if o.Events == nil {
		o.Events = func(Event) {}
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return &session{Project: p, Options: o}
}

// open opens the cache.
func (s *session) open() (err error) {
	s.cacheDir = s.Cache
	s.cache, err = cache.Open(s.Cache, s.Level)
	return err
}

// memoryDir is the directory in the cache for digests of files that upstream publishes no checksum for.
func memoryDir(cache string) string { return filepath.Join(cache, "upstream") }

func (s *session) note(format string, args ...any) {
	s.Events(Event{Type: EventNote, Text: fmt.Sprintf(format, args...)})
}

// dropped reports a damaged blob of the cache.
func (s *session) dropped(damaged *cache.EntryError) {
	s.note("the cache's copy of blob %s is damaged (%s); downloading it again", damaged.Digest, damaged.Reason)
}

// A phase reports the progress of one phase.
type phase struct {
	name string
	tell func(Event)
	end  func() // a second call does nothing
}

func (s *session) begin(name string) *phase {
	s.Events(Event{Type: EventBegan, Phase: name})
	return &phase{
		name: name, tell: s.Events,
		end: sync.OnceFunc(func() { s.Events(Event{Type: EventEnded, Phase: name}) }),
	}
}

func (p *phase) set(done, total int64) {
	p.tell(Event{Type: EventProgress, Phase: p.name, Done: done, Total: total})
}

func (s *session) fetchOptions(m *phase) fetch.Options {
	return fetch.Options{
		Store:     s.cache,
		Sources:   s.Manifest.Sources,
		Overrides: s.Manifest.Overrides,
		Hosts:     s.hosts,
		Memory:    s.memory,
		Scratch:   s.cacheDir,
		Platforms: s.Manifest.Platforms,
		Policy:    s.Manifest.PlatformPolicy,
		Jobs:      s.Jobs,
		Dir:       s.dir,
		Self:      s.Self,
		Logger:    s.Logger,
		Progress: func(e fetch.Event) {
			m.set(e.Done, e.Total)
			switch e.Type {
			case fetch.EventStarted:
				m.tell(Event{Type: EventItemBegan, Phase: m.name, Kind: e.Kind, Ref: e.Ref, Platform: e.Platform})
			case fetch.EventFinished:
				m.tell(Event{
					Type: EventItem, Phase: m.name, Kind: e.Kind, Ref: e.Ref, Platform: e.Platform,
					Err: e.Err,
				})
			case fetch.EventBytes:
			}
		},
	}
}
