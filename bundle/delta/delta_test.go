package delta_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/bundle/published"
)

// A tree is the content of a layer.
type tree map[string][]byte

// text returns compressible content, always the same.
func text(seed int64, n int) []byte {
	rnd := rand.New(rand.NewSource(seed)) //nolint:gosec // must repeat
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "line %d of %d\n", rnd.Intn(1000), rnd.Intn(7))
	}
	return b.Bytes()[:n]
}

// program returns content that does not compress well, with addresses that shift by move.
func program(seed int64, n, move int) []byte {
	rnd := rand.New(rand.NewSource(seed)) //nolint:gosec // must repeat
	b := make([]byte, n)
	rnd.Read(b)
	for at := 100; at < n; at += 64 {
		b[at] = byte(move)
	}
	return b
}

func archive(t testing.TB, files tree, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		check(t, w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(files[n])), Typeflag: tar.TypeReg}))
		_, err := w.Write(files[n])
		check(t, err)
	}
	check(t, w.Close())
	return b.Bytes()
}

func zipped(t testing.TB, data []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	check(t, err)
	_, err = w.Write(data)
	check(t, err)
	check(t, w.Close())
	return b.Bytes()
}

// addImage adds an image with these layers, as they are.
func addImage(b *bundletest.Builder, ref string, layers ...[]byte) {
	m := ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    b.JSON(map[string]string{"architecture": "amd64", "os": "linux", "x": ref}),
	}
	m.SchemaVersion = 2
	m.Config.MediaType = ocispec.MediaTypeImageConfig
	for _, l := range layers {
		d := b.Bytes(l)
		d.MediaType = ocispec.MediaTypeImageLayerGzip
		m.Layers = append(m.Layers, d)
	}
	d := b.JSON(m)
	d.MediaType = ocispec.MediaTypeImageManifest
	b.Item(bundle.Item{Kind: bundle.KindImage, Ref: ref, Name: strings.Split(ref, ":")[0], Descriptor: d})
}

// pairOf returns two bundles, of which the second is an update of the first.
func pairOf(t testing.TB) (old, next *bundletest.Bundle) {
	t.Helper()
	base := tree{
		"etc/passwd": text(1, 900), "bin/sh": program(2, 900<<10, 1),
		"lib/libssl.so.3.0.1": program(3, 100_000, 1), "doc/a": text(4, 50_000), "empty": nil,
	}
	newer := tree{
		"etc/passwd": text(1, 900), "bin/sh": append(program(2, 900<<10, 2), 7, 7, 7),
		"lib/libssl.so.3.0.2": program(3, 100_000, 2), "doc/a": text(5, 50_000), "empty": nil, "new": text(9, 70_000),
	}
	same := zipped(t, archive(t, tree{"app": program(6, 30_000, 1)}, "app"), 6)
	o, n := bundletest.NewBuilder(t), bundletest.NewBuilder(t)
	n.Index.Version = "1.1.0"
	addImage(o, "docker.io/library/app:1", zipped(t, archive(t, base, "etc/passwd", "bin/sh", "lib/libssl.so.3.0.1",
		"doc/a", "empty"), 6), same)
	addImage(n, "docker.io/library/app:2",
		zipped(t, archive(t, newer, "etc/passwd", "new", "bin/sh", "lib/libssl.so.3.0.2", "empty", "doc/a"), 6), same)
	odd := append(zipped(t, archive(t, newer, "etc/passwd", "doc/a"), 6), zipped(t, []byte("a second member"), 9)...)
	addImage(n, "docker.io/library/odd:2", zipped(t, archive(t, newer, "new", "doc/a", "bin/sh"), 1), odd,
		[]byte("no archive, no gzip"), nil)
	addImage(o, "docker.io/library/bare:1", archive(t, base, "doc/a", "bin/sh"), archive(t, base, "doc/a")[:30_000])
	addImage(n, "docker.io/library/bare:2", archive(t, newer, "doc/a", "bin/sh"), archive(t, newer, "doc/a")[:30_000])
	o.File("https://files.example/v1.36.3/kube-apiserver", "kube-apiserver", nil, program(11, 700_000, 3))
	n.File("https://files.example/v1.36.4/kube-apiserver", "kube-apiserver", nil, program(11, 700_000, 4))
	return o.Bundle(), n.Bundle()
}

func from(b *bundletest.Bundle) *bundle.From { return &bundle.From{Name: b.Path, Reader: b.Reader} }

// create makes a delta and returns its path.
func create(t testing.TB, old, next *bundletest.Bundle) (string, delta.Created) {
	t.Helper()
	o := delta.Options{Output: filepath.Join(t.TempDir(), "x.kkd")}
	if old != nil {
		o.Old = from(old)
	}
	c, err := delta.Create(t.Context(), *from(next), o)
	check(t, err)
	return o.Output, c
}

// A fixture is a delta that several tests share.
type fixture struct {
	old, next *bundletest.Bundle
	delta     string
}

