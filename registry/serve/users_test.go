package serve_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

func usersFile(t *testing.T, cost int, logins ...string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# people\n\n")
	for _, l := range logins {
		user, password, _ := strings.Cut(l, ":")
		hash, err := bcrypt.GenerateFromPassword([]byte(password), cost)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s:%s\n", user, hash)
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func basic(login string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(login))
}

// TestUsers holds who is let in.
func TestUsers(t *testing.T) {
	t.Parallel()
	users := usersFile(t, bcrypt.MinCost, "ann:right", "bob:secret:with:colons")
	s := start(t, serve.Options{Users: users}, bundletest.New(t).Path)
	for _, path := range []string{
		"/v2/", "/v2/" + app + "/tags/list", "/", "/files/", "/charts/index.yaml", "/metrics",
		"/none",
	} {
		for header, status := range map[string]int{
			"X: y": 401, basic("ann:wrong"): 401, basic("eve:right"): 401, basic("ann:"): 401, basic(":right"): 401,
			basic("annr:ight"): 401, "Authorization: Bearer x": 401, basic("ann:" + strings.Repeat("x", 2000)): 401,
			basic("ann:right"): 200, basic("bob:secret:with:colons"): 200,
		} {
			if path == "/none" && status == 200 {
				status = 404
			}
			r := s.ask(t, "GET", path, header)
			if r.StatusCode != status {
				t.Errorf("%s with %s: %s, want %d", path, header, r.Status, status)
			}
			if status == 401 && !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), `Basic realm=`) {
				t.Errorf("%s: no challenge", path)
			}
			if status == 401 && strings.HasPrefix(path, "/v2/") && r.code(t) != "UNAUTHORIZED" {
				t.Errorf("%s: %s", path, r.body)
			}
		}
	}
	if r := s.ask(t, "DELETE", "/v2/"); r.StatusCode != 401 {
		t.Errorf("a stranger learns what is allowed: %s", r.Status)
	}
	if r := s.ask(t, "GET", "/healthz"); r.StatusCode != 200 {
		t.Errorf("/healthz: %s", r.Status)
	}
	replacement := usersFile(t, bcrypt.MinCost, "ann:other")
	if err := os.Rename(replacement, users); err != nil {
		t.Fatal(err)
	}
	if err := s.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	for login, status := range map[string]int{"ann:right": 401, "ann:other": 200} {
		if r := s.ask(t, "GET", "/v2/", basic(login)); r.StatusCode != status {
			t.Errorf("%s after users were replaced: %s", login, r.Status)
		}
	}
}

// TestBadLogins has many come with wrong passwords while one who was let in goes on.
func TestBadLogins(t *testing.T) {
	t.Parallel()
	s := start(t, serve.Options{Users: usersFile(t, 8, "ann:right")}, bundletest.New(t).Path)
	if r := s.ask(t, "GET", "/v2/", basic("ann:right")); r.StatusCode != 200 {
		t.Fatal(r.Status)
	}
	var wg sync.WaitGroup
	var refused, busy atomic.Int64
	for worker := range 20 {
		wg.Go(func() {
			for i := range 100 {
				r, err := s.try(t.Context(), "GET", "/v2/", basic(fmt.Sprintf("ann:%d-%d", worker, i)))
				switch {
				case err != nil:
					t.Error(err)
				case r.StatusCode == http.StatusUnauthorized:
					refused.Add(1)
				case r.StatusCode == http.StatusTooManyRequests && r.Header.Get("Retry-After") != "":
					busy.Add(1)
				default:
					t.Errorf("%s", r.Status)
				}
				if i%10 == 0 {
					if r, err := s.try(t.Context(), "GET", "/v2/", basic("ann:right")); err != nil ||
						r.StatusCode != 200 {
						t.Errorf("who was let in: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	if refused.Load() == 0 || busy.Load() == 0 {
		t.Errorf("%d were refused, %d told to wait", refused.Load(), busy.Load())
	}
}

// TestUsersFile holds that every wrong line is named, and no hash is.
func TestUsersFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	text := "ann:$apr1$abcdefgh$secrethash\nnobody\nbob:{SHA}secrethash=\ncost:$2y$31$" + strings.Repeat("a", 53) + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	x := bundletest.New(t)
	_, err := serve.New(t.Context(), serve.Options{Bundles: []string{x.Path}, Users: path})
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, want := range []string{"line 1", "line 2", "line 3", "line 4", "htpasswd -B"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "secrethash") {
		t.Errorf("a hash is in: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := serve.New(t.Context(), serve.Options{Bundles: []string{x.Path}, Users: path}); err == nil {
		t.Error("a file without users was taken")
	}
}

// TestCheckListen holds which addresses need TLS.
func TestCheckListen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address       string
		secure, plain bool
		ok            bool
	}{
		{"127.0.0.1:5000", false, false, true},
		{"[::1]:5000", false, false, true},
		{"localhost:5000", false, false, true},
		{"127.8.8.8:0", false, false, true},
		{":5000", false, false, false},
		{"0.0.0.0:5000", false, false, false},
		{"[::]:5000", false, false, false},
		{"10.0.0.1:5000", false, false, false},
		{"localhost.example:5000", false, false, false},
		{":5000", true, false, true},
		{":5000", false, true, true},
		{":5000", true, true, false},
		{"5000", false, false, false},
	} {
		if err := serve.CheckListen(c.address, c.secure, c.plain); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestAutoCertificate keeps the authority, and makes a new certificate only where one is needed.
func TestAutoCertificate(t *testing.T) {
	t.Parallel()
	dir, now := filepath.Join(t.TempDir(), "tls"), time.Now()
	names := []string{"host", "localhost", "127.0.0.1", "::1"}
	get := func(names []string, now time.Time) *serve.Certificate {
		c, err := serve.AutoCertificate(dir, names, now)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get(names, now)
	if again := get(names, now.AddDate(0, 1, 0)); again.Fingerprint != first.Fingerprint ||
		!again.Leaf.Equal(first.Leaf) {
		t.Error("the second start has another certificate")
	}
	if more := get(append(names, "10.1.2.3"), now); more.Fingerprint != first.Fingerprint ||
		more.Leaf.VerifyHostname("10.1.2.3") != nil {
		t.Error("a new address is not in the certificate, or the authority is another")
	}
	if late := get(names, now.AddDate(1, 1, 0)); late.Fingerprint != first.Fingerprint ||
		late.Leaf.NotAfter.Before(now.AddDate(2, 0, 0)) {
		t.Error("a certificate that ended is still used")
	}
	for _, key := range []string{"ca.key", "server.key"} {
		if info, err := os.Stat(filepath.Join(dir, key)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", key, info.Mode(), err)
		}
	}
	x := bundletest.New(t)
	s, err := serve.New(t.Context(), serve.Options{Bundles: []string{x.Path}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	current := get(names, now)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l, func() *tls.Certificate { return &current.Certificate }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	pem, err := os.ReadFile(current.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String()+"/v2/",
		http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != 200 {
		t.Error(res.Status, err)
	}
}
