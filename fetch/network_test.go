package fetch_test

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	mathbig "math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// lines is a logger that keeps what it is told.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), part)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A connectProxy is a real proxy, which wants a password and knows where names lead.
type connectProxy struct {
	*httptest.Server
	to, user, password string

	mu      sync.Mutex
	tunnels []string
	refuse  int // a status instead of a tunnel
}

func newProxy(t *testing.T, to string) *connectProxy {
	p := &connectProxy{to: to, user: "anna", password: "s3cret"}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() { p.CloseClientConnections(); p.Close() })
	return p
}

// asked returns the methods and addresses of the requests so far.
func (p *connectProxy) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tunnels)
}

// answer sets the status of the next answers, 0 for a tunnel.
func (p *connectProxy) answer(status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = status
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.tunnels = append(p.tunnels, r.Method+" "+r.Host)
	refuse := p.refuse
	p.mu.Unlock()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(p.user+":"+p.password))
	switch {
	case refuse != 0:
		w.WriteHeader(refuse)
		return
	case r.Header.Get("Proxy-Authorization") != want:
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	case r.Method != http.MethodConnect:
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	upstream, err := net.Dial("tcp", p.to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	client, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(upstream, client); _ = upstream.Close() }()
	_, _ = io.Copy(client, upstream)
	_ = client.Close()
}

func TestProxy(t *testing.T) {
	data := noise(400, 50_000)
	s := newSite(t, true)
	s.put("/f", data)
	proxy := newProxy(t, s.host)
	set := func(password string) {
		t.Setenv("HTTPS_PROXY", "http://anna:"+password+"@"+strings.TrimPrefix(proxy.URL, "http://"))
	}
	run := func() (*lines, error) {
		said := &lines{}
		o := options(newStore(t))
		o.Sources = []sources.Source{{Host: "example.com", CA: s.ca}} // what the certificate is for
		o.Logger = said.logger()
		_, err := fetch.All(t.Context(), lock(filePin("https://example.com/f", data)), o)
		return said, err
	}
	set("s3cret")
	if _, err := run(); err != nil {
		t.Fatal(err)
	}
	if asked := proxy.asked(); !slices.Equal(asked, []string{"CONNECT example.com:443"}) {
		t.Errorf("the proxy was asked for %q", asked)
	}
	for what, c := range map[string]struct {
		password string
		refuse   int
		says     []string
	}{
		"wrong password": {"wr0ng", 0, []string{
			"example.com cannot be reached", "407", "user and password",
			"HTTPS_PROXY",
		}},
		"forbidden": {"s3cret", 403, []string{"403", "the proxy blocks this host"}},
		"no way":    {"s3cret", 502, []string{"502", "cannot reach this host either", "tried 3 times"}},
	} {
		set(c.password)
		proxy.answer(c.refuse)
		said, err := run()
		wantError(t, err, c.says...)
		for _, secret := range []string{"s3cret", "wr0ng", "anna:"} {
			if strings.Contains(err.Error(), secret) || said.count(secret) > 0 {
				t.Errorf("%s: shows %q: %v", what, secret, err)
			}
		}
	}
	t.Setenv("HTTPS_PROXY", "http://anna:s3cret@127.0.0.1:1")
	_, err := run()
	wantError(t, err, "no connection to the proxy", "NO_PROXY")
	t.Setenv("HTTPS_PROXY", "http://anna:s3cret@%zz")
	_, err = run()
	wantError(t, err, "the proxy's address is not valid")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("shows the password: %v", err)
	}
	t.Setenv("NO_PROXY", "example.com")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	o := options(newStore(t))
	o.Sources = []sources.Source{{Host: "example.com", Mirrors: sources.Mirrors{s.host}, MirrorOnly: true, CA: s.ca}}
	if _, err := fetch.All(t.Context(), lock(filePin("https://example.com/f", data)), o); err != nil {
		t.Errorf("what needs no proxy: %v", err)
	}
}

// TestUnreachable gives a host up that never answered, once for all that is to come from there, and says what to do.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	var pins []manifest.Pin
	for i := range 6 {
		pins = append(pins, filePin(fmt.Sprintf("https://127.0.0.1:1/f%d", i), noise(uint64(i), 10)))
	}
	said := &lines{}
	o := options(newStore(t))
	o.Jobs, o.Logger, o.Retry.Attempts = 1, said.logger(), 9
	_, err := fetch.All(t.Context(), lock(pins...), o)
	wantError(t, err, "6 of 6", "6 items: 127.0.0.1:1 cannot be reached", "refused", "check its name", "HTTPS_PROXY",
		"mirror")
	if n := said.count("trying again"); n != 2 {
		t.Errorf("tried again %d times", n)
	}
	// That it lasts is said now and then, and how long three attempts last is the machine's affair; TestMayTell has
	// that.
	if n := said.count("level=WARN") - said.count("still trying"); n != 0 {
		t.Errorf("%d warnings about what the error says anyway", n)
	}
}

