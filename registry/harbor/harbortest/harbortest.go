// Package harbortest stands in for Harbor: its API v2.0 as far as package harbor uses it, its token service, and a real
// registry behind both. Every API request and every answer of the stand-in is checked against Harbor's published
// OpenAPI file, and a mismatch fails the test. Pushes to missing projects are refused; quotas, immutable tags,
// read-only mode and robot accounts' permissions are enforced, with the status codes and messages recorded from Harbor
// v2.14.2 (commit 3a2df66d, built from its source), also those of 401, 403, 404 and 412.
//
// With HARBOR_URL, HARBOR_USERNAME and HARBOR_PASSWORD in the environment Start returns that Harbor instead.
package harbortest

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// Accounts of every stand-in.
const (
	Admin         = "admin" // a system administrator
	AdminPassword = "Harbor12345"
	User          = "dev" // an ordinary user
	UserPassword  = "Developer1"
)

// A Project is a project of Harbor, present or initial.
type Project struct {
	Name      string
	Public    bool
	Quota     int64 // bytes; 0 and below are none
	Proxy     bool  // a cache of another registry
	Immutable bool  // every tag
	Members   []string
	Hidden    bool // members may push but not view it, like robot accounts

	id    int64
	used  map[string]int64  // bytes by digest
	tags  map[string]string // digest by repository and tag
	lists map[string][]json.RawMessage
}

// Options describe a stand-in.
type Options struct {
	Projects   []Project
	ReadOnly   bool
	AnyoneMay  bool   // every user may create projects; otherwise only administrators
	RobotsFull int    // number of other, existing robot accounts
	Password   string // of Admin; "" is AdminPassword
	Ill        bool   // a component is unhealthy
}

// A Server is Harbor or its stand-in.
type Server struct {
	Host  string
	Real  bool // the Harbor of HARBOR_URL
	Plain bool // it speaks HTTP

	user, password string
	options        Options
	swagger        *swagger
	backing        *registrytest.Server
	proxy          *httputil.ReverseProxy
	closer         func()

	mu           sync.Mutex
	ids          ids
	projects     map[string]*Project
	accounts     accounts
	replications replications
	tokens       map[string]identity
	requests     []string
	violations   []error
}

// Start runs a stand-in until the test ends, or connects to the real one. The test is skipped if Harbor's OpenAPI file
// is missing.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	if s := realHarbor(t); s != nil {
		return s
	}
	s, err := New(o)
	if errors.Is(err, errNoSwagger) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, err := range s.Violations() {
			t.Errorf("against Harbor's OpenAPI file: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Only is Start for tests that need a state which no API can create: they are skipped with a real Harbor.
func Only(t testing.TB, o Options) *Server {
	t.Helper()
	if os.Getenv("HARBOR_URL") != "" {
		t.Skip("only for the stand-in: a real Harbor can't be put into this state by its tests")
	}
	return Start(t, o)
}

func realHarbor(t testing.TB) *Server {
	t.Helper()
	address := os.Getenv("HARBOR_URL")
	if address == "" {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		t.Fatalf("HARBOR_URL is %q: want https://HOST", address)
	}
	return &Server{
		Host: u.Host, Real: true, Plain: u.Scheme == "http", user: os.Getenv("HARBOR_USERNAME"),
		password: os.Getenv("HARBOR_PASSWORD"),
	}
}

// New runs a stand-in until Close.
func New(o Options) (*Server, error) {
	spec, err := published()
	if err != nil {
		return nil, err
	}
	backing, err := registrytest.New(registrytest.Options{RelativeURLs: true, Children: registrytest.ChildrenNone})
	if err != nil {
		return nil, err
	}
	to, err := url.Parse(backing.URL)
	if err != nil {
		return nil, errors.Join(err, backing.Close())
	}
	s := &Server{
		user: Admin, password: cmp.Or(o.Password, AdminPassword), options: o, swagger: spec, backing: backing,
		Plain:    true,
		projects: map[string]*Project{}, tokens: map[string]identity{}, ids: 1,
	}
	s.accounts = accounts{ids: &s.ids, password: s.password, projects: s.projects}
	s.replications.ids = &s.ids
	s.proxy = &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Header.Del("Authorization") },
		Transport: backing.Transport(), ErrorHandler: func(http.ResponseWriter, *http.Request,
			error,
		) {
			panic(http.ErrAbortHandler)
		},
	}
	for _, p := range o.Projects {
		s.addProject(p)
	}
	for i := range o.RobotsFull {
		s.accounts.robots = append(s.accounts.robots, &robot{
			ID: s.ids.next(), Name: fmt.Sprintf("other%d", i),
			Level: "system", secret: "x",
		})
	}
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	s.Host = server.Listener.Addr().String()
	s.closer = server.Close
	return s, nil
}

