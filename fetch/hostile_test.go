package fetch_test

import (
	"context"
	"errors"
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
	"github.com/opencontainers/go-digest"

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
	if _, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, names...),
		u.options(newStore(t))); err != nil {
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
	text := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[` +
		strings.Repeat(layer+",", 20_000) + layer + `]}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request,
	) {
		_, _ = io.WriteString(w, text)
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	_, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, host+"/app:1"),
		options(newStore(t), &site{host: host}))
	wantError(t, err, "more than 20000 layers")
}

// TestImageTwoSizes: an image that has two sizes for one digest is an error of this image when its manifest is read.
// No bundle could have it, and others need not wait for its blobs to learn that.
func TestImageTwoSizes(t *testing.T) {
	t.Parallel()
	const imageType, indexType = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
	descriptor := func(mediaType string, content string, size int, platform string) string {
		d := digest.FromString(content)
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d%s}`, mediaType, d, size, platform)
	}
	image := func(config, layers string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]}`, imageType, config, layers)
	}
	const config, layer, amd64 = `{"os":"linux","architecture":"amd64"}`, "a layer",
		`,"platform":{"os":"linux","architecture":"amd64"}`
	const configType, layerType = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar"
	goodConfig, goodLayer := descriptor(configType, config, len(config), ""),
		descriptor(layerType, layer, len(layer), "")
	good := image(goodConfig, goodLayer)
	other := image(goodConfig, descriptor(layerType, layer, 5, ""))
	index := func(children ...string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`, indexType,
			strings.Join(children, ","))
	}
	for name, c := range map[string]struct{ root, twice string }{
		"layers":           {image(goodConfig, goodLayer+","+descriptor(layerType, layer, 5, "")), layer},
		"config and layer": {image(goodConfig, descriptor(layerType, config, 5, "")), config},
		"children": {index(descriptor(imageType, good, len(good), amd64),
			descriptor(imageType, good, 5, amd64)), good},
		"layers of children": {index(descriptor(imageType, good, len(good), amd64),
			descriptor(imageType, other, len(other), amd64)), layer},
	} {
		content := map[string]string{"/v2/good/manifests/1": good, "/v2/bad/manifests/1": c.root}
		for _, m := range []string{good, other, c.root} {
			content["/v2/good/manifests/"+digest.FromString(m).String()] = m
			content["/v2/bad/manifests/"+digest.FromString(m).String()] = m
		}
		var layers atomic.Int32
		registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch m, ok := content[r.URL.Path]; {
			case ok && strings.Contains(m, `"manifests"`):
				w.Header().Set("Content-Type", indexType)
				_, _ = io.WriteString(w, m)
			case ok:
				w.Header().Set("Content-Type", imageType)
				_, _ = io.WriteString(w, m)
			case strings.HasSuffix(r.URL.Path, "/blobs/"+digest.FromString(config).String()):
				_, _ = io.WriteString(w, config)
			default:
				if strings.Contains(r.URL.Path, "/blobs/") {
					layers.Add(1)
				}
				if r.URL.Path != "/v2/" {
					http.NotFound(w, r)
				}
			}
		}))
		host := strings.TrimPrefix(registry.URL, "http://")
		b := images([]string{"linux/amd64"}, host+"/good:1", host+"/bad:1")
		l, err := fetch.Resolve(t.Context(), b, options(newStore(t), &site{host: host}))
		registry.Close()
		wantError(t, err, "image "+host+"/bad:1", digest.FromString(c.twice).String(), "elsewhere in the image")
		if failed, ok := errors.AsType[*fetch.Errors](err); !ok || len(failed.Failed) != 1 {
			t.Errorf("%s: %v, %v", name, l, err)
		}
		if n := layers.Load(); n != 0 {
			t.Errorf("%s: %d requests for layers", name, n)
		}
	}
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
	b := &manifest.Bundle{Files: []manifest.File{{
		Name: "f", URL: srv.URL + "/f",
		SHA256: manifest.Sums{"": digestOf(data).Encoded()},
	}}}
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

// TestDeadConnection cuts a connection without a word, as a firewall that forgets it does. The next attempt must not
// go over it again.
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

// TestDownloadsHaveConnections asserts that each of the concurrent downloads from a server has a connection of its
// own, also from one that offers HTTP/2: the window of a single connection bounds the speed of a far server.
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
