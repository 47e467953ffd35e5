// Package upstream knows the servers that software comes from: which of them are asked and in which order, over
// which connections, how many requests at a time and how often again. It brings what they send into a cache, whole
// and checked, and continues what earlier runs began. It knows no items: an address or a digest is all that it is
// asked for.
package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/web"
	"github.com/kkbundle/kkbundle/web/dial"
	"github.com/kkbundle/kkbundle/web/logins"
)

// maxConcurrent bounds the concurrent requests to a host unless its source sets a limit.
const maxConcurrent = 8

// errPlainHTTP means a request without TLS was prevented because no source allows it.
var errPlainHTTP = errors.New("plain HTTP is used only for hosts with plainHTTP: true under sources")

// A Peer is a server for an upstream host's content: one of its mirrors, or the host itself.
type Peer struct {
	upstream string // host[:port] as in references and URLs
	Host     string // host[:port] to contact
	Prefix   string // path prefix, without slashes at its ends
	Plain    bool
	local    bool // this machine, without settings for TLS: plain HTTP is allowed where it speaks nothing else
	Spare    bool // another peer is tried if this one fails
	server   *server
	trip     http.RoundTripper // the connections, behind a guard
	login    *logins.Trip      // trip with registry authentication; nil until first used
}

// IsMirror reports whether the peer is another server than the upstream host.
func (p *Peer) IsMirror() bool { return p.Host != p.upstream || p.Prefix != "" }

// String names the upstream and, where there is one, the mirror.
func (p *Peer) String() string {
	if !p.IsMirror() {
		return p.upstream
	}
	return fmt.Sprintf("%s (mirror %s)", p.upstream, strings.TrimSuffix(p.Host+"/"+p.Prefix, "/"))
}

// Scheme returns https, or http for a peer that is contacted without TLS.
func (p *Peer) Scheme() string {
	if p.Plain {
		return "http"
	}
	return "https"
}

// WebClient returns a client without logins of registries.
func (p *Peer) WebClient() *http.Client { return p.Client(p.trip) }

// LoginTrip returns the connections with the authentication of a registry, which is p by its own name.
func (p *Peer) LoginTrip(registry string) *logins.Trip {
	if p.login == nil {
		p.login = logins.NewTrip(p.trip, p.Scheme(), registry)
	}
	return p.login
}

// Client sends requests through trip, which is an authenticating layer above the peer's connections.
func (p *Peer) Client(trip http.RoundTripper) *http.Client {
	return &http.Client{Transport: trip, CheckRedirect: web.CheckRedirect}
}

// Network connects a run with its hosts.
type Network struct {
	sources sourceList
	dir     BaseDir // of certificates and keys
	hosts   *Hosts
	log     *slog.Logger

	mu         sync.Mutex
	known      map[string][]*Peer // by upstream host
	transports map[dial.Files]*http.Transport
}

// NewNetwork returns the network of a run. dir is the directory of relative paths of certificates and keys.
func NewNetwork(list []sources.Source, dir BaseDir, hosts *Hosts, log *slog.Logger) *Network {
	return &Network{
		sources: list, dir: dir, hosts: hosts, log: log,
		known: map[string][]*Peer{}, transports: map[dial.Files]*http.Transport{},
	}
}

// Close ends the idle connections.
func (n *Network) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.transports {
		t.CloseIdleConnections()
	}
}

// Peers returns the servers for an upstream host, in order.
func (n *Network) Peers(host string) ([]*Peer, error) {
	host = CanonicalHost(host)
	n.mu.Lock()
	defer n.mu.Unlock()
	if list, ok := n.known[host]; ok {
		return list, nil
	}
	list, err := n.newPeers(host)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", host, err)
	}
	for _, p := range list[:len(list)-1] {
		p.Spare = true
	}
	n.known[host] = list
	return list, nil
}