func TestPatch(t *testing.T) {
	old, next := pairOf(t)
	path, c := create(t, old, next)
	f := fixture{old, next, path}
	t.Run("the result has the same bytes", func(t *testing.T) { f.sameBytes(t, c) })
	t.Run("old bundle may be compressed differently", f.compressedDifferently)
	t.Run("another base is named before anything is written", f.anotherBase)
	t.Run("damage leaves nothing", f.damage)
	t.Run("an interrupted patch leaves nothing", f.interrupted)
	t.Run("an existing result stays on error", f.existing)
}

func (f fixture) sameBytes(t *testing.T, c delta.Created) {
	old, next, path := f.old, f.next, f.delta
	out := filepath.Join(t.TempDir(), "new.kkb")
	r, err := delta.Apply(t.Context(), path, delta.Options{Old: from(old), Output: out})
	check(t, err)
	sameFile(t, out, next.Path)
	if r.New != next.Reader.Digest() || r.Digest != r.New {
		t.Errorf("the result is %s and %s; %s was expected", r.New, r.Digest, next.Reader.Digest())
	}
	t.Logf("%d bytes for a bundle of %d; %d identified, %d as they are", c.Bytes, c.Size, c.Rebuilt, c.Kept)
	if c.Kept == 0 || c.Rebuilt == 0 {
		t.Errorf("%d bytes are kept and %d rebuilt; both were expected", c.Kept, c.Rebuilt)
	}
	if c.Bytes > 100_000 {
		t.Errorf("the delta has %d bytes", c.Bytes)
	}
	alone(t, out)
	alone(t, path)
}

func TestADeltaAgainstAListingCarriesTheOtherBlobs(t *testing.T) {
	old, next := pairOf(t)
	data, err := published.Listing(old.Reader)
	check(t, err)
	p, err := published.ParseListing(data)
	check(t, err)
	path := filepath.Join(t.TempDir(), "x.kkd")
	c, err := delta.Create(t.Context(), *from(next), delta.Options{Listed: delta.NewListing(p), Output: path})
	check(t, err)
	out := filepath.Join(t.TempDir(), "new.kkb")
	_, err = delta.Apply(t.Context(), path, delta.Options{Old: from(old), Output: out})
	check(t, err)
	sameFile(t, out, next.Path)
	if c.Old != old.Reader.Digest() || c.Base != 0 {
		t.Errorf("the delta is against %s and takes %d bytes of it", c.Old, c.Base)
	}
	other := filepath.Join(t.TempDir(), "other.kkb")
	if _, err := delta.Apply(t.Context(), path, delta.Options{Old: from(next), Output: other}); err == nil ||
		!strings.Contains(err.Error(), "name the right bundle") {
		t.Errorf("error %v", err)
	}
}

func TestUnpackMakesTheSameBytes(t *testing.T) {
	_, next := pairOf(t)
	path, c := create(t, nil, next)
	out := filepath.Join(t.TempDir(), "new.kkb")
	_, err := delta.Apply(t.Context(), path, delta.Options{Output: out})
	check(t, err)
	sameFile(t, out, next.Path)
	t.Logf("%d bytes for a bundle of %d", c.Bytes, c.Size)
	if c.Bytes >= c.Size*3/4 {
		t.Errorf("the pack has %d bytes, the bundle %d", c.Bytes, c.Size)
	}
}

// atLevel returns the bundle with all blobs compressed again.
func atLevel(t testing.TB, b *bundletest.Bundle, level bundle.Level) *bundletest.Bundle {
	t.Helper()
	c, err := cache.Open(t.TempDir(), level)
	check(t, err)
	for _, d := range b.Reader.Blobs() {
		rc, err := b.Reader.Blob(t.Context(), d.Digest, 0)
		check(t, err)
		w, _, err := c.Begin(t.Context(), d.Digest.String())
		check(t, err)
		_, err = io.Copy(w, rc)
		check(t, err)
		_, err = w.Commit(t.Context(), d.Size, d.Digest)
		check(t, errors.Join(err, w.Close(), rc.Close()))
	}
	path := filepath.Join(t.TempDir(), "other.kkb")
	_, err = bundle.Create(t.Context(), path, c, b.Reader.Index(), bundle.WriteOptions{})
	check(t, err)
	r, err := bundle.Open(path)
	check(t, err)
	t.Cleanup(func() { check(t, r.Close()) })
	return &bundletest.Bundle{Path: path, Reader: r, Cache: c}
}

func (f fixture) compressedDifferently(t *testing.T) {
	old, next, path := f.old, f.next, f.delta
	out := filepath.Join(t.TempDir(), "new.kkb")
	for _, level := range []bundle.Level{bundle.LevelDefault, bundle.LevelBest} {
		other := atLevel(t, old, level)
		if other.Reader.Encoder() == old.Reader.Encoder() {
			t.Fatal("the encoders are the same")
		}
		_, err := delta.Apply(t.Context(), path, delta.Options{Old: from(other), Output: out})
		check(t, err)
		sameFile(t, out, next.Path)
	}
}