// TestTokenExpiresInTheMiddle breaks a blob in the middle and no longer takes the token it was asked for with.
func TestTokenExpiresInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var blob string
	for p, c := range w.content {
		if strings.HasPrefix(p, "/v2/app/blobs/") && len(c.data) > 10_000 {
			blob = p
		}
	}
	var broken, expired atomic.Bool
	var tokens atomic.Int32
	var ranges []string
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == worldTokens {
			tokens.Add(1)
			if expired.Load() {
				_, _ = io.WriteString(rw, `{"token": "better"}`)
				return
			}
		}
		if expired.Load() && strings.HasPrefix(r.URL.Path, "/v2/") {
			if r.Header.Get("Authorization") != "Bearer better" {
				challenge(rw, r)
				return
			}
			r.Header.Set("Authorization", "Bearer good")
		}
		if r.URL.Path == blob {
			ranges = append(ranges, r.Header.Get("Range"))
			if !broken.Swap(true) {
				half(rw, r, w, func() { expired.Store(true); panic(http.ErrAbortHandler) })
			}
		}
		w.ServeHTTP(rw, r)
	}))
	defer srv.Close()
	got := build(t.Context(), newMemoryStore(), strings.TrimPrefix(srv.URL, "http://"), thrice())
	if got.err != nil {
		t.Fatal(got.err)
	}
	want := []string{"", fmt.Sprintf("bytes=%d-", len(w.content[blob].data)/2)}
	if !expired.Load() || !slices.Equal(ranges, want) {
		t.Errorf("the blob was asked for with %q, want %q", ranges, want)
	}
}

// TestMemory asks again for a file whose checksum nobody publishes, and has it only if it changed.
func TestMemory(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	address := s.put("/f", noise(430, 9000))
	b := &manifest.Bundle{Files: []manifest.File{{Name: "f", URL: address}}}
	o := options(newStore(t), s)
	o.Memory = filepath.Join(t.TempDir(), "memory")
	var bodies atomic.Int32
	count := func() {
		s.fault(func(http.ResponseWriter, *http.Request, siteFile) bool { bodies.Add(1); return false })
	}
	resolve := func() digest.Digest {
		t.Helper()
		count()
		l, err := fetch.Resolve(t.Context(), b, o)
		if err != nil {
			t.Fatal(err)
		}
		return l.Items[0].Digest
	}
	first := resolve()
	var transferred int64
	o.Progress = func(e fetch.Event) { transferred = max(transferred, e.Done) }
	if again := resolve(); again != first || transferred != 0 || s.count("", "/f") != 2 {
		t.Errorf("%s then %s, %d bytes, %d requests", first, again, transferred, s.count("", "/f"))
	}
	s.put("/f", noise(431, 9000))
	if changed := resolve(); changed != digestOf(noise(431, 9000)) || transferred != 9000 {
		t.Errorf("it changed and was taken for the old one: %s", changed)
	}
	entries, err := os.ReadDir(o.Memory)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	// A cache that lost the blob, a memory that makes no sense, and one that lies about the address.
	o.Store, transferred = newStore(t), 0
	if resolve(); transferred != 9000 {
		t.Error("the cache has nothing and nothing was fetched")
	}
	file := filepath.Join(o.Memory, entries[0].Name())
	for _, bad := range []string{"{", `{"url":"https://else.example/","validator":"\"x\"","digest":"` + first.String() +
		`","size":9000}`} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		transferred = 0
		if got := resolve(); got != digestOf(noise(431, 9000)) || transferred != 9000 {
			t.Errorf("%s: %s, %d bytes", bad, got, transferred)
		}
	}
	// A weak validator promises nothing about bytes.
	s.mu.Lock()
	weak := s.files["/f"]
	weak.etag = "W/" + weak.etag
	s.files["/f"] = weak
	s.mu.Unlock()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	resolve()
	if _, err := os.Stat(file); err == nil {
		t.Error("a weak validator was believed")
	}
}

// clientCertificate writes a key pair and returns its files with the authority that a server trusts.
func clientCertificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: mathbig.NewInt(1), Subject: pkix.Name{CommonName: "builder"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return writeFile(t, "client.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		writeFile(t, "client.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))), pool
}

