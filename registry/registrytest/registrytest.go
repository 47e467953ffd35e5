// Package registrytest runs the CNCF distribution registry inside the process: the code of most private registries,
// behind real sockets, with TLS, basic or token authentication, and injected faults.
//
// Start is for tests; New is for programs (the demo, the lab) that need an upstream or a destination. Nothing leaves
// the machine: telemetry is never set up, and the registry's own log is silenced.
package registrytest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"

	// Access controllers and storage drivers register themselves by name.
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
)

// Auth is a Server's kind of authentication.
type Auth int

// The kinds of authentication. The zero value requires no login.
const (
	AuthNone  Auth = iota
	AuthBasic      // htpasswd, checked on every request
	AuthToken      // a bearer token for each scope, from the Server's own token service
)

// Children selects the manifests of an image index that must exist before the registry accepts the index.
type Children string

// The registry's own settings; the zero value is the registry's default, ChildrenAll.
const (
	ChildrenAll  Children = "all"
	ChildrenNone Children = "none"
	ChildrenList Children = "list" // those of Options.Platforms
)

// Options describe a Server. The zero value is an empty, writable registry over plain HTTP on a free port of 127.0.0.1,
// which keeps its content in memory and requires no login.
type Options struct {
	Addr         string   // address to listen on; "" is 127.0.0.1:0
	Dir          string   // directory for content; "" keeps it in memory
	TLS          bool     // HTTPS with a certificate of the Server's own CA, see Server.CAFile
	Hosts        []string // more names and addresses for the certificate, besides localhost and the address listened on
	Auth         Auth
	Username     string                       // "" is "pusher" when Auth is set
	Password     string                       // "" is a fixed password of the tests when Auth is set
	TokenTTL     time.Duration                // validity of a token; 0 is five minutes
	TokenUses    int                          // requests per token; 0 is unlimited
	TokenApart   bool                         // the token service has its own port
	MayPush      func(repository string) bool // repositories to which tokens allow pushing; nil is all
	ReadOnly     bool                         // refuse writes with 405
	Children     Children                     // children of an index that must exist
	Platforms    []string                     // "os/architecture" for ChildrenList
	RelativeURLs bool                         // Location headers without scheme and host
	Referrers    bool                         // answer the referrers API, which distribution lacks; see referrers.go
	Faults       []Fault
}

// A Server is a running registry. All its methods may be called concurrently.
type Server struct {
	Host     string // host:port, as in image references
	URL      string // http:// or https:// and Host
	CAFile   string // PEM file of the CA that signed the certificate; "" without TLS; removed by Close
	CertPool *x509.CertPool
	Username string
	Password string

	app    *handlers.App
	tokens *tokenService
	log    *requestLog
	faults *faultList
	dir    string // temporary files: htpasswd, keys, CA
	stops  []func() error
	once   sync.Once
	closed error
}

// Start runs a registry until the test ends, and fails the test on an error.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	s, err := New(o)
	if err != nil {
		tb.Fatalf("start a test registry: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("stop the test registry: %v", err)
		}
	})
	return s
}

// New runs a registry until Close.
func New(o Options) (*Server, error) {
	// the registry logs to logrus' standard logger, which cannot be silenced otherwise
	logrus.SetLevel(logrus.PanicLevel)
	dir, err := os.MkdirTemp("", "kkbundle-registry-")
	if err != nil {
		return nil, fmt.Errorf("directory for the test registry's keys: %w", err)
	}
	s := &Server{log: &requestLog{}, faults: newFaultList(o.Faults), dir: dir}
	if o.Auth != AuthNone {
		s.Username, s.Password = orDefault(o.Username, "pusher"), orDefault(o.Password, "correct-horse-battery")
	}
	if err := s.run(o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close stops the registry, breaks open connections and removes its temporary files. Content under Options.Dir stays.
// Further calls do nothing and return the first result.
func (s *Server) Close() error {
	s.once.Do(func() {
		var errs []error
		for _, stop := range s.stops {
			errs = append(errs, stop())
		}
		if s.app != nil {
			errs = append(errs, s.app.Shutdown())
		}
		s.closed = errors.Join(append(errs, os.RemoveAll(s.dir))...)
	})
	return s.closed
}

// Keychain returns the Server's user and password, for the Server only.
func (s *Server) Keychain() authn.Keychain {
	return keychain{host: s.Host, config: authn.AuthConfig{Username: s.Username, Password: s.Password}}
}

// Transport trusts the Server's CA and no other.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: s.CertPool, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   64,
		ExpectContinueTimeout: time.Minute, // the server always answers, on a busy machine late
	}
}

