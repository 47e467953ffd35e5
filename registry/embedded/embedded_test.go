package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/registry/dirlock"
	"github.com/kkbundle/kkbundle/registry/embedded"
)

// A logBuffer can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a registry and returns its host:port and what ends it.
func start(t *testing.T, o embedded.Options) (host string, stop func()) {
	t.Helper()
	r, err := embedded.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, l, nil) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, r.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func image(t *testing.T, seed int64) v1.Image {
	t.Helper()
	img, err := random.Image(1<<10, 2)
	if err == nil {
		img, err = mutate.Config(img, v1.Config{Labels: map[string]string{"seed": fmt.Sprint(seed)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func tag(t *testing.T, s string) name.Tag {
	t.Helper()
	ref, err := name.NewTag(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func status(err error) int {
	var e *transport.Error
	if errors.As(err, &e) {
		return e.StatusCode
	}
	return 0
}

func request(t *testing.T, method, url string, body io.Reader) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestSparseIndexDeleteAndCollect pushes an index with a platform missing, collects around it, deletes it and
// collects it.
func TestSparseIndexDeleteAndCollect(t *testing.T) {
	dir := t.TempDir()
	host, stop := start(t, embedded.Options{Dir: dir, Delete: true})
	there, missing := image(t, 1), image(t, 2)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: there}, mutate.IndexAddendum{Add: missing})
	ref := tag(t, host+"/registry.k8s.io/pause:3.10")
	digest, err := there.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref.Context().Digest(digest.String()), there); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+host+
		"/v2/registry.k8s.io/pause/manifests/3.10", bytes.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	put.Header.Set("Content-Type", "application/vnd.oci.image.index.v1+json")
	resp, err := http.DefaultClient.Do(put)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("an index without all its platforms: %s", resp.Status)
	}
	if _, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: dir}); !errors.As(err,
		new(*dirlock.LockedError)) {
		t.Errorf("collecting beside a registry that writes: %v", err)
	}
	stop()
	collect := func(o embedded.CollectOptions) embedded.Collected {
		t.Helper()
		o.Dir = dir
		c, err := embedded.Collect(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := collect(embedded.CollectOptions{Untagged: true}); c != (embedded.Collected{}) {
		t.Errorf("what the index needs is garbage: %+v", c)
	}
	host, stop = start(t, embedded.Options{Dir: dir, Delete: true})
	ref = tag(t, host+"/registry.k8s.io/pause:3.10")
	got, err := remote.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{got.Digest.String(), digest.String()} {
		if err := remote.Delete(ref.Context().Digest(d)); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	would := collect(embedded.CollectOptions{DryRun: true})
	if again := collect(embedded.CollectOptions{DryRun: true}); again != would {
		t.Errorf("a dry run removed something: %+v, then %+v", would, again)
	}
	// index, manifest, config, two layers
	if c := collect(embedded.CollectOptions{}); c != would || c.Blobs != 5 || c.Bytes == 0 {
		t.Errorf("removed %+v, a dry run said %+v", c, would)
	}
	if c := collect(embedded.CollectOptions{}); c != (embedded.Collected{}) {
		t.Errorf("then still %+v", c)
	}
}

// TestCollectRemovesNothingThatItCannotJudge damages a manifest: what it needs is not known then.
func TestCollectRemovesNothingThatItCannotJudge(t *testing.T) {
	dir := t.TempDir()
	host, stop := start(t, embedded.Options{Dir: dir, Delete: true})
	img, other := image(t, 1), image(t, 2)
	for ref, i := range map[string]v1.Image{"/a:1": img, "/b:1": other} {
		if err := remote.Write(tag(t, host+ref), i); err != nil {
			t.Fatal(err)
		}
	}
	d, err := other.Digest()
	if err == nil {
		err = remote.Delete(tag(t, host+"/b:1").Context().Digest(d.String()))
	}
	if err != nil {
		t.Fatal(err)
	}
	stop()
	m, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "docker/registry/v2/blobs/sha256", m.Hex[:2], m.Hex, "data")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: dir}); err == nil || c.Blobs != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: t.TempDir()}); err == nil {
		t.Error("a directory that is no registry's was taken")
	}
}