func (n *Network) newPeers(host string) ([]*Peer, error) {
	source := n.sources.of(host)
	var list []*Peer
	for _, mirror := range source.Mirrors {
		p := &Peer{upstream: host}
		p.Host, p.Prefix, _ = strings.Cut(strings.Trim(mirror, "/"), "/")
		p.Host = CanonicalHost(p.Host)
		// The mirror's own source applies here too, and comes first.
		own := n.sources.of(p.Host)
		p.Plain = source.PlainHTTP || own.PlainHTTP && len(own.Mirrors) == 0
		list = append(list, p)
		if err := n.connect(p, joinSources(own, source)); err != nil {
			return nil, err
		}
	}
	if source.MirrorOnly && len(list) > 0 {
		return list, nil
	}
	p := &Peer{upstream: host, Host: host, Plain: source.PlainHTTP && len(list) == 0}
	p.local = !p.Plain && len(list) == 0 && sources.IsLoopback(host) && source.CA+source.Cert == ""
	list = append(list, p)
	return list, n.connect(p, source)
}

// joinSources returns own, with missing settings from other.
func joinSources(own, other sources.Source) sources.Source {
	own.CA = cmp.Or(own.CA, other.CA)
	own.MaxConcurrent = cmp.Or(own.MaxConcurrent, other.MaxConcurrent)
	if own.Cert == "" {
		own.Cert, own.Key = other.Cert, other.Key
	}
	return own
}

// connect sets up the connections of a peer.
func (n *Network) connect(p *Peer, source sources.Source) error {
	limit := source.MaxConcurrent
	if limit <= 0 {
		limit = maxConcurrent
	}
	p.server = n.hosts.server(p.Host, limit)
	trust := dial.Files{CA: source.CA, Cert: source.Cert, Key: source.Key}
	transport, err := n.transport(trust)
	if err != nil {
		return err
	}
	p.trip = &guard{
		next: transport, server: p.server, host: p.Host, scheme: p.Scheme(), local: p.local, log: n.log,
		plain: n.sources.plainHost, elsewhere: func(host string) (http.RoundTripper, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			other := n.sources.of(CanonicalHost(host))
			// The same company, so probably the same authority; but the client certificate is only for its own host.
			return n.transport(dial.Files{CA: cmp.Or(other.CA, trust.CA), Cert: other.Cert, Key: other.Key})
		},
	}
	return nil
}

// transport returns the connections with these files, shared by all users of the same ones. n is locked.
func (n *Network) transport(f dial.Files) (*http.Transport, error) {
	if t := n.transports[f]; t != nil {
		return t, nil
	}
	t, err := dial.NewTransport(dial.Files{CA: n.dir.Path(f.CA), Cert: n.dir.Path(f.Cert), Key: n.dir.Path(f.Key)})
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(n.dir.Path(f.Key)); err == nil && f.Key != "" && info.Mode().Perm()&0o077 != 0 {
		n.log.Warn("other users of this machine can read a private key; restrict it with chmod 600", "key", f.Key,
			"mode", info.Mode().Perm().String())
	}
	n.transports[f] = t
	return t, nil
}

// A sourceList configures access to hosts.
type sourceList []sources.Source

// of returns the settings of a host: by its own name, or by the longest matching pattern; else the zero value.
func (l sourceList) of(host string) sources.Source {
	var best sources.Source
	for _, src := range l {
		if src.Host == "" {
			continue
		}
		if domain, wild := strings.CutPrefix(src.Host, "*"); wild {
			if strings.HasSuffix(withoutPort(host, "443"), withoutPort(domain, "443")) &&
				len(src.Host) > len(best.Host) {
				best = src
			}
			continue
		}
		same := func(port string) bool { return withoutPort(src.Host, port) == withoutPort(host, port) }
		if same("443") || src.PlainHTTP && same("80") {
			return src
		}
	}
	return best
}

// plainHost reports whether a source allows requests to a host without TLS: by its own name, or as a mirror.
func (l sourceList) plainHost(host string) bool {
	if src := l.of(CanonicalHost(host)); src.PlainHTTP && len(src.Mirrors) == 0 {
		return true
	}
	for _, src := range l {
		for _, mirror := range src.Mirrors {
			named, _, _ := strings.Cut(mirror, "/")
			if src.PlainHTTP && withoutPort(named, "80") == withoutPort(host, "80") {
				return true
			}
		}
	}
	return false
}

