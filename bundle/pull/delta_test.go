package pull_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/bundle/pull"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A notebook is a view that keeps the notes.
type notebook struct {
	mu    sync.Mutex
	notes []string
}

func (n *notebook) Note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notes = append(n.notes, fmt.Sprintf(format, args...))
}

func (*notebook) Meter(string) (set func(done, total int64), stop func()) {
	return func(int64, int64) {}, func() {}
}

func (*notebook) Item(string, string, string, string, error) {}

// versions are bundles of one large file, of which little changes, and the deltas from each to the next.
type versions struct {
	bundles []*bundletest.Bundle
	deltas  []registry.Delta
}

const fileSize = 400_000

func makeVersions(t *testing.T, n int) (v versions) {
	t.Helper()
	content := make([]byte, fileSize)
	rand.New(rand.NewSource(1)).Read(content) //nolint:gosec // must repeat
	for i := range n {
		content = bytes.Clone(content)
		content[1000*(i+1)] ^= 1
		b := bundletest.NewBuilder(t)
		b.File("https://files.example/big", "big", nil, content)
		b.File("https://files.example/small", "small", nil, []byte("small"))
		v.bundles = append(v.bundles, b.Bundle())
		if i > 0 {
			v.deltas = append(v.deltas, deltaOf(t, v.bundles[i-1], v.bundles[i]))
		}
	}
	return v
}

func deltaOf(t *testing.T, old, next *bundletest.Bundle) registry.Delta {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.kkd")
	_, err := delta.Create(t.Context(), bundle.From{Name: next.Path, Reader: next.Reader},
		delta.Options{Old: from(old), Output: path})
	check(t, err)
	data, err := os.ReadFile(path)
	check(t, err)
	return offered(old, next, data)
}

// offered offers data as a delta.
func offered(old, next *bundletest.Bundle, data []byte) registry.Delta {
	return registry.Delta{
		Delta: published.Delta{
			Old: old.Reader.Digest(), New: next.Reader.Digest(),
			File: ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))},
		},
		Open: func(offset int64) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data[offset:])), nil },
	}
}

func from(b *bundletest.Bundle) *bundle.From { return &bundle.From{Name: b.Path, Reader: b.Reader} }

func publish(t *testing.T, s *registrytest.Server, b *bundletest.Bundle,
	deltas ...registry.Delta,
) registry.PublishSummary {
	t.Helper()
	sum, err := registry.Publish(t.Context(), b.Reader, registry.PublishOptions{
		Repository: s.Host + "/bundles/site", Tags: []string{"1"}, PlainHTTP: true, Deltas: deltas,
	})
	check(t, err)
	return sum
}

// options are those of a site with its own empty cache.
func options(t *testing.T, s *registrytest.Server, have ...*bundletest.Bundle) (pull.Options, *notebook) {
	t.Helper()
	dir, notes := t.TempDir(), &notebook{}
	repo, err := name.NewRepository(s.Host + "/bundles/site")
	check(t, err)
	o := pull.Options{
		Name: "site", Repository: repo, Reference: "1", Level: "fast", View: notes,
		Fetch: fetch.Options{
			Sources:  []sources.Source{{Host: s.Host, PlainHTTP: true}},
			Keychain: authn.NewMultiKeychain(),
			Retry:    fetch.Retry{Attempts: 2, Wait: time.Millisecond, MaxWait: time.Millisecond},
		},
		OpenCache: func(level string) (*cache.Cache, string, error) {
			l, err := bundle.ParseLevel(level)
			if err != nil {
				return nil, "", err
			}
			c, err := cache.Open(filepath.Join(dir, "cache"), l)
			return c, dir, err
		},
		Check:  func(bundle.Index, []string, func(string) ([]byte, error)) error { return nil },
		Output: func(bundle.Index) (string, error) { return filepath.Join(dir, "out", "new.kkb"), nil },
	}
	check(t, os.Mkdir(filepath.Join(dir, "out"), 0o700))
	for _, b := range have {
		o.Have = append(o.Have, *from(b))
	}
	return o, notes
}

