// Package serve is a read-only server of bundles: an OCI registry, Helm, apt, yum and Git repositories, a file server
// and pages for people, all straight from the compressed files. Nothing is unpacked and nothing is written. Start-up
// time does not depend on a bundle's size, nor memory on the number of clients or the size of blobs.
//
// Trust: no client receives the end of a content before the whole blob was compared with its digest on the same open
// file. A write to a served file is detected, and its blobs are checked again.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry/htpasswd"
	"github.com/kkbundle/kkbundle/registry/httpd"
)

// Options configure a Server.
type Options struct {
	Bundles []string // paths. If two bundles have the same tag, the later one's is served
	Verify  bool     // check every byte of each bundle before serving it
	// Users is the path of an htpasswd file with bcrypt hashes; then everything but /healthz requires a login. ""
	// requires none.
	Users  string
	Logger *slog.Logger // nil for none
	Manual http.Handler // of /docs/ and below; nil for none
	// Authority returns the certificate of AutoCertificate whose authority the page hands out, nil for none; it is
	// called for each request.
	Authority func() *Certificate
	// Open opens a bundle, also a replaced one, and may refuse it; nil is bundle.Open.
	Open func(path string) (*bundle.Reader, error)
}

// A Server answers requests. It is an http.Handler; Run listens, with the timeouts that a server needs.
type Server struct {
	log       *slog.Logger
	open      func(path string) (*bundle.Reader, error)
	verify    bool
	users     *htpasswd.Users
	frames    *frames
	checks    chan struct{} // a token for each blob being checked
	requests  chan struct{} // a token for each request to a Git repository
	packs     chan struct{} // a token for each pack being made
	chunks    sync.Pool     // *[]byte of chunkSize
	metrics   *metrics
	waiting   atomic.Int32 // requests that wait for a token of packs
	limits    limits
	handler   http.Handler
	reloads   atomic.Int64
	templates func() (*template.Template, error)
	manual    http.Handler
	authority func() *Certificate

	indexing  sync.Mutex // of packages
	reloading sync.Mutex
	mu        sync.RWMutex
	snapshot  *snapshot
}

// New opens the bundles. With Verify it reads them completely; otherwise only their directories.
func New(ctx context.Context, o Options) (*Server, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Open == nil {
		o.Open = bundle.Open
	}
	s := &Server{
		log: o.Logger, open: o.Open, verify: o.Verify, manual: o.Manual, authority: o.Authority,
		users: htpasswd.New(o.Users), frames: newFrames(), metrics: newMetrics(), limits: defaultLimits(),
		checks:   make(chan struct{}, min(runtime.GOMAXPROCS(0), maxDecodes)),
		requests: make(chan struct{}, maxRequests), packs: make(chan struct{}, maxPacks),
	}
	s.templates = sync.OnceValues(parseTemplates)
	s.chunks.New = func() any { b := make([]byte, chunkSize); return &b }
	if err := s.users.Load(); err != nil {
		return nil, err
	}
	books, err := s.openAll(ctx, o.Bundles)
	if err != nil {
		for _, b := range books {
			b.release()
		}
		return nil, err
	}
	s.put(s.newSnapshot(books))
	s.handler = s.mount()
	return s, nil
}

func (s *Server) openAll(ctx context.Context, paths []string) ([]*book, error) {
	var books []*book
	var problems []error
	for _, path := range paths {
		b, err := s.openBook(path)
		if err == nil {
			books = append(books, b)
		}
		if err == nil && s.verify {
			if err = b.verify(ctx); err != nil {
				err = fmt.Errorf("%s: %w", path, err)
			}
		}
		if err != nil {
			problems = append(problems, err)
		}
	}
	return books, errors.Join(problems...)
}

// Close closes the bundles when the requests reading them are done.
func (s *Server) Close() { s.put(&snapshot{readers: 1}) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// An area is one kind of service under its own path. It handles GET and HEAD, with the present snapshot.
type area struct {
	path, name string
	handle     func(w http.ResponseWriter, r *http.Request, sh *snapshot)
	public     bool // needs no login
	post       bool // POST, too, with a body that the area reads
}

func (s *Server) areas() []area {
	areas := []area{
		{path: "/v2", name: "registry", handle: s.distribution},
		{path: "/v2/", name: "registry", handle: s.distribution},
		{path: "/charts/", name: "charts", handle: s.charts},
		{path: "/files/", name: "files", handle: s.files},
		{path: "/apt/", name: "apt", handle: s.apt},
		{path: "/yum/", name: "yum", handle: s.yum},
		{path: gitPath, name: "git", handle: s.git, post: true},
		{path: "/assets/", name: "page", handle: s.assets},
		{path: "/metrics", name: "metrics", handle: s.exposition},
		{path: "/healthz", name: "health", handle: health, public: true},
		{path: "/", name: "page", handle: s.page},
	}
	if s.authority != nil {
		areas = append(areas, area{path: authorityPath, name: "authority", handle: s.handOut, public: true})
	}
	if s.manual != nil {
		areas = append(areas, area{path: "/docs/", name: "docs", handle: func(w http.ResponseWriter, r *http.Request,
			_ *snapshot,
		) {
			s.manual.ServeHTTP(w, r)
		}})
	}
	return areas
}

func (s *Server) mount() http.Handler {
	mux := http.NewServeMux()
	for _, a := range s.areas() {
		mux.HandleFunc(a.path, func(w http.ResponseWriter, r *http.Request) { s.request(w, r, a) })
	}
	return mux
}

// request is the common part of all areas.
func (s *Server) request(w http.ResponseWriter, r *http.Request, a area) {
	start := time.Now()
	out := httpd.NewResponse(w, s.limits.Write)
	s.metrics.inFlight.Add(1)
	defer func() {
		s.metrics.inFlight.Add(-1)
		s.metrics.count(a.name, out.Status, out.Sent)
		s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "status", out.Status, "bytes", out.Sent,
			"client", r.RemoteAddr, "took", time.Since(start))
	}()
	h := out.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
	if r.ContentLength != 0 { // request bodies are not read, or soon
		h.Set("Connection", "close")
		_ = out.Control.SetReadDeadline(start.Add(s.limits.body)) // only test servers lack deadlines
	}
	fail := plainError
	if a.name == "registry" {
		h.Set("Docker-Distribution-Api-Version", "registry/2.0")
		fail = registryError
	}
	if !a.public {
		if err := s.users.Admit(r); err != nil {
			fail(out, err)
			return
		}
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !(a.post && r.Method == http.MethodPost) {
		h.Set("Allow", "GET, HEAD")
		fail(out, &answer{
			http.StatusMethodNotAllowed, codeUnsupported,
			"this server is read-only: use `kkbundle push` to seed a writable registry",
		})
		return
	}
	sh := s.use()
	defer sh.done()
	a.handle(out, r, sh)
}

// authorityPath is where clients download the authority of AutoCertificate.
const authorityPath = "/ca.pem"

// handOut answers with the authority's certificate. Clients that do not trust it yet compare its fingerprint.
func (s *Server) handOut(w http.ResponseWriter, _ *http.Request, _ *snapshot) {
	w.Header().Set("Content-Type", "application/x-pem-file")
	w.Header().Set("Content-Disposition", `attachment; filename="kkbundle-ca.pem"`)
	_, _ = w.Write(s.authority().AuthorityPEM) // the client may be gone
}

func health(w http.ResponseWriter, _ *http.Request, _ *snapshot) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // the client may be gone
}