// TestRights has users, deletion switched off, and a registry that only reads.
func TestRights(t *testing.T) {
	dir, logs := t.TempDir(), &logBuffer{}
	hash, err := bcrypt.GenerateFromPassword([]byte("correct-horse"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, []byte("ops:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := embedded.Options{
		Dir: dir, Users: users,
		Logger: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	host, stop := start(t, o)
	ref, img := tag(t, host+"/app:1"), image(t, 1)
	login := remote.WithAuth(&authn.Basic{Username: "ops", Password: "correct-horse"})
	if err := remote.Write(ref, img); status(err) != http.StatusUnauthorized {
		t.Errorf("without a login: %v", err)
	}
	if err := remote.Write(ref, img,
		remote.WithAuth(&authn.Basic{
			Username: "ops",
			Password: "wrong-horse",
		})); status(err) != http.StatusUnauthorized {
		t.Errorf("a wrong password: %v", err)
	}
	if err := remote.Write(ref, img, login); err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Delete(ref.Context().Digest(d.String()), login); status(err) != http.StatusMethodNotAllowed {
		t.Errorf("deletion, which is off: %v", err)
	}
	if resp := request(t, http.MethodGet, "http://"+host+"/healthz", http.NoBody); resp.StatusCode != http.StatusOK {
		t.Errorf("health: %s", resp.Status)
	}
	for _, secret := range []string{"horse", string(hash), "_state="} {
		if strings.Contains(logs.String(), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
	stop()
	o.ReadOnly, o.Delete = true, true
	host, _ = start(t, o)
	ref = tag(t, host+"/app:1")
	if got, err := remote.Head(ref, login); err != nil || got.Digest != d {
		t.Errorf("pull: %v, %v", got, err)
	}
	if err := remote.Write(tag(t, host+"/app:2"), image(t, 3), login); status(err) != http.StatusMethodNotAllowed {
		t.Errorf("push to a registry that only reads: %v", err)
	}
	if _, err := embedded.Collect(t.Context(), embedded.CollectOptions{Dir: dir}); err != nil {
		t.Errorf("collecting beside a registry that only reads: %v", err)
	}
}

// TestUploadsContinueAfterARestart sends the second half of a blob to another process's registry, as it were.
func TestUploadsContinueAfterARestart(t *testing.T) {
	dir := t.TempDir()
	host, stop := start(t, embedded.Options{Dir: dir})
	at := func(resp *http.Response, code int, host string) string {
		t.Helper()
		if resp.StatusCode != code {
			t.Fatalf("%s %s: %s", resp.Request.Method, resp.Request.URL.Path, resp.Status)
		}
		return regexp.MustCompile(`//[^/]+`).ReplaceAllString(resp.Header.Get("Location"), "//"+host)
	}
	location := at(request(t, http.MethodPost, "http://"+host+"/v2/app/blobs/uploads/", http.NoBody),
		http.StatusAccepted, host)
	location = at(request(t, http.MethodPatch, location, strings.NewReader("hello ")), http.StatusAccepted, host)
	if _, err := embedded.Open(t.Context(), embedded.Options{Dir: dir}); !errors.As(err, new(*dirlock.LockedError)) {
		t.Errorf("a second registry in the directory: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	again, _ := start(t, embedded.Options{Dir: dir})
	location = strings.Replace(location, host, again, 1) +
		"&digest=sha256:b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"
	at(request(t, http.MethodPut, location, strings.NewReader("world")), http.StatusCreated, again)
}

// TestMetrics reads what Prometheus would.
func TestMetrics(t *testing.T) {
	r, err := embedded.Open(t.Context(), embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	var hosts []string
	for _, run := range []func(context.Context, net.Listener) error{
		r.RunMetrics,
		func(ctx context.Context, l net.Listener) error { return r.Run(ctx, l, nil) },
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, l.Addr().String())
		go func() { done <- run(ctx, l) }()
	}
	for range 3 {
		request(t, http.MethodGet, "http://"+hosts[1]+"/v2/", http.NoBody)
	}
	request(t, "BREW", "http://"+hosts[1]+"/v2/none/manifests/1", http.NoBody)
	// What is answered is counted a moment later.
	text := ""
	counted := func() bool {
		return strings.Contains(text, `requests_total{method="other",code="405"} 1`) &&
			strings.Contains(text, `requests_total{method="GET",code="200"} 3`)
	}
	for !counted() {
		data, err := io.ReadAll(request(t, http.MethodGet, "http://"+hosts[0]+"/metrics", http.NoBody).Body)
		if err != nil {
			t.Fatal(err)
		}
		text = string(data)
	}
	for _, want := range []string{
		"\nkkbundle_registry_requests_total{method=\"GET\",code=\"200\"} 3\n",
		"\n# TYPE kkbundle_registry_storage_free_bytes gauge\n",
		"# HELP kkbundle_registry_requests_in_flight Requests that are being answered.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := errors.Join(<-done, <-done, r.Close()); err != nil {
		t.Error(err)
	}
}