// pulled pulls and compares the file with the bundle. Nothing else is left beside it.
func pulled(t *testing.T, o pull.Options, want *bundletest.Bundle) pull.Result {
	t.Helper()
	r, err := pull.Pull(t.Context(), o)
	check(t, err)
	for _, path := range []string{r.Path, want.Path} {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := disk.Digest(t.Context(), r.Path, func(int) {})
	check(t, err)
	expected, err := disk.Digest(t.Context(), want.Path, func(int) {})
	check(t, err)
	if got != expected {
		t.Errorf("the pulled file differs from the published one")
	}
	entries, err := os.ReadDir(filepath.Dir(r.Path))
	check(t, err)
	if len(entries) != 1 {
		t.Errorf("beside the bundle lie %v", entries)
	}
	return r
}

func TestPullTakesTheDelta(t *testing.T) {
	t.Parallel()
	v := makeVersions(t, 3)
	old, middle, next := v.bundles[0], v.bundles[1], v.bundles[2]
	for listing, server := range map[string]registrytest.Options{
		"referrers API": {Referrers: true},
		"fallback tag":  {},
	} {
		s := registrytest.Start(t, server)
		first := publish(t, s, next, v.deltas...)
		if again := publish(t, s, next, v.deltas...); again.BytesSent != 0 || len(again.Deltas) != 2 ||
			again.Digest != first.Digest {
			t.Errorf("%s: publishing again sent %d bytes, attached %v", listing, again.BytesSent, again.Deltas)
		}
		for name, c := range map[string]struct {
			have   *bundletest.Bundle
			deltas []registry.Delta
		}{
			"one delta": {middle, v.deltas[1:]},
			"a chain":   {old, v.deltas},
		} {
			t.Run(listing+", "+name, func(t *testing.T) {
				o, notes := options(t, s, c.have)
				r := pulled(t, o, next)
				var want []digest.Digest
				for _, d := range c.deltas {
					want = append(want, d.File.Digest)
				}
				if !slices.Equal(r.Deltas, want) || r.Fetched > fileSize/10 {
					t.Errorf("fetched %d bytes with the deltas %v, want %v", r.Fetched, r.Deltas, want)
				}
				if !strings.Contains(notes.notes[0], "to fetch, in place of") {
					t.Errorf("notes %q", notes.notes)
				}
			})
		}
		t.Run(listing+", a bundle of another encoder", func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "best.kkb")
			c, err := cache.Open(t.TempDir(), bundle.LevelBest)
			check(t, err)
			for _, b := range middle.Reader.Blobs() {
				w, _, err := c.Begin(t.Context(), b.Digest.String())
				check(t, err)
				rc, err := middle.Reader.Blob(t.Context(), b.Digest, 0)
				check(t, err)
				_, err = io.Copy(w, rc)
				check(t, err)
				_, err = w.Commit(t.Context(), b.Size, b.Digest)
				check(t, err)
				check(t, w.Close())
				check(t, rc.Close())
			}
			_, err = bundle.Create(t.Context(), path, c, middle.Reader.Index(), bundle.WriteOptions{})
			check(t, err)
			best, err := bundle.Open(path)
			check(t, err)
			defer best.Close()
			o, _ := options(t, s, &bundletest.Bundle{Path: path, Reader: best})
			if r := pulled(t, o, next); len(r.Deltas) != 1 {
				t.Errorf("fetched %d bytes with the deltas %v", r.Fetched, r.Deltas)
			}
		})
		t.Run(listing+", a part", func(t *testing.T) {
			o, _ := options(t, s, middle)
			o.Items = []string{"https://files.example/big"}
			if r, err := pull.Pull(t.Context(), o); err != nil || len(r.Deltas) != 1 || r.Items != 1 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestPullWithoutAFittingDelta(t *testing.T) {
	t.Parallel()
	v := makeVersions(t, 3)
	old, middle, next := v.bundles[0], v.bundles[1], v.bundles[2]
	large := offered(middle, next, make([]byte, 2*fileSize))
	for name, c := range map[string]struct {
		have   *bundletest.Bundle
		deltas []registry.Delta
		says   string
	}{
		"none is published":             {middle, nil, ""},
		"it was made against another":   {old, v.deltas[1:], "no published delta fits"},
		"it is larger than the content": {middle, []registry.Delta{large}, "no published delta fits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{})
			publish(t, s, next, c.deltas...)
			o, notes := options(t, s, c.have)
			r := pulled(t, o, next)
			if len(r.Deltas) != 0 || r.Fetched < fileSize {
				t.Errorf("fetched %d bytes with the deltas %v", r.Fetched, r.Deltas)
			}
			if s.Count("GET", large.File.Digest.String()) != 0 ||
				!strings.Contains(strings.Join(notes.notes, "\n"), c.says) {
				t.Errorf("notes %q", notes.notes)
			}
		})
	}
}

func TestPullTakesBlobsWhereADeltaIsBad(t *testing.T) {
	t.Parallel()
	v := makeVersions(t, 2)
	old, next, good := v.bundles[0], v.bundles[1], v.deltas[0]
	data, err := io.ReadAll(must(good.Open(0)))
	check(t, err)
	flipped := bytes.Clone(data)
	flipped[len(flipped)/2] ^= 1
	back := deltaOf(t, next, old)
	backData, err := io.ReadAll(must(back.Open(0)))
	check(t, err)
	path := func(pattern string) *regexp.Regexp { return regexp.MustCompile(pattern) }
	for name, c := range map[string]struct {
		deltas []registry.Delta
		forge  func(t *testing.T, s *registrytest.Server, subject digest.Digest)
		fault  registrytest.Fault
		used   bool
		says   string
	}{
		"a byte is flipped on the way": {
			deltas: []registry.Delta{good}, says: "the delta cannot be used",
			fault: registrytest.Fault{
				Method: "GET", Path: path("/blobs/" + good.File.Digest.String()), Times: -1,
				Effect: registrytest.Corrupt(),
			},
		},
		"a byte was flipped before it was published": {
			deltas: []registry.Delta{offered(old, next, flipped)},
			says:   "the delta is damaged",
		},
		"the registry answers 503 for the list": {
			deltas: []registry.Delta{good}, says: "the registry does not list deltas",
			fault: registrytest.Fault{
				Path: path("/referrers/|/manifests/sha256-"), Times: -1,
				Effect: registrytest.Fail(http.StatusServiceUnavailable, "0"),
			},
		},
		"the registry answers 503 once": {
			deltas: []registry.Delta{good}, used: true, says: "in place of",
			fault: registrytest.Fault{
				Path: path("/referrers/|/manifests/sha256-|/blobs/"), Times: 1,
				Effect: registrytest.Fail(http.StatusServiceUnavailable, "0"),
			},
		},
		"the registry answers 503 for the delta": {
			deltas: []registry.Delta{good}, says: "the delta cannot be used",
			fault: registrytest.Fault{
				Method: "GET", Path: path("/blobs/" + good.File.Digest.String()), Times: -1,
				Effect: registrytest.Fail(http.StatusServiceUnavailable, "0"),
			},
		},
		"it is no delta": {
			deltas: []registry.Delta{offered(old, next, []byte("junk"))},
			says:   "not a delta of kkbundle",
		},
		"it makes another bundle": {
			deltas: []registry.Delta{offered(old, next, backData)},
			says:   "its manifest says",
		},
		"of two with one base one works": {
			deltas: []registry.Delta{offered(old, next, []byte("junk")), good},
			used:   true, says: "the delta cannot be used",
		},
		"its subject is another bundle": {
			says: "the delta is attached to another bundle",
			forge: func(t *testing.T, s *registrytest.Server, subject digest.Digest) {
				t.Helper()
				other := ocispec.Descriptor{
					MediaType: ocispec.MediaTypeImageManifest,
					Digest:    digest.FromString("other"), Size: 5,
				}
				attach(t, s, subject, good.Delta, other)
			},
		},
		"it is larger than promised": {
			says: "the delta cannot be used",
			forge: func(t *testing.T, s *registrytest.Server, subject digest.Digest) {
				t.Helper()
				less := good.Delta
				less.File.Size -= 10
				attach(t, s, subject, less, ocispec.Descriptor{
					MediaType: ocispec.MediaTypeImageManifest,
					Digest:    subject, Size: 5,
				})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := registrytest.Start(t, registrytest.Options{})
			sum := publish(t, s, next, c.deltas...)
			if c.forge != nil {
				c.forge(t, s, sum.Digest)
			}
			if c.fault.Effect != nil {
				s.AddFaults(c.fault)
			}
			o, notes := options(t, s, old)
			r := pulled(t, o, next)
			if (len(r.Deltas) == 1) != c.used || !strings.Contains(strings.Join(notes.notes, "\n"), c.says) {
				t.Errorf("deltas %v, notes %q", r.Deltas, notes.notes)
			}
		})
	}
}

func must(r io.ReadCloser, err error) io.Reader {
	if err != nil {
		panic(err)
	}
	return r
}

// attach lists a delta's manifest under the fallback tag of subject, whatever subject the manifest has.
func attach(t *testing.T, s *registrytest.Server, subject digest.Digest, d published.Delta, named ocispec.Descriptor) {
	t.Helper()
	data, err := d.Manifest(named)
	check(t, err)
	emptyConfig(t, s)
	put(t, s, digest.FromBytes(data).String(), ocispec.MediaTypeImageManifest, data)
	list, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{
			{
				MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data)),
				ArtifactType: published.ArtifactTypeDelta,
			},
		},
	})
	check(t, err)
	put(t, s, strings.ReplaceAll(subject.String(), ":", "-"), ocispec.MediaTypeImageIndex, list)
}

