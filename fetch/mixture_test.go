package fetch_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// TestNoMixtureOfVersions: a file of unknown digest changes upstream while it is read, and the connection breaks in
// between. The result is the new version, whatever the server says about versions, and never a part of each.
func TestNoMixtureOfVersions(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	before, after := noise(61, size), noise(62, size)
	young := time.Now().UTC()
	headers := map[string]func(h http.Header, version string){
		"no validator": func(http.Header, string) {},
		"weak ETag":    func(h http.Header, version string) { h.Set("ETag", `W/"same"`) },
		"young date":   func(h http.Header, version string) { h.Set("Last-Modified", young.Format(http.TimeFormat)) },
		"strong ETag":  func(h http.Header, version string) { h.Set("ETag", fmt.Sprintf("%q", version)) },
		"If-Range unheard, no ETag in parts": func(h http.Header, version string) {
			if version == "before" {
				h.Set("ETag", `"before"`)
			}
		},
	}
	for name, set := range headers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			address := s.put("/f", before)
			s.fault(
				func(w http.ResponseWriter, _ *http.Request, _ siteFile) bool {
					set(w.Header(), "before")
					w.Header().Set("Content-Length", fmt.Sprint(size))
					_, _ = w.Write(before[:size*2/3])
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				},
				func(w http.ResponseWriter, r *http.Request, _ siteFile) bool {
					set(w.Header(), "after")
					if rng := r.Header.Get("Range"); rng != "" && (r.Header.Get("If-Range") == "" ||
						strings.HasPrefix(name, "If-Range")) {
						r.Header.Del("If-Range")
						http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(after))
						return true
					}
					_, _ = w.Write(after)
					return true
				},
				func(w http.ResponseWriter, _ *http.Request, _ siteFile) bool {
					w.Header().Set("Content-Length", fmt.Sprint(size))
					_, _ = w.Write(after)
					return true
				},
			)
			b := &manifest.Bundle{
				Metadata:  manifest.Metadata{Name: "b", Version: "1"},
				Platforms: []string{"linux/amd64"}, Files: []manifest.File{{URL: address}},
			}
			l, err := fetch.Resolve(t.Context(), b, options(newStore(t), s))
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Items[0].Digest; got != digestOf(after) {
				t.Errorf("got %s, want %s: a mixture of two versions", got, digestOf(after))
			}
		})
	}
}

// TestFileWithoutLengthIsNotComplete: the end of a connection is no end of a file, unless its digest is known.
func TestFileWithoutLengthIsNotComplete(t *testing.T) {
	t.Parallel()
	data := noise(63, 100_000)
	cut := func(n int) func(w http.ResponseWriter, _ *http.Request, _ siteFile) bool {
		return func(w http.ResponseWriter, _ *http.Request, _ siteFile) bool {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
			_, _ = conn.Write(data[:n])
			return true
		}
	}
	s := newSite(t, false)
	address := s.put("/f", data)
	s.fault(cut(50_000), cut(50_000), cut(50_000), cut(50_000))
	b := &manifest.Bundle{
		Metadata: manifest.Metadata{Name: "b", Version: "1"}, Platforms: []string{"linux/amd64"},
		Files: []manifest.File{{URL: address}},
	}
	_, err := fetch.Resolve(t.Context(), b, options(newStore(t), s))
	wantError(t, err, "/f", "no Content-Length", "sha256")

	s = newSite(t, false)
	pin := filePin(s.put("/f", data), data)
	s.fault(cut(len(data)))
	if _, err := fetch.All(t.Context(), lock(pin), options(newStore(t), s)); err != nil {
		t.Errorf("with a known digest: %v", err)
	}
}

// TestWithdrawnArtifact: an artifact manifest's blobs would not be in the bundle, so it is refused.
func TestWithdrawnArtifact(t *testing.T) {
	t.Parallel()
	const mediaType = "application/vnd.oci.artifact.manifest.v1+json"
	u := newUpstream(t, registrytest.Options{})
	blob := []byte("policy")
	text := fmt.Sprintf(`{"mediaType":%q,"artifactType":"application/x","blobs":[{"mediaType":"application/x","digest":%q,"size":%d}]}`, mediaType, digestOf(blob), len(blob))
	u.AddFaults(registrytest.Fault{Times: -1, Effect: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/v2/":
			case strings.Contains(r.URL.Path, "/manifests/1"),
				strings.Contains(r.URL.Path, "/manifests/"+digest.FromString(text).String()):
				w.Header().Set("Content-Type", mediaType)
				_, _ = io.WriteString(w, text)
			case strings.Contains(r.URL.Path, "/blobs/"):
				_, _ = w.Write(blob)
			default:
				http.NotFound(w, r)
			}
		})
	}})
	_, err := fetch.Resolve(t.Context(), images([]string{"linux/amd64"}, "registry.k8s.io/art:1"),
		u.options(newStore(t)))
	wantError(t, err, "registry.k8s.io/art:1", "withdrawn", mediaType)
}