// withoutPort removes the standard port.
func withoutPort(host, standard string) string {
	return strings.TrimSuffix(CanonicalHost(host), ":"+standard)
}

// A BaseDir is the directory of relative paths.
type BaseDir string

// Path returns a manifest's path as absolute or relative to the working directory; "" stays.
func (d BaseDir) Path(p string) string {
	if filepath.IsAbs(p) || p == "" {
		return p
	}
	return filepath.Join(string(d), filepath.FromSlash(p))
}

// CanonicalHost returns Docker Hub's host as in references.
func CanonicalHost(host string) string {
	host = strings.ToLower(host)
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// Route returns the servers for a URL, in order, with their URLs.
func (n *Network) Route(raw string) ([]Origin, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("not a URL") // url's error contains the whole URL, perhaps with a password
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%s: want an https URL", u.Redacted())
	}
	if u.User != nil {
		return nil, fmt.Errorf("%s: a URL must not have credentials in it; put them into netrc (~/.netrc or $NETRC)",
			u.Redacted())
	}
	host := strings.TrimSuffix(u.Host, ":443")
	if u.Scheme == "http" {
		host = strings.TrimSuffix(u.Host, ":80")
	}
	peers, err := n.Peers(host)
	if err != nil {
		return nil, err
	}
	var list []Origin
	for _, p := range peers {
		if u.Scheme == "http" && !p.IsMirror() && !p.Plain && !p.local {
			if len(peers) > 1 {
				continue // only mirrors have it
			}
			return nil, fmt.Errorf("%s: %w", host, errPlainHTTP)
		}
		list = append(list, Origin{Peer: p, URL: p.at(u)})
	}
	return list, nil
}

// at returns the peer's URL for an upstream URL.
func (p *Peer) at(u *url.URL) *url.URL {
	to := *u
	to.Fragment, to.RawFragment = "", ""
	if to.Host = p.Host; !p.local || u.Scheme != "http" {
		to.Scheme = p.Scheme()
	}
	if p.Prefix != "" {
		to.Path = "/" + p.Prefix + u.Path
		if u.RawPath != "" {
			to.RawPath = "/" + p.Prefix + u.RawPath
		}
	}
	return &to
}

// guard sets the User-Agent and prevents requests over unencrypted connections, including redirects and token services.
type guard struct {
	next   http.RoundTripper
	server *server
	host   string // this host is contacted with this scheme only: registries would be tried with both
	scheme string
	plain  func(host string) bool // reports whether a host may be contacted without TLS
	local  bool                   // see peer; references of images have no scheme
	log    *slog.Logger
	// elsewhere returns the connections to other hosts, reached by redirects and token services.
	elsewhere func(host string) (http.RoundTripper, error)
}

func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	req = req.Clone(ctx)
	next, here := g.next, req.URL.Host == g.host
	isRegistry := strings.HasPrefix(req.URL.Path, "/v2/")
	switch {
	case here && g.local && (!isRegistry && req.URL.Scheme == "http" || isRegistry && g.server.isHTTP.Load()):
		req.URL.Scheme = "http"
	case here:
		req.URL.Scheme = g.scheme
	default:
		var err error
		if next, err = g.elsewhere(req.URL.Host); err != nil {
			return nil, &permanentError{fmt.Errorf("source %s: %w", req.URL.Host, err)}
		}
	}
	if req.URL.Scheme != "https" && !g.plain(req.URL.Host) && !(here && g.local) {
		return nil, fmt.Errorf("%s: %w", req.URL.Host, errPlainHTTP)
	}
	req.Header.Set("User-Agent", web.UserAgent)
	resp, err := next.RoundTrip(req)
	if here && g.local && isRegistry && web.IsPlainHTTP(err) && req.Body == nil {
		if g.server.isHTTP.CompareAndSwap(false, true) {
			g.log.Log(ctx, LevelNote, "plain HTTP is used, because the host is this machine and speaks nothing else",
				"host", g.host)
		}
		req.URL.Scheme = "http"
		resp, err = next.RoundTrip(req)
	}
	if err != nil {
		return nil, unreachable(req.URL.Host, err)
	}
	if here {
		g.server.heard(resp.StatusCode)
	}
	return resp, nil
}
