package serve_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// A site is a server in a test.
type site struct {
	*httptest.Server
	server *serve.Server
	log    *lines
}

// lines collects what is logged.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t testing.TB, o serve.Options, paths ...string) *site {
	t.Helper()
	log := &lines{}
	o.Bundles, o.Logger = paths, slog.New(slog.NewTextHandler(log, nil))
	s, err := serve.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return &site{Server: web, server: s, log: log}
}

// A reply is a response with its body.
type reply struct {
	*http.Response
	body []byte
}

// ask sends a request; headers are "Name: value".
func (s *site) ask(t testing.TB, method, path string, headers ...string) reply {
	t.Helper()
	r, err := s.try(t.Context(), method, path, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

func (s *site) try(ctx context.Context, method, path string, headers ...string) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, http.NoBody)
	if err != nil {
		return reply{}, err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	client := &http.Client{Transport: s.Client().Transport, CheckRedirect: func(*http.Request,
		[]*http.Request,
	) error {
		return http.ErrUseLastResponse
	}}
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return reply{res, body}, err
}

// code is the error code in the specification's error body.
func (r reply) code(t testing.TB) string {
	t.Helper()
	var e struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal(r.body, &e); err != nil || len(e.Errors) != 1 || e.Errors[0].Message == "" {
		t.Errorf("%s: error body %q: %v", r.Request.URL, r.body, err)
		return ""
	}
	return e.Errors[0].Code
}

func randomBytes(seed int64, n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return b
}

// textBytes are bytes that shrink to half.
func textBytes(seed int64, n int) []byte {
	return []byte(hex.EncodeToString(randomBytes(seed, n/2+1)))[:n]
}

// artifact adds an item whose manifest is m.
func artifact(b *bundletest.Builder, kind, ref string, m ocispec.Manifest) ocispec.Descriptor {
	m.Versioned, m.MediaType = specs.Versioned{SchemaVersion: 2}, ocispec.MediaTypeImageManifest
	d := b.JSON(m)
	d.MediaType, d.ArtifactType = m.MediaType, m.ArtifactType
	b.Item(bundle.Item{Kind: kind, Ref: ref, Descriptor: d})
	return d
}

// attach adds a referrer of a manifest.
func attach(b *bundletest.Builder, ref, artifactType string, subject digest.Digest, content string) ocispec.Descriptor {
	config := b.Bytes([]byte("{}"))
	config.MediaType = ocispec.MediaTypeEmptyJSON
	layer := b.Bytes([]byte(content))
	layer.MediaType = "application/vnd.example.statement+json"
	return artifact(b, bundle.KindReferrer, ref, ocispec.Manifest{
		ArtifactType: artifactType, Config: config, Layers: []ocispec.Descriptor{layer},
		Subject:     &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: subject, Size: 1},
		Annotations: map[string]string{"org.example.made": content},
	})
}

// copyFile copies a bundle to where it may be changed.
func copyFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy.kkb")
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}
