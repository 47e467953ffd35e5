package fetch

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	userAgent    = "kkbundle"
	maxRedirects = 10
	maxCAFile    = 1 << 20
	maxHeaders   = 1 << 20

	maxConcurrent = 8 // requests that a host gets at once if its source does not say otherwise
)

// errPlainHTTP says that a server was about to be asked without TLS though no source allows that.
var errPlainHTTP = errors.New("plain HTTP is used only for hosts that sources name with plainHTTP: true")

// A peer is the server that is asked for what an upstream host publishes: the host itself or its mirror.
type peer struct {
	upstream  string // host[:port] as in references and URLs
	host      string // host[:port] that is asked
	prefix    string // path on it, without slashes at its ends
	plain     bool
	gate      *gate
	transport *http.Transport
	trip      http.RoundTripper // transport behind a guard
	door      *door             // trip behind what registries need; nil until one is asked
}

// String names the upstream and, where there is one, the mirror.
func (p *peer) String() string {
	if p.host == p.upstream && p.prefix == "" {
		return p.upstream
	}
	return fmt.Sprintf("%s (mirror %s)", p.upstream, strings.TrimSuffix(p.host+"/"+p.prefix, "/"))
}

func (p *peer) scheme() string {
	if p.plain {
		return "http"
	}
	return "https"
}

// client sends requests through trip, which is p.trip or an authenticating layer above it.
func (p *peer) client(trip http.RoundTripper) *http.Client {
	return &http.Client{Transport: trip, CheckRedirect: checkRedirect}
}

// checkRedirect follows redirects without telling another host what was meant for the first: net/http forwards
// credentials to subdomains.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	if req.URL.Host != via[0].URL.Host {
		for _, secret := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
			req.Header.Del(secret)
		}
	}
	return nil
}

// peer returns the server to ask for an upstream host.
func (s *session) peer(host string) (*peer, error) {
	host = canonicalHost(host)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.peers[host]; ok {
		return p, nil
	}
	p, err := s.newPeer(host)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", host, err)
	}
	s.peers[host] = p
	return p, nil
}

func (s *session) newPeer(host string) (*peer, error) {
	source := s.source(host)
	p := &peer{upstream: host, host: host, plain: source.PlainHTTP}
	if source.Mirror != "" {
		p.host, p.prefix, _ = strings.Cut(strings.Trim(source.Mirror, "/"), "/")
		p.host = canonicalHost(p.host)
		// What is said of the mirror itself as a host holds for it here too.
		mirror := s.source(p.host)
		p.plain = p.plain || mirror.PlainHTTP
		source.CA = cmp.Or(source.CA, mirror.CA)
		source.MaxConcurrent = cmp.Or(source.MaxConcurrent, mirror.MaxConcurrent)
	}
	limit := source.MaxConcurrent
	if limit <= 0 {
		limit = maxConcurrent
	}
	if s.slots[p.host] == nil {
		s.slots[p.host] = newGate(limit)
	}
	p.gate = s.slots[p.host]
	roots, err := s.roots(source.CA)
	if err != nil {
		return nil, err
	}
	p.transport = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    20 * time.Second,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // bytes as they are published: digests and ranges are of these
		MaxIdleConnsPerHost:    limit,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
		// A connection that died without a word is found and left; HTTP/2 would send every further attempt over it.
		HTTP2: &http.HTTP2Config{SendPingTimeout: s.opts.Retry.Idle / 4, PingTimeout: s.opts.Retry.Idle / 4},
	}
	p.trip = &guard{next: p.transport, host: p.host, scheme: p.scheme(), plain: s.plainHost}
	return p, nil
}

// source returns what is said of a host; the zero value if nothing is.
func (s *session) source(host string) manifest.Source {
	for _, src := range s.opts.Sources {
		same := func(port string) bool { return withoutPort(src.Host, port) == withoutPort(host, port) }
		if same("443") || src.PlainHTTP && same("80") {
			return src
		}
	}
	return manifest.Source{}
}

// plainHost tells whether a source allows to ask a host without TLS.
func (s *session) plainHost(host string) bool {
	for _, src := range s.opts.Sources {
		named := src.Host
		if src.Mirror != "" {
			named, _, _ = strings.Cut(src.Mirror, "/")
		}
		if src.PlainHTTP && withoutPort(named, "80") == withoutPort(host, "80") {
			return true
		}
	}
	return false
}

// withoutPort leaves out the port that goes without saying.
func withoutPort(host, standard string) string {
	return strings.TrimSuffix(canonicalHost(host), ":"+standard)
}

// roots returns the system's certificate authorities and those of the file; nil is the system's alone.
func (s *session) roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil // crypto/tls takes nil for the system's
	}
	pem, err := readFile(s.path(file), maxCAFile)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a machine without any: the file is enough
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca: %s has no certificate in PEM form", file)
	}
	return pool, nil
}

// path makes a path of the manifest absolute or relative to the working directory.
func (s *session) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(s.opts.Dir, filepath.FromSlash(p))
}

func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return data, nil
}

// canonicalHost spells Docker Hub's names as references do.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// route returns the server to ask for a URL and the URL to ask it for.
func (s *session) route(raw string) (*peer, *url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("not a URL: %w", err)
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, nil, fmt.Errorf("%s: want an https URL", u.Redacted())
	}
	if u.User != nil {
		return nil, nil, fmt.Errorf("%s: a URL must not have credentials in it; put them into netrc (~/.netrc or $NETRC)", u.Redacted())
	}
	host := strings.TrimSuffix(u.Host, ":443")
	if u.Scheme == "http" {
		host = strings.TrimSuffix(u.Host, ":80")
	}
	p, err := s.peer(host)
	if err != nil {
		return nil, nil, err
	}
	mirrored := p.host != p.upstream || p.prefix != ""
	if u.Scheme == "http" && !mirrored && !p.plain {
		return nil, nil, fmt.Errorf("%s: %w", host, errPlainHTTP)
	}
	to := *u
	to.Fragment, to.RawFragment = "", ""
	to.Scheme, to.Host = p.scheme(), p.host
	if p.prefix != "" {
		to.Path = "/" + p.prefix + u.Path
		if u.RawPath != "" {
			to.RawPath = "/" + p.prefix + u.RawPath
		}
	}
	return p, &to, nil
}

// guard names the program and keeps requests off unencrypted connections, redirects and token services included.
type guard struct {
	next   http.RoundTripper
	host   string // is asked with this scheme only: registries would be tried with both
	scheme string
	plain  func(host string) bool // tells which hosts may be asked without TLS
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if req.URL.Host == g.host {
		req.URL.Scheme = g.scheme
	}
	if req.URL.Scheme != "https" && !g.plain(req.URL.Host) {
		return nil, fmt.Errorf("%s: %w", req.URL.Host, errPlainHTTP)
	}
	req.Header.Set("User-Agent", userAgent)
	return g.next.RoundTrip(req)
}

// A gate lets a bounded number of requests through to one host, and none while that host asks everybody to wait.
type gate struct {
	slots chan struct{}
	mu    sync.Mutex
	until time.Time
}

func newGate(limit int) *gate { return &gate{slots: make(chan struct{}, limit)} }

// enter waits until a request may be sent. The returned function ends it.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	leave = func() { <-g.slots }
	g.mu.Lock()
	pause := time.Until(g.until)
	g.mu.Unlock()
	if err := sleep(ctx, pause); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// hold lets nothing through for a while.
func (g *gate) hold(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := time.Now().Add(d); until.After(g.until) {
		g.until = until
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
