package bundle_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// copied makes a bundle with blobs of one and of several frames, stored and compressed, and many small ones.
func copied(t testing.TB) *bundletest.Bundle {
	b := bundletest.NewBuilder(t)
	b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 1, 3, 90_000))
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2))
	b.File("local/random", "random", nil, bundletest.Random(3, 9<<20))
	b.File("local/text", "text", nil, bundletest.Text(4, 5<<20))
	b.File("local/empty", "empty", nil, nil)
	return b.Bundle()
}

func combine(t testing.TB, scratch *cache.Cache, readers ...*bundle.Reader) *bundle.Combined {
	t.Helper()
	var from []bundle.From
	for i, r := range readers {
		from = append(from, bundle.From{Name: string(rune('a'+i)) + ".kkb", Reader: r})
	}
	c, err := bundle.Combine(scratch, from...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openLevel(t testing.TB, level bundle.Level) *cache.Cache {
	t.Helper()
	c, err := cache.Open(t.TempDir(), level)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reopen writes x and opens and verifies what was written.
func reopen(t *testing.T, src bundle.Source, x bundle.Index) *bundle.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy.kkb")
	if _, err := bundle.Create(t.Context(), path, src, x, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if _, err := r.Verify(t.Context(), bundle.VerifyOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// A copy of everything has the same bytes, and so has a copy of that, and one of the bundle taken from itself and a
// part.
func TestCombineWhole(t *testing.T) {
	t.Parallel()
	b := copied(t)
	want, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	part := reopen(t, combine(t, nil, b.Reader), bundle.Index{Name: "part", Items: b.Reader.Index().Items[2:]})
	for name, readers := range map[string][]*bundle.Reader{
		"one": {b.Reader}, "two": {b.Reader, part},
		"part first": {part, b.Reader},
	} {
		var got bytes.Buffer
		if _, err := bundle.Write(t.Context(), &got, combine(t, nil, readers...), b.Reader.Index(),
			bundle.WriteOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s: the copy has other bytes", name)
		}
	}
}

// A part has the bytes that the same items have when they are written from a cache, and other readers read it.
func TestCombinePart(t *testing.T) {
	t.Parallel()
	b := copied(t)
	x := b.Reader.Index()
	x.Name, x.Items = "part", x.Items[1:4]
	r := reopen(t, combine(t, nil, b.Reader), x)
	var direct bytes.Buffer
	if _, err := bundle.Write(t.Context(), &direct, b.Cache, x, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if r.Size() != int64(direct.Len()) {
		t.Errorf("%d bytes, %d when written from the cache", r.Size(), direct.Len())
	}
	var copied bytes.Buffer
	if _, err := bundle.Write(t.Context(), &copied, combine(t, nil, b.Reader), x, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(copied.Bytes(), direct.Bytes()) {
		t.Error("the bytes differ from those written from the cache")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	path := filepath.Join(t.TempDir(), "part.kkb")
	if err := os.WriteFile(path, copied.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "python3", "../testdata/reader/kkb.py", "verify",
		path).CombinedOutput(); err != nil {
		t.Errorf("kkb.py: %v\n%s", err, out)
	}
}

// Bundles with pieces of different sizes: the first one's size holds, and what has another is compressed again.
func TestCombineFrameSizes(t *testing.T) {
	t.Parallel()
	small, cache := copied(t), openLevel(t, bundle.LevelBest)
	best := bundletest.NewBuilder(t)
	best.Cache = cache
	best.File("local/other", "other", nil, bundletest.Random(9, 9<<20))
	other := best.Bundle()
	scratch := openLevel(t, small.Reader.Level())
	c := combine(t, scratch, small.Reader, other.Reader)
	x := bundle.Index{Name: "both", Items: append(append([]bundle.Item{}, small.Reader.Index().Items...),
		other.Reader.Index().Items...)}
	if _, err := bundle.Write(t.Context(), io.Discard, combine(t, nil, small.Reader, other.Reader), x,
		bundle.WriteOptions{}); err == nil {
		t.Error("written without compressing again")
	}
	n, err := c.Recompress(t.Context(), x.Items, nil)
	if err != nil || n != 9<<20 {
		t.Fatalf("%d bytes compressed again: %v", n, err)
	}
	r := reopen(t, c, x)
	if r.FrameSize() != small.Reader.FrameSize() || r.Encoder() != small.Reader.Encoder() {
		t.Errorf("frames of %d by %s", r.FrameSize(), r.Encoder())
	}
}

// Frames of another encoder are copied all the same, and the result says so.
func TestCombineEncoders(t *testing.T) {
	t.Parallel()
	fast := copied(t)
	builder := bundletest.NewBuilder(t)
	builder.Cache = openLevel(t, bundle.LevelBetter)
	builder.File("local/better", "better", nil, bundletest.Text(9, 5<<20))
	better := builder.Bundle()
	x := bundle.Index{Name: "both", Items: append(append([]bundle.Item{}, fast.Reader.Index().Items...),
		better.Reader.Index().Items...)}
	r := reopen(t, combine(t, nil, fast.Reader, better.Reader), x)
	for _, id := range []string{fast.Reader.Encoder(), better.Reader.Encoder()} {
		if !strings.Contains(r.Encoder(), id) {
			t.Errorf("%q does not name %q", r.Encoder(), id)
		}
	}
	if r.Level() != bundle.LevelFast {
		t.Errorf("level %s", r.Level())
	}
	again := reopen(t, combine(t, nil, r), x)
	if again.Encoder() != r.Encoder() {
		t.Errorf("a copy of the copy says %q", again.Encoder())
	}
}

// Any flipped byte of what is copied is found, the bundle is named, and nothing is left.
func TestCombineDamaged(t *testing.T) {
	t.Parallel()
	b := copied(t)
	whole, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for at := 20_000; at < len(whole)-20_000; at += len(whole) / 40 {
		data := bytes.Clone(whole)
		data[at] ^= 0x10
		r, err := bundle.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			continue // not even opened
		}
		path := filepath.Join(t.TempDir(), "copy.kkb")
		_, err = bundle.Create(t.Context(), path, combine(t, nil, r), r.Index(), bundle.WriteOptions{})
		if !errors.Is(err, bundle.ErrDamaged) || !strings.Contains(err.Error(), "copy from a.kkb: ") {
			t.Errorf("byte %d: %v", at, err)
		}
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
			t.Errorf("byte %d: left %v, %v", at, left, err)
		}
		found++
	}
	if found < 20 {
		t.Errorf("only %d damaged bundles were tried", found)
	}
}

func TestCombineCancelled(t *testing.T) {
	t.Parallel()
	b := copied(t)
	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "copy.kkb")
	_, err := bundle.Create(ctx, path, combine(t, nil, b.Reader), b.Reader.Index(), bundle.WriteOptions{
		Progress: func(done, _ int64) {
			if done > 1<<20 {
				cancel()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// attested makes an index for two platforms with an attestation each, as docker's builder does.
func attested(t testing.TB) v1.ImageIndex {
	idx := v1.ImageIndex(empty.Index)
	for i, arch := range []string{"amd64", "arm64"} {
		img := bundletest.RandomImage(t, int64(100+i), 1, 2000)
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		idx = mutate.AppendManifests(idx,
			mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{
				OS:           "linux",
				Architecture: arch,
			}}},
			mutate.IndexAddendum{Add: bundletest.RandomImage(t, int64(200+i), 1, 500), Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
				Annotations: map[string]string{
					"vnd.docker.reference.type":   "attestation-manifest",
					"vnd.docker.reference.digest": d.String(),
				},
			}})
	}
	return idx
}

func TestNarrow(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.ImageIndex(bundletest.MultiRef, attested(t))
	b.File("https://files.example/a", "a", &ocispec.Platform{OS: "linux", Architecture: "amd64"}, []byte("a"))
	b.File("local/b", "b", nil, []byte("b"))
	b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 1, 1, 100))
	r := b.Bundle().Reader
	only := func(p string) func(string) bool { return func(have string) bool { return have == p } }
	narrow := func(platform string) (items []bundle.Item) {
		for _, it := range r.Index().Items {
			one, left, err := r.Narrow(t.Context(), it, only(platform))
			if err != nil {
				t.Fatal(err)
			}
			if left {
				items = append(items, one)
			}
		}
		return items
	}
	arm := narrow("linux/arm64")
	if len(arm) != 3 {
		t.Fatalf("%d items are left: %v", len(arm), arm)
	}
	got := reopen(t, combine(t, nil, r), bundle.Index{Name: "arm", Items: arm})
	contents, err := got.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, it := range got.Index().Items {
		if it.Ref == bundletest.MultiRef && (len(it.Absent) != 2 ||
			strings.Join(contents[i].Platforms, " ") != "linux/arm64") {
			t.Errorf("%v has %v without %v", it, contents[i].Platforms, it.Absent)
		}
	}
	if none := narrow("linux/s390x"); len(none) != 2 { // what is for no platform in particular
		t.Errorf("%d items are left: %v", len(none), none)
	}
}

func TestReferrers(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 1, 1, 100))
	b.Image("docker.io/library/other:1", bundletest.RandomImage(t, 2, 1, 100))
	app := b.Index.Items[0].Descriptor
	referrer := func(ref string, subject *ocispec.Descriptor, text string) ocispec.Descriptor {
		config := b.Bytes([]byte("{}"))
		config.MediaType = bundle.MediaTypeEmpty
		layer := b.Bytes([]byte(text))
		layer.MediaType = "text/plain"
		d := b.JSON(ocispec.Manifest{
			MediaType: ocispec.MediaTypeImageManifest, Config: config,
			Layers: []ocispec.Descriptor{layer}, Subject: subject,
		})
		d.MediaType = ocispec.MediaTypeImageManifest
		b.Item(bundle.Item{Kind: bundle.KindReferrer, Ref: ref, Descriptor: d})
		return d
	}
	sbom := referrer("a-sbom", &app, "sbom")
	referrer("b-signature-of-sbom", &sbom, "signature")
	referrer("docker.io/library/app:sha256-"+app.Digest.Encoded()+".sig", nil, "cosign")
	referrer("of-other", &b.Index.Items[1].Descriptor, "other")
	r := b.Bundle().Reader
	it, _ := r.Find(bundle.KindImage, bundletest.ImageRef, "")
	got, err := r.Referrers(t.Context(), []bundle.Item{it})
	if err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, it := range got {
		refs = append(refs, it.Ref)
	}
	want := "a-sbom b-signature-of-sbom docker.io/library/app:sha256-" + app.Digest.Encoded() + ".sig"
	if strings.Join(refs, " ") != want {
		t.Errorf("got %v", refs)
	}
}

func TestStored(t *testing.T) {
	t.Parallel()
	r := copied(t).Reader
	total := int64(0)
	for _, d := range r.Blobs() {
		n := r.Stored(d.Digest)
		if n <= 0 {
			t.Errorf("blob %s of %d bytes takes %d", d.Digest, d.Size, n)
		}
		total += n
	}
	if total > r.Size() || total < r.Size()*9/10 {
		t.Errorf("blobs take %d of %d bytes", total, r.Size())
	}
	if r.Stored(digest.FromString("nothing")) != 0 {
		t.Error("an unknown blob takes something")
	}
}