// emptyConfig uploads the blobs that a delta's manifest names, which the registry wants before the manifest.
func emptyConfig(t *testing.T, s *registrytest.Server) {
	t.Helper()
	v := makeVersions(t, 2)
	sum, err := registry.Publish(t.Context(), v.bundles[1].Reader, registry.PublishOptions{
		Repository: s.Host + "/bundles/site", Tags: []string{"other"}, PlainHTTP: true, Deltas: v.deltas,
	})
	if err != nil || len(sum.Deltas) != 1 {
		t.Fatal(sum, err)
	}
}

func put(t *testing.T, s *registrytest.Server, reference, mediaType string, data []byte) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+"/v2/bundles/site/manifests/"+reference,
		bytes.NewReader(data))
	check(t, err)
	q.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(q)
	check(t, err)
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	check(t, resp.Body.Close())
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s: %s: %s", reference, resp.Status, body)
	}
}

func TestPullIsInterruptedInTheDelta(t *testing.T) {
	t.Parallel()
	v := makeVersions(t, 2)
	s := registrytest.Start(t, registrytest.Options{})
	publish(t, s, v.bundles[1], v.deltas...)
	s.AddFaults(registrytest.Fault{Method: "GET", Path: regexp.MustCompile("/blobs/" +
		v.deltas[0].File.Digest.String()), Times: 1, Effect: registrytest.Stall()})
	o, _ := options(t, s, v.bundles[0])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for s.Count("GET", v.deltas[0].File.Digest.String()) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := pull.Pull(ctx, o); err == nil {
		t.Error("an interrupted pull succeeded")
	}
	if r := pulled(t, o, v.bundles[1]); len(r.Deltas) != 1 {
		t.Errorf("the next run fetched %d bytes with the deltas %v", r.Fetched, r.Deltas)
	}
}