// Unique returns a valid project name that no other test uses.
func Unique(name string) string { return name + "-" + strings.ToLower(rand.Text()[:8]) }

// Keychain is the login of Admin, or of HARBOR_USERNAME.
func (s *Server) Keychain() authn.Keychain { return Login(s.user, s.password) }

// Login is a keychain with one login.
func Login(user, password string) authn.Keychain {
	return login{authn.FromConfig(authn.AuthConfig{Username: user, Password: password})}
}

type login struct{ authn.Authenticator }

// Resolve implements authn.Keychain.
func (l login) Resolve(authn.Resource) (authn.Authenticator, error) { return l.Authenticator, nil }

// URL returns scheme and host.
func (s *Server) URL() string {
	if s.Plain {
		return "http://" + s.Host
	}
	return "https://" + s.Host
}

// Violations returns the mismatches with Harbor's OpenAPI file.
func (s *Server) Violations() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// Requests returns "METHOD PATH" of all requests so far.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Project returns a project's present state.
func (s *Server) Project(name string) (Project, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.projects[name]; p != nil {
		return *p, true
	}
	return Project{}, false
}

// AddProject creates a project as another user would.
func (s *Server) AddProject(p Project) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addProject(p)
}

func (s *Server) addProject(p Project) {
	p.id, p.used, p.tags, p.lists = s.ids.next(), map[string]int64{}, map[string]string{},
		map[string][]json.RawMessage{}
	s.projects[p.Name] = &p
}

// ids numbers projects, robots, registries and policies.
type ids int64

func (n *ids) next() int64 {
	*n++
	return int64(*n)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, s.swagger.BasePath+"/"):
		s.serveAPI(w, r)
	case r.URL.Path == tokenPath:
		s.serveToken(w, r)
	case strings.HasPrefix(r.URL.Path, "/v2/"):
		s.serveRegistry(w, r)
	default:
		http.NotFound(w, r)
	}
}

// A recorder holds an answer back for inspection.
type recorder struct {
	status int
	body   bytes.Buffer
	header http.Header
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// serveAPI checks the request, answers it, and checks the answer.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	op, err := s.swagger.request(r, body)
	if r.Header.Get("Cookie") != "" {
		err = errors.Join(err, errors.New("it has a cookie, and Harbor would want a CSRF token"))
	}
	s.violation(r, err)
	if err != nil {
		sendError(w, http.StatusUnprocessableEntity, "UNPROCESSABLE_ENTITY", err.Error())
		return
	}
	rec := &recorder{status: http.StatusOK, header: w.Header()}
	s.mu.Lock()
	s.api(rec, r, body)
	s.mu.Unlock()
	s.violation(r, s.swagger.answer(op, rec.status, rec.body.Bytes()))
	// as in Harbor; a client that sends it back needs a CSRF token
	w.Header().Set("Set-Cookie", "sid=stand-in; Path=/; HttpOnly")
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(rec.status)
	_, _ = w.Write(rec.body.Bytes())
}

func (s *Server) violation(r *http.Request, err error) {
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.violations = append(s.violations, fmt.Errorf("%s %s: %w", r.Method, r.URL.RequestURI(), err))
	}
}

func sendError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	sendJSON(w, map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}

func sendJSON(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	_, _ = w.Write(data)
}

// Close stops the stand-in.
func (s *Server) Close() error {
	s.closer()
	return s.backing.Close()
}

// Available reports whether New can work: Harbor's OpenAPI file is not part of the project.
func Available() error {
	_, err := published()
	return err
}
