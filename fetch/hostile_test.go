package fetch_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestTokenServiceApart has the token service on a private address of its own, as GitLab does.
func TestTokenServiceApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := newUpstream(t, registrytest.Options{Dir: dir}) // go-containerregistry could not push to the other
	u := newUpstream(t, registrytest.Options{Dir: dir, TLS: true, Auth: registrytest.AuthToken, TokenApart: true})
	names := []string{"registry.k8s.io/a:1", "registry.k8s.io/b:1", "registry.k8s.io/c:1"}
	for _, n := range names {
		_, path, _ := strings.Cut(n, "/")
		open.pushImage("k8s/"+path, platformImage(t, "linux/amd64"))
	}
	u.ForgetRequests()
	if _, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, names...), u.options(newStore(t))); err != nil {
		t.Fatal(err)
	}
	if n := u.Count(http.MethodGet, "^/v2/$"); n != 1 {
		t.Errorf("the registry was asked %d times how to log in", n)
	}
}

// TestTokenServicePlain: that a registry may be asked without TLS does not let it send the password elsewhere so.
func TestTokenServicePlain(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, `{"refresh_token": "s3cret"}`)
	}))
	defer tokens.Close()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+tokens.URL+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer registry.Close()
	host, service := strings.TrimPrefix(registry.URL, "http://"), strings.TrimPrefix(tokens.URL, "http://")
	o := options(newStore(t), &site{host: host})
	o.Keychain = badKeychain{}
	b := images([]string{"linux/amd64"}, host+"/app:1")
	_, err := fetch.Resolve(t.Context(), b, o)
	wantError(t, err, service, "plainHTTP: true")
	if asked.Load() != 0 {
		t.Error("the password was sent")
	}
	o = options(newStore(t), &site{host: host}, &site{host: service})
	o.Keychain = badKeychain{}
	_, err = fetch.Resolve(t.Context(), b, o)
	wantError(t, err, "has no token")
	if asked.Load() == 0 || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}

// TestImageTooManyParts has a manifest with more layers than any image.
func TestImageTooManyParts(t *testing.T) {
	t.Parallel()
	layer := `{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"` + digestOf(nil).String() + `","size":0}`
	text := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[` + strings.Repeat(layer+",", 20_000) + layer + `]}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	_, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, host+"/app:1"), options(newStore(t), &site{host: host}))
	wantError(t, err, "more than 20000 layers")
}

// TestLockIsTheSameAgain resolves what a server tells no size of, before and after the cache has it.
func TestLockIsTheSameAgain(t *testing.T) {
	t.Parallel()
	data := noise(90, 5000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.(http.Flusher).Flush() // no length
		_, _ = w.Write(data)
	}))
	defer srv.Close()
	o := options(newStore(t), &site{host: strings.TrimPrefix(srv.URL, "http://")})
	b := &manifest.Bundle{Files: []manifest.File{{Name: "f", URL: srv.URL + "/f", SHA256: manifest.Sums{"": digestOf(data).Encoded()}}}}
	first, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	second, err := fetch.Resolve(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" || first.Items[0].Size != 5000 {
		t.Errorf("size %d, then (-first +second):\n%s", first.Items[0].Size, diff)
	}
}

// TestDeadConnection cuts a connection without a word, as a firewall that forgets it does. The next attempt must not go over it again.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	data := noise(91, 1<<20)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var mu sync.Mutex
	asked := map[string]int{} // by connection
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.RemoteAddr]++
		if asked[r.RemoteAddr] > 1 {
			t.Errorf("asked %d times over one connection, whose first answer never arrived", asked[r.RemoteAddr])
			giveUp()
		}
		mu.Unlock()
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data)
	}))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	front := startForgetful(t, srv.Listener.Addr().String())
	trusted := &site{host: front, ca: caFile(t, srv)}
	o := options(newStore(t), trusted)
	o.Retry.Attempts, o.Retry.Idle = math.MaxInt, 2*time.Second
	if _, err := fetch.All(ctx, lock(filePin("https://"+front+"/f", data)), o); err != nil {
		t.Fatal(err)
	}
}

// startForgetful is a relay that swallows what comes over its first connection after the first 300 KB.
func startForgetful(t *testing.T, to string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for first := true; ; first = false {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				return
			}
			t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
			go func() { _, _ = io.Copy(server, client) }()
			go func() {
				if first {
					_, _ = io.CopyN(client, server, 300_000)
					_, _ = io.Copy(io.Discard, server)
					return
				}
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	return ln.Addr().String()
}

// TestDownloadsHaveConnections asserts that each of the concurrent downloads from a server has a connection of its own, also from one
// that offers HTTP/2: the window of a single connection bounds the speed of a far server.
func TestDownloadsHaveConnections(t *testing.T) {
	t.Parallel()
	const jobs = 6
	var mu sync.Mutex
	connections := map[string]bool{}
	together := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if connections[r.RemoteAddr+r.URL.Path] = true; len(connections) == jobs {
			close(together)
		}
		mu.Unlock()
		select {
		case <-together:
		case <-r.Context().Done():
		}
		_, _ = fmt.Fprint(w, r.URL.Path)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "https://")
	o := options(newStore(t), &site{host: host, ca: caFile(t, srv)})
	o.Jobs = jobs
	pins := make([]manifest.Pin, jobs)
	for i := range pins {
		path := fmt.Sprintf("/file-%d", i)
		pins[i] = filePin(srv.URL+path, []byte(path))
	}
	if _, err := fetch.All(t.Context(), lock(pins...), o); err != nil {
		t.Fatal(err)
	}
	addresses := map[string]bool{}
	for c := range connections {
		address, _, _ := strings.Cut(c, "/")
		addresses[address] = true
	}
	if len(addresses) != jobs {
		t.Errorf("%d downloads at a time came over %d connections", jobs, len(addresses))
	}
}
