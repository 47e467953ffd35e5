package cli_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
)

// A liar is a registry with one artifact, of which tests change what they like.
type liar struct {
	manifest ocispec.Manifest
	blobs    map[digest.Digest][]byte
	raw      []byte // instead of the manifest
}

func newLiar(t *testing.T) *liar {
	t.Helper()
	b := bundletest.New(t)
	data, err := published.Listing(b.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{blobs: map[digest.Digest][]byte{}}
	index, err := b.Reader.Index().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	l.blobs[b.Reader.Digest()] = index
	for _, d := range b.Reader.Blobs() {
		if l.blobs[d.Digest], err = b.Reader.ReadBlob(t.Context(), d.Digest, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	if err := json.Unmarshal(data, &l.manifest); err != nil {
		t.Fatal(err)
	}
	return l
}

// ServeHTTP implements http.Handler.
func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "/manifests/") {
		data := l.raw
		if data == nil {
			data, _ = json.Marshal(l.manifest)
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
		_, _ = w.Write(data)
		return
	}
	if _, d, ok := strings.Cut(r.URL.Path, "/blobs/"); ok {
		data, there := l.blobs[digest.Digest(d)]
		if !there {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}
}

// setIndex makes an index the artifact's.
func (l *liar) setIndex(data []byte) {
	d := digest.FromBytes(data)
	l.blobs[d] = data
	l.manifest.Config.Digest, l.manifest.Config.Size = d, int64(len(data))
}

func TestPullTrustsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lie  func(*liar)
		code int
		says string
	}{
		"the truth":        {func(*liar) {}, 0, ""},
		"manifest endless": {func(l *liar) { l.raw = bytes.Repeat([]byte(" "), 5<<20) }, 15, "more than 4194304 bytes"},
		"not JSON":         {func(l *liar) { l.raw = []byte("{manifest") }, 15, "not JSON"},
		"a page":           {func(l *liar) { l.raw = []byte("<html>") }, 15, "web page (HTML) in place of a manifest"},
		"an image":         {func(l *liar) { l.manifest.ArtifactType = "" }, 15, "not a bundle"},
		"index too large":  {func(l *liar) { l.manifest.Config.Size = 1 << 40 }, 15, "at most 67108864 are allowed"},
		"index of another size": {
			func(l *liar) { l.manifest.Config.Size++ }, 14, "wrong size",
		},
		"another index": {
			func(l *liar) { l.blobs[l.manifest.Config.Digest][100] ^= 1 }, 14, "wrong content",
		},
		"index not canonical": {
			func(l *liar) { l.setIndex(append(bytes.Clone(l.blobs[l.manifest.Config.Digest]), '\n')) }, 15,
			"index.json",
		},
		"file name in the index": {
			func(l *liar) {
				x, _ := bundle.ParseIndex(l.blobs[l.manifest.Config.Digest])
				x.Name = "../../escape"
				data, _ := x.Marshal()
				l.setIndex(data)
			}, 64, "is not valid as a file name",
		},
		"blobs that are not listed": {
			func(l *liar) { l.manifest.Layers = l.manifest.Layers[3:] }, 15, "is missing",
		},
		"blob that is lost": {
			func(l *liar) { delete(l.blobs, l.manifest.Layers[0].Digest) }, 14, "404",
		},
		"blob of another digest": {
			func(l *liar) {
				d := l.manifest.Layers[1].Digest
				l.blobs[d] = bytes.Repeat([]byte("x"), len(l.blobs[d]))
			}, 14, "wrong content",
		},
		"blob of another size": {
			func(l *liar) { l.manifest.Layers[0].Size++ }, 15, "refers to it with",
		},
		"digest of another kind": {
			func(l *liar) { l.manifest.Layers[0].Digest = "md5:00000000000000000000000000000000" }, 15, "md5",
		},
		"size below zero": {
			func(l *liar) { l.manifest.Layers[0].Size = -1 }, 15, "out of range",
		},
		"signature that leads elsewhere": {
			func(l *liar) {
				l.manifest.Layers = append(l.manifest.Layers, ocispec.Descriptor{
					MediaType: published.MediaTypeSignature, Digest: l.manifest.Config.Digest, Size: 2,
					Annotations: map[string]string{ocispec.AnnotationTitle: "../x.sigstore.json"},
				})
			}, 15, "is not a valid signature",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLiar(t)
			c.lie(l)
			s := httptest.NewServer(l)
			t.Cleanup(s.Close)
			dir := t.TempDir()
			args := []string{"pull", "--plain-http", "--cache", filepath.Join(dir, "cache"), "oci://" +
				strings.TrimPrefix(s.URL, "http://") + "/bundles/site:1"}
			if name != "file name in the index" {
				args = append(args, "-o", filepath.Join(dir, "it.kkb"))
			}
			var out, stderr bytes.Buffer
			code := cli.Main(t.Context(), args, terminal.Streams{In: strings.NewReader(""), Out: &out, Err: &stderr})
			if code != c.code || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, c.code, c.says, stderr.String())
			}
			if _, err := os.Stat(filepath.Join(dir, "it.kkb")); (err == nil) != (c.code == 0) {
				t.Errorf("the file: %v", err)
			}
		})
	}
}
