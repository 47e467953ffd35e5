package bundle_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// shared is the cache that tests with the large bundle read from.
var shared struct {
	dir   string
	once  sync.Once
	index bundle.Index
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kkbundle-test-*")
	if err != nil {
		panic(err)
	}
	shared.dir = dir
	m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
}

// large has content of every size that the format treats differently, stored and compressed.
func large(t testing.TB) *bundletest.Builder {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Cache = bundletest.OpenCache(t, shared.dir)
	shared.once.Do(func() {
		fill(t, b)
		shared.index = b.Index
	})
	b.Index = shared.index
	return b
}

func fill(t testing.TB, b *bundletest.Builder) {
	t.Helper()
	const frame = 4 << 20
	for i, n := range []int{
		0, 1, 511, 512, 513, 64<<10 - 1, 64 << 10, 64<<10 + 1, 100_000, frame - 1, frame, frame + 1,
		2*frame + 77,
	} {
		b.File(fmt.Sprintf("https://files.example/random/%d", n), "r", nil, bundletest.Random(int64(i), n))
		b.File(fmt.Sprintf("https://files.example/text/%d", n), "t", nil, bundletest.Text(int64(i), n))
	}
	for i := range 30 {
		b.File(fmt.Sprintf("https://files.example/small/%d", i), "s", nil,
			bundletest.Random(int64(100+i), 9000*(i%7)+i))
	}
	b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 7, 2, 300_000))
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 9),
		func(d v1.Descriptor) bool { return d.Platform.Architecture == "arm64" })
}

// untar decompresses the whole file and returns the tar's content, which is what any other tool sees.
func untar(t testing.TB, path string) (names []string, content map[string][]byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	content = make(map[string][]byte)
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return names, content
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o444 || h.ModTime.Unix() != 0 || h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s: header %+v", h.Name, h)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		content[h.Name] = data
	}
}

func TestWriteIsATarOfTheLayout(t *testing.T) {
	t.Parallel()
	b := large(t).Bundle()
	names, content := untar(t, b.Path)
	if got := []string{names[0], names[1], names[len(names)-1]}; !slices.Equal(got,
		[]string{"oci-layout", "index.json", "kkbundle.json"}) {
		t.Errorf("entries %v", got)
	}
	blobs := b.Reader.Blobs()
	if len(names) != len(blobs)+3 || len(content) != len(names) {
		t.Errorf("%d entries, %d names for %d blobs", len(names), len(content), len(blobs))
	}
	for _, d := range blobs {
		data, ok := content["blobs/sha256/"+d.Digest.Encoded()]
		if !ok || digest.FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
			t.Errorf("blob %s: in the tar: %v, %d bytes", d.Digest, ok, len(data))
		}
	}
	if digest.FromBytes(content["index.json"]) != b.Reader.Digest() {
		t.Error("the identity is not the digest of index.json")
	}
	rep, err := b.Reader.Verify(t.Context(), bundle.VerifyOptions{})
	if err != nil || rep.Blobs != len(blobs) || rep.Digest != b.Reader.Digest() {
		t.Errorf("verify: %+v, %v", rep, err)
	}
}

func TestReadAnywhere(t *testing.T) {
	t.Parallel()
	b := large(t).Bundle()
	_, content := untar(t, b.Path)
	for _, d := range b.Reader.Blobs() {
		want := content["blobs/sha256/"+d.Digest.Encoded()]
		for _, off := range []int64{0, 1, d.Size / 2, 4<<20 - 1, 4 << 20, 4<<20 + 1, d.Size - 1, d.Size} {
			if off < 0 || off > d.Size {
				continue
			}
			rc, err := b.Reader.Blob(t.Context(), d.Digest, off)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(struct{ io.Reader }{rc})
			if err != nil || !bytes.Equal(got, want[off:]) {
				t.Errorf("blob of %d bytes from %d: %d bytes, %v", d.Size, off, len(got), err)
			}
			if err := rc.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := b.Reader.Blob(t.Context(), d.Digest, d.Size+1); err == nil {
			t.Errorf("read behind the end of %s", d.Digest)
		}
	}
}

// TestSameBytes builds the same items in another order, from a cache with other content, level by level.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	for _, level := range []bundle.Level{bundle.LevelFast, bundle.LevelDefault, bundle.LevelBetter, bundle.LevelBest} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			var sums [2][32]byte
			for i := range sums {
				b := bundletest.NewBuilder(t)
				c, err := cache.Open(t.TempDir(), level)
				if err != nil {
					t.Fatal(err)
				}
				b.Cache = c
				order := []int64{1, 2, 3, 4}
				if i == 1 {
					slices.Reverse(order)
					b.Bytes(bundletest.Text(99, 5<<20)) // what a shared cache holds beside
				}
				for _, n := range order {
					b.File(fmt.Sprintf("https://files.example/%d", n), "f", nil, bundletest.Text(n, int(n)*700_000))
					b.File(fmt.Sprintf("https://files.example/r%d", n), "f", nil, bundletest.Random(n, int(n)*50_000))
				}
				data, err := os.ReadFile(b.Bundle().Path)
				if err != nil {
					t.Fatal(err)
				}
				sums[i] = sha256.Sum256(data)
			}
			if sums[0] != sums[1] {
				t.Error("the same items gave different bytes")
			}
		})
	}
}

