package bundle_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// verifyPipe wants of a good bundle what its file says.
func verifyPipe(t *testing.T, b *bundletest.Bundle) {
	t.Helper()
	want, err := b.Reader.Verify(t.Context(), bundle.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var last int64
	got, err := bundle.VerifyStream(t.Context(), f, bundle.VerifyOptions{Progress: func(done, total int64) {
		if done < last || done > total {
			t.Errorf("progress %d after %d of %d", done, last, total)
		}
		last = done
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != want.Digest || got.Size != want.Size || got.Frames != want.Frames || got.Blobs != want.Blobs ||
		got.Content != want.Content || got.Items != want.Items {
		t.Errorf("from a pipe %+v, from a file %+v", got, want)
	}
}

func TestVerifyStream(t *testing.T) {
	t.Parallel()
	b := large(t).Bundle()
	verifyPipe(t, b)
	data, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]io.Reader{
		"halves":        iotest.HalfReader(bytes.NewReader(data)),
		"end with data": iotest.DataErrReader(bytes.NewReader(data)),
	} {
		if _, err := bundle.VerifyStream(t.Context(), r, bundle.VerifyOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("the cable is out")
	r := io.MultiReader(bytes.NewReader(data[:len(data)/2]), iotest.ErrReader(broken))
	if _, err := bundle.VerifyStream(t.Context(), r, bundle.VerifyOptions{}); !errors.Is(err, broken) ||
		errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("a read that fails: %v", err)
	}
	for _, n := range []int{len(data) - 1, len(data) / 2, 3000} {
		if _, err := bundle.VerifyStream(t.Context(), bytes.NewReader(data[:n]),
			bundle.VerifyOptions{}); !errors.Is(err, bundle.ErrDamaged) {
			t.Errorf("%d of %d bytes: %v", n, len(data), err)
		}
	}
}

// TestStreamStops has a writer at the other end that sends nothing more.
func TestStreamStops(t *testing.T) {
	t.Parallel()
	b := large(t).Bundle()
	data, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 3000, len(data) / 2} {
		pr, pw := io.Pipe()
		defer pw.Close()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = pw.Write(data[:n])
			cancel()
		}()
		if _, err := bundle.VerifyStream(ctx, pr, bundle.VerifyOptions{}); !errors.Is(err, context.Canceled) ||
			errors.Is(err, bundle.ErrDamaged) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = pw.Write(data[:len(data)/2]) }()
	s, err := bundle.NewStream(t.Context(), pr, 0)
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	err = s.Blobs(t.Context(), func(context.Context, *bundle.StreamBlob) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("a handler's error: %v", err)
	}
}

// TestStreamBlobs reads every blob, only the beginning of each, or none.
func TestStreamBlobs(t *testing.T) {
	t.Parallel()
	b := large(t).Bundle()
	data, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	for name, read := range map[string]func(b *bundle.StreamBlob, w io.Writer) error{
		"all": func(b *bundle.StreamBlob, w io.Writer) error {
			return b.Copy(t.Context(), func(p []byte) error { _, err := w.Write(p); return err })
		},
		"none": func(*bundle.StreamBlob, io.Writer) error { return stop },
		"some": func(b *bundle.StreamBlob, _ io.Writer) error {
			return b.Copy(t.Context(), func([]byte) error { return stop })
		},
	} {
		s, err := bundle.NewStream(t.Context(), bytes.NewReader(data), 3)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		seen := map[digest.Digest]bool{}
		err = s.Blobs(t.Context(), func(_ context.Context, blob *bundle.StreamBlob) error {
			var content bytes.Buffer
			err := read(blob, &content)
			if name == "all" && (err != nil || digest.FromBytes(content.Bytes()) != blob.Digest) {
				t.Errorf("blob %s: %v", blob.Digest, err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[blob.Digest] = true
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, d := range b.Reader.Blobs() {
			if seen[d.Digest] == s.Holds(d.Digest) {
				t.Errorf("%s: blob %s: handed on %t, held %t", name, d.Digest, seen[d.Digest], s.Holds(d.Digest))
			}
		}
		for _, it := range s.Index().Items {
			if data, err := s.ReadBlob(t.Context(), it.Descriptor.Digest, 1<<20); err != nil ||
				digest.FromBytes(data) != it.Descriptor.Digest {
				t.Errorf("%s: %v", it, err)
			}
		}
	}
}

// TestStreamMemory reads a blob of 256 MiB as from a pipe, and looks every 16 MiB at what is still in use: garbage
// would tell more about when the collector ran.
func TestStreamMemory(t *testing.T) {
	const blob, most, step = 256 << 20, 100 << 20, 16 << 20
	b := bundletest.NewBuilder(t)
	layer := b.Blob(io.LimitReader(zeros{}, blob))
	layer.MediaType = bundle.MediaTypeFileContent
	b.Item(bundle.Item{Kind: bundle.KindLock, Ref: "zeros", Descriptor: layer})
	made := b.Bundle()
	f, err := os.Open(made.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	var peak, next int64
	_, err = bundle.VerifyStream(t.Context(), f, bundle.VerifyOptions{Progress: func(done, _ int64) {
		if done >= next {
			peak, next = max(peak, inUse()), done+step
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := peak - before
	t.Logf("%d MiB were in use for a blob of %d MiB", got>>20, blob>>20)
	if peak == 0 || got > most {
		t.Errorf("%d MiB, want %d at most", got>>20, most>>20)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestCatOfParts does by hand what rule 11 of the format promises.
func TestCatOfParts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"zstd", "tar", "sh"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed", name)
		}
	}
	x := large(t)
	dir := t.TempDir()
	if _, err := bundle.Create(t.Context(), dir+"/x.kkb", x.Cache, x.Index,
		bundle.WriteOptions{PartSize: 3_000_000}); err != nil {
		t.Fatal(err)
	}
	sh := exec.CommandContext(t.Context(), "sh", "-ec",
		"mkdir out && cat x.kkb.[0-9]* | zstd -dc | tar -x -C out && sha256sum out/index.json")
	sh.Dir = dir
	out, err := sh.CombinedOutput()
	if err != nil || "sha256:"+string(out[:64]) != x.Bundle().Reader.Digest().String() {
		t.Errorf("%v: %s", err, out)
	}
	cat := exec.CommandContext(t.Context(), "sh", "-c", "cat x.kkb.[0-9]*")
	cat.Dir = dir
	pipe, err := cat.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bundle.VerifyStream(t.Context(), pipe, bundle.VerifyOptions{}); err != nil {
		t.Error(err)
	}
	if err := cat.Wait(); err != nil {
		t.Error(err)
	}
}