func TestABundleOfTwoEncodersIsRefused(t *testing.T) {
	old, next := pairOf(t)
	other := atLevel(t, next, bundle.LevelDefault)
	src, err := bundle.Combine(nil, *from(old), *from(other))
	check(t, err)
	path := filepath.Join(t.TempDir(), "mixed.kkb")
	_, err = bundle.Create(t.Context(), path, src, next.Reader.Index(), bundle.WriteOptions{})
	check(t, err)
	mixed, err := bundle.Open(path)
	check(t, err)
	defer mixed.Close()
	out := filepath.Join(t.TempDir(), "x.kkd")
	_, err = delta.Create(t.Context(), bundle.From{Name: "mixed.kkb", Reader: mixed},
		delta.Options{Old: from(old), Output: out})
	refused, ok := errors.AsType[*delta.EncoderError](err)
	if !ok || refused.Bundle == refused.Own || strings.Contains(err.Error(), refused.Own) ||
		!strings.HasPrefix(err.Error(), "mixed.kkb was compressed by another version of kkbundle") {
		t.Errorf("error %v", err)
	}
	nothing(t, filepath.Dir(out))
}

func (f fixture) anotherBase(t *testing.T) {
	old, next, path := f.old, f.next, f.delta
	packed, _ := create(t, nil, next)
	for name, c := range map[string]struct {
		path string
		old  *bundle.From
		want string
	}{
		"another bundle": {path, from(next), "made against bundle " + old.Reader.Digest().String()},
		"no bundle":      {path, nil, "use kkbundle patch"},
		"pack":           {packed, from(old), "use kkbundle unpack"},
		"bundle":         {next.Path, from(old), "not a delta"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "new.kkb")
			_, err := delta.Apply(t.Context(), c.path, delta.Options{Old: c.old, Output: out})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want %q", err, c.want)
			}
			nothing(t, filepath.Dir(out))
		})
	}
}

func (f fixture) damage(t *testing.T) {
	old, path := f.old, f.delta
	whole, err := os.ReadFile(path)
	check(t, err)
	for i := range 20 {
		at := len(whole) * i / 20
		flipped := bytes.Clone(whole)
		flipped[at] ^= 0x10
		for name, data := range map[string][]byte{
			"flipped": flipped, "cut": whole[:at],
			"longer": append(bytes.Clone(whole), whole[:at+1]...),
		} {
			bad, out := filepath.Join(t.TempDir(), "bad.kkd"), filepath.Join(t.TempDir(), "new.kkb")
			check(t, os.WriteFile(bad, data, 0o600))
			if _, err := delta.Apply(t.Context(), bad, delta.Options{Old: from(old), Output: out}); !errors.Is(err,
				bundle.ErrDamaged) {
				t.Fatalf("%s at %d: error %v", name, at, err)
			}
			nothing(t, filepath.Dir(out))
		}
	}
}

func (f fixture) interrupted(t *testing.T) {
	old, next, path := f.old, f.next, f.delta
	out := filepath.Join(t.TempDir(), "new.kkb")
	for _, phase := range []string{"unpack", "restore files", "rebuild blobs", "write"} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := delta.Apply(ctx, path, delta.Options{
			Old: from(old), Output: out,
			Progress: func(p string, _, _ int64) {
				if p == phase {
					cancel()
				}
			},
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", phase, err)
		}
		nothing(t, filepath.Dir(out))
	}
	_, err := delta.Apply(t.Context(), path, delta.Options{Old: from(old), Output: out})
	check(t, err)
	sameFile(t, out, next.Path)
}

func (f fixture) existing(t *testing.T) {
	next, path := f.next, f.delta
	out := filepath.Join(t.TempDir(), "new.kkb")
	check(t, os.WriteFile(out, []byte("before"), 0o600))
	if _, err := delta.Apply(t.Context(), path, delta.Options{Old: from(next), Output: out}); err == nil {
		t.Fatal("no error")
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != "before" {
		t.Errorf("%q, %v", got, err)
	}
}

func nothing(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		t.Errorf("%s is left", e.Name())
	}
}

// alone checks that nothing lies beside a file.
func alone(t testing.TB, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	check(t, err)
	for _, e := range entries {
		if e.Name() != filepath.Base(path) {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func sameFile(t testing.TB, a, b string) {
	t.Helper()
	x, err := os.Open(a)
	check(t, err)
	defer x.Close()
	y, err := os.Open(b)
	check(t, err)
	defer y.Close()
	one, err := io.ReadAll(x)
	check(t, err)
	two, err := io.ReadAll(y)
	check(t, err)
	if !bytes.Equal(one, two) {
		t.Errorf("%s differs from %s", a, b)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