func TestWriteNamesAllThatIsMissing(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.File("https://files.example/a", "a", nil, []byte("content a"))
	b.File("https://files.example/b", "b", nil, []byte("content b"))
	for _, content := range []string{"content a", "content b"} {
		if err := b.Cache.Drop(digest.FromString(content)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := bundle.Write(t.Context(), io.Discard, b.Cache, b.Index, bundle.WriteOptions{})
	var missing *bundle.MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("got %v, want a MissingError", err)
	}
	for _, want := range []string{
		string(digest.FromString("content a")), string(digest.FromString("content b")),
		"https://files.example/b",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	empty := b.Bytes([]byte("{}"))
	both := b.JSON(map[string]any{"config": empty, "layers": []any{}, "manifests": []any{}})
	other := b.JSON(map[string]any{"config": map[string]any{"digest": "sha512:" + strings.Repeat("a", 128), "size": 2}})
	wrongSize := b.JSON(map[string]any{"config": map[string]any{"digest": empty.Digest, "size": 3}})
	plain := b.JSON(ocispec.Index{Manifests: []ocispec.Descriptor{}})
	for _, tt := range []struct {
		name, mediaType string
		d               ocispec.Descriptor
		absent          []digest.Digest
		want            string
	}{
		{"manifest and index in one", ocispec.MediaTypeImageManifest, both, nil, "manifest with manifests"},
		{"index with layers", ocispec.MediaTypeImageIndex, both, nil, "index with config"},
		{"another digest algorithm", ocispec.MediaTypeImageManifest, other, nil, "only sha256"},
		{"a size that differs", ocispec.MediaTypeImageManifest, wrongSize, nil, "has 2 bytes"},
		{"no JSON", ocispec.MediaTypeImageManifest, b.Bytes([]byte("junk")), nil, "invalid character"},
		{"absent but not a child", ocispec.MediaTypeImageIndex, plain, []digest.Digest{empty.Digest}, "is absent, but"},
	} {
		tt.d.MediaType = tt.mediaType
		x := bundle.Index{Items: []bundle.Item{{
			Kind: bundle.KindImage, Ref: "docker.io/library/a:1", Descriptor: tt.d,
			Absent: tt.absent,
		}}}
		_, err := bundle.Write(t.Context(), io.Discard, b.Cache, x, bundle.WriteOptions{})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	b := large(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "x.kkb")
	if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(dir, ".x.kkb.ABCDEFGH.tmp")
	if err := os.WriteFile(stale, []byte("of a killed process"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := bundle.Create(ctx, path, b.Cache, b.Index, bundle.WriteOptions{Progress: func(done, _ int64) {
		if done > 1<<20 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if len(entries) != 1 || string(data) != "before" || err != nil {
		t.Errorf("left %v, %q, %v", entries, data, err)
	}
}

func TestABundleWithOtherBytesThanWantedIsNotNamed(t *testing.T) {
	t.Parallel()
	b := large(t)
	path := filepath.Join(t.TempDir(), "b.kkb")
	if _, err := bundle.Create(t.Context(), path, b.Cache, b.Index,
		bundle.WriteOptions{Want: digest.FromString("another")}); err == nil {
		t.Error("no error")
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if _, err := bundle.Create(t.Context(), path, b.Cache, b.Index, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bundle.Create(t.Context(), path, b.Cache, b.Index,
		bundle.WriteOptions{Want: digest.FromBytes(data)}); err != nil {
		t.Errorf("the wanted bytes: %v", err)
	}
}

func TestWriteDiskFull(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no /dev/full here: %v", err)
	}
	defer full.Close()
	b := large(t)
	if _, err := bundle.Write(t.Context(), full, b.Cache, b.Index, bundle.WriteOptions{}); !errors.Is(err,
		syscall.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
}

func TestEstimateIsTheMost(t *testing.T) {
	t.Parallel()
	b := large(t)
	most, err := bundle.Estimate(t.Context(), b.Cache, b.Index)
	if err != nil {
		t.Fatal(err)
	}
	var last, total int64
	s, err := bundle.Create(t.Context(), filepath.Join(t.TempDir(), "x.kkb"), b.Cache, b.Index,
		bundle.WriteOptions{Progress: func(done, of int64) {
			if done < last {
				t.Errorf("progress went from %d to %d", last, done)
			}
			last, total = done, of
		}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Size > most || s.Size*10 < most*9 || last != s.Size || total != most {
		t.Errorf("estimate %d, size %d, progress %d of %d", most, s.Size, last, total)
	}
}

// TestOtherToolsReadTheLayout uses the zstd and tar commands, skopeo and go-containerregistry.
func TestOtherToolsReadTheLayout(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"zstd", "tar"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("the %s command is not installed", name)
		}
	}
	b := bundletest.New(t)
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", `zstd -dcq "$1" | tar -x -C "$2"`, "sh", b.Path,
		dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bundletest.CheckLayout(t, dir, b.Reader.Index())
}

// checkLayout reads every item of a layout with other readers than ours.
func TestPythonReader(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"python3", "zstd"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed", name)
		}
	}
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "python3", append([]string{"../testdata/reader/kkb.py"},
			args...)...).CombinedOutput()
		return string(out), err
	}
	builder := large(t)
	b := builder.Bundle()
	if out, err := run("verify", b.Path); err != nil || !strings.HasPrefix(out, "good: ") {
		t.Errorf("verify: %v: %s", err, out)
	}
	parts := filepath.Join(t.TempDir(), "x.kkb")
	if _, err := bundle.Create(t.Context(), parts, builder.Cache, builder.Index,
		bundle.WriteOptions{PartSize: 5_000_000}); err != nil {
		t.Fatal(err)
	}
	if out, err := run("verify", parts+".parts.json"); err != nil || !strings.HasPrefix(out, "good: ") {
		t.Errorf("verify of parts: %v: %s", err, out)
	}
	var want strings.Builder
	fmt.Fprintf(&want, "identity %s\n", b.Reader.Digest())
	for _, it := range b.Reader.Index().Items {
		fmt.Fprintf(&want, "item %s %s %s %s\n", it.Kind, it.Ref, "-", it.Descriptor.Digest)
	}
	for _, d := range b.Reader.Blobs() {
		fmt.Fprintf(&want, "blob %s %d\n", d.Digest, d.Size)
	}
	out, err := run("list", b.Path)
	if err != nil {
		t.Errorf("list: %v", err)
	}
	if d := cmp.Diff(want.String(), out); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
	_, content := untar(t, b.Path)
	for _, d := range b.Reader.Blobs() {
		if d.Size < 4<<20 {
			continue
		}
		off := d.Size/2 - 50
		out, err := run("range", b.Path, string(d.Digest), fmt.Sprint(off), "100")
		if err != nil || out != string(content["blobs/sha256/"+d.Digest.Encoded()][off:off+100]) {
			t.Errorf("range of %s at %d: %v", d.Digest, off, err)
		}
	}
	data, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	bad := filepath.Join(t.TempDir(), "bad.kkb")
	if err := os.WriteFile(bad, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := run("verify", bad); err == nil || !strings.HasPrefix(out, "bad: ") {
		t.Errorf("verify of a damaged bundle: %v: %s", err, out)
	}
}

// TestCreateAtOnce writes one path many times at once: each sweeps away what killed writers left, and must leave alone
// what others are about to lock, write or rename.
func TestCreateAtOnce(t *testing.T) {
	t.Parallel()
	b := bundletest.NewBuilder(t)
	b.File("local/f", "f", nil, []byte("content"))
	path := filepath.Join(t.TempDir(), "x.kkb")
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			for range 20 {
				if _, err := bundle.Create(t.Context(), path, b.Cache, b.Index, bundle.WriteOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}