func (s *Server) run(o Options) error {
	ln, err := net.Listen("tcp", orDefault(o.Addr, "127.0.0.1:0"))
	if err != nil {
		return fmt.Errorf("listen for the test registry: %w", err)
	}
	s.Host, s.URL = ln.Addr().String(), "http://"+ln.Addr().String()
	var conf *tls.Config
	if o.TLS {
		s.URL = "https://" + s.Host
		if conf, err = s.certificate(o.Hosts); err != nil {
			return errors.Join(err, ln.Close())
		}
	}
	if o.Auth == AuthToken {
		if err := s.startTokens(o, conf); err != nil {
			return errors.Join(err, ln.Close())
		}
	}
	config, err := s.configuration(o)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s.app = handlers.NewApp(context.Background(), config)
	var h http.Handler = s.app
	if o.Referrers {
		h = newReferrers(h)
	}
	s.serve(ln, conf, s.handler(h, o.TokenApart))
	return nil
}

// handler is the whole server: it records a request, may apply a fault, and then passes it to the token service or the
// registry.
func (s *Server) handler(h http.Handler, tokenApart bool) http.Handler {
	if s.tokens != nil {
		h = s.tokens.limitUses(h)
		if !tokenApart {
			h = s.tokens.mount(h)
		}
	}
	return s.log.record(s.faults.inject(h))
}

func (s *Server) serve(ln net.Listener, conf *tls.Config, h http.Handler) {
	srv := &http.Server{Handler: h, TLSConfig: conf.Clone(), ReadHeaderTimeout: time.Minute, ErrorLog: silent()}
	done := make(chan error, 1)
	go func() {
		if conf != nil {
			done <- srv.ServeTLS(ln, "", "")
			return
		}
		done <- srv.Serve(ln)
	}()
	s.stops = append(s.stops, func() error {
		err := srv.Close()
		if served := <-done; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
}

func (s *Server) configuration(o Options) (*configuration.Configuration, error) {
	c := &configuration.Configuration{Storage: configuration.Storage{
		"cache":       {"blobdescriptor": "inmemory"},
		"delete":      {"enabled": true},
		"maintenance": {"uploadpurging": map[any]any{"enabled": false}, "readonly": map[any]any{"enabled": o.ReadOnly}},
	}}
	if o.Dir != "" {
		c.Storage["filesystem"] = configuration.Parameters{"rootdirectory": o.Dir}
	} else {
		c.Storage["inmemory"] = configuration.Parameters{}
	}
	c.Catalog.MaxEntries, c.Tags.MaxTags = 1000, 1000
	c.HTTP.RelativeURLs = o.RelativeURLs
	c.HTTP.Secret = "test" // signs upload sessions; random otherwise, with a warning
	c.Validation.Manifests.Indexes.Platforms = configuration.Platforms(orDefault(string(o.Children),
		string(ChildrenAll)))
	for _, p := range o.Platforms {
		c.Validation.Manifests.Indexes.PlatformList = append(c.Validation.Manifests.Indexes.PlatformList, platform(p))
	}
	var err error
	switch o.Auth {
	case AuthBasic:
		c.Auth, err = s.htpasswd()
	case AuthToken:
		c.Auth, err = s.tokens.configure(s.dir)
	}
	return c, err
}

func (s *Server) htpasswd() (configuration.Auth, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(s.Password), bcrypt.MinCost) // compared on every request: cheap
	if err != nil {
		return nil, fmt.Errorf("hash the test registry's password: %w", err)
	}
	path := filepath.Join(s.dir, "htpasswd")
	if err := os.WriteFile(path, []byte(s.Username+":"+string(hash)+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the test registry's password file: %w", err)
	}
	return configuration.Auth{"htpasswd": {"realm": "test registry", "path": path}}, nil
}

type keychain struct {
	host   string
	config authn.AuthConfig
}

// Resolve implements authn.Keychain.
func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if r.RegistryStr() != k.host || k.config.Username == "" {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(k.config), nil
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