// TestClientCertificate shows a certificate to the host that it is for, and not to where that one leads.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	cert, key, pool := clientCertificate(t)
	data := noise(460, 500)
	var shown []string
	var mu sync.Mutex
	serve := func(name, redirect string, auth tls.ClientAuthType) *httptest.Server {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			shown = append(shown, fmt.Sprintf("%s %d", name, len(r.TLS.PeerCertificates)))
			mu.Unlock()
			if redirect != "" {
				http.Redirect(w, r, redirect, http.StatusFound)
				return
			}
			_, _ = w.Write(data)
		}))
		srv.TLS = &tls.Config{ClientAuth: auth, ClientCAs: pool}
		srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv
	}
	cdn := serve("cdn", "", tls.RequestClientCert)
	origin := serve("origin", cdn.URL+"/f", tls.RequireAndVerifyClientCert)
	said := &lines{}
	o := options(newStore(t))
	o.Logger = said.logger()
	o.Sources = []sources.Source{{
		Host: strings.TrimPrefix(origin.URL, "https://"), CA: caFile(t, origin), Cert: cert,
		Key: key,
	}}
	pin := filePin(origin.URL+"/f", data)
	if _, err := fetch.All(t.Context(), lock(pin), o); err != nil {
		t.Fatal(err)
	}
	if want := []string{"origin 1", "cdn 0"}; !slices.Equal(shown, want) {
		t.Errorf("shown: %q", shown)
	}
	if said.count("other users of this machine can read") != 0 {
		t.Error("a key of mode 0600 was warned about")
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	o.Store = newStore(t)
	if _, err := fetch.All(t.Context(), lock(pin), o); err != nil ||
		said.count("other users of this machine can read") != 1 {
		t.Errorf("%v, a key that all can read was not warned about", err)
	}
	o.Sources[0].Cert, o.Sources[0].Key, o.Store = "", "", newStore(t)
	if _, err := fetch.All(t.Context(), lock(pin), o); err == nil {
		t.Error("the server took nobody's certificate")
	}
}

// TestEncoded has servers that send something compressed though nobody asked for it.
func TestEncoded(t *testing.T) {
	t.Parallel()
	data := append([]byte("\x1f\x8b"), noise(470, 3000)...)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(digestOf(data).Encoded() + "\n"))
	_ = z.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		if r.URL.Path == "/sums" {
			_, _ = w.Write(packed.Bytes())
			return
		}
		_, _ = w.Write(data)
	}))
	defer srv.Close()
	o := options(newStore(t), &site{host: strings.TrimPrefix(srv.URL, "http://")})
	resolve := func(f manifest.File) error {
		_, err := fetch.Resolve(t.Context(), &manifest.Bundle{Files: []manifest.File{f}}, o)
		return err
	}
	if err := resolve(manifest.File{Name: "a", URL: srv.URL + "/a", Checksums: srv.URL + "/sums"}); err != nil {
		t.Errorf("a page that is stored compressed: %v", err)
	}
	if err := resolve(manifest.File{Name: "b", URL: srv.URL + "/b.tgz"}); err != nil {
		t.Errorf("an archive that is said to be encoded: %v", err)
	}
	wantError(t, resolve(manifest.File{Name: "c", URL: srv.URL + "/c"}), "encoding gzip", "sha256")
	wantError(t, resolve(manifest.File{
		Name: "d", URL: srv.URL + "/d",
		SHA256: manifest.Sums{"": digestOf(nil).Encoded()},
	}), "encoding gzip", "wrong content")
}

// TestEstimateParts counts what an interrupted run left.
func TestEstimateParts(t *testing.T) {
	t.Parallel()
	data := noise(480, 10_000)
	s := newSite(t, false)
	pin := filePin(s.put("/f", data), data)
	s.fault(cutAfter(4000), answer(404))
	o := options(newMemoryStore(), s)
	_, err := fetch.All(t.Context(), lock(pin), o)
	wantError(t, err, "404")
	e := estimate(t, lock(pin), o)
	if e.Download != 6000 || e.Resumed != 4000 {
		t.Errorf("%+v", e)
	}
}

// TestResolveGoesOn returns a lock of what could be had.
func TestResolveGoesOn(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	b := &manifest.Bundle{Files: []manifest.File{
		{Name: "a", URL: s.put("/a", noise(1, 9))},
		{Name: "b", URL: s.url + "/b"},
		{Name: "c", URL: s.put("/c", noise(2, 9))},
	}}
	l, err := fetch.Resolve(t.Context(), b, options(newStore(t), s))
	wantError(t, err, "/b", "404")
	if l == nil || len(l.Items) != 2 {
		t.Errorf("%+v", l)
	}
}

// TestIdentityToken logs in with the token that docker login keeps for some registries in the place of a password.
func TestIdentityToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == worldTokens {
			asked = append(asked, r.Method+" "+r.FormValue("grant_type")+" "+r.FormValue("refresh_token"))
			_, _ = io.WriteString(rw, `{"access_token": "good"}`)
			return
		}
		w.ServeHTTP(rw, r)
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	o := options(newStore(t), &site{host: host})
	o.Keychain = identity{}
	if _, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, host+"/app:1.0"), o); err != nil {
		t.Fatal(err)
	}
	if want := []string{"POST refresh_token keep-me"}; !slices.Equal(asked, want) {
		t.Errorf("asked for a token with %q", asked)
	}
}

type identity struct{}

func (identity) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig{IdentityToken: "keep-me"}), nil
}