func TestOpenWhole(t *testing.T) {
	t.Parallel()
	v := makeVersions(t, 2)
	old, next := v.bundles[0], v.bundles[1]
	s := registrytest.Start(t, registrytest.Options{})
	publish(t, s, old)
	path, out := filepath.Join(t.TempDir(), "x.kkd"), filepath.Join(t.TempDir(), "new.kkb")
	_, err := delta.Create(t.Context(), bundle.From{Name: next.Path, Reader: next.Reader},
		delta.Options{Old: from(old), Output: path})
	check(t, err)
	o, _ := options(t, s)
	o.Output = nil
	r, err := pull.OpenWhole(t.Context(), o, filepath.Dir(out))
	check(t, err)
	_, err = delta.Apply(t.Context(), path, delta.Options{Old: &bundle.From{Name: "old", Reader: r}, Output: out})
	check(t, err)
	check(t, r.Close())
	got, err := os.ReadFile(out)
	check(t, err)
	want, err := os.ReadFile(next.Path)
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the made bundle has other bytes")
	}
	s.ForgetRequests()
	again, err := pull.OpenWhole(t.Context(), o, filepath.Dir(out))
	check(t, err)
	check(t, again.Close())
	if n := s.Count("GET", "/blobs/"); n != 0 {
		t.Errorf("%d blobs were downloaded again", n)
	}
	o.Want = next.Reader.Digest()
	if _, err := pull.OpenWhole(t.Context(), o, filepath.Dir(out)); err == nil ||
		!strings.Contains(err.Error(), "name the right bundle") {
		t.Errorf("another base: %v", err)
	}
}
