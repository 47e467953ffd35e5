package bundle_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

const benchSize = 64 << 20

func benchBuilder(b *testing.B) *bundletest.Builder {
	x := bundletest.NewBuilder(b)
	x.File("local/text", "text", nil, bundletest.Text(1, benchSize))
	x.File("local/random", "random", nil, bundletest.Random(1, benchSize))
	return x
}

func BenchmarkWrite(b *testing.B) {
	x := benchBuilder(b)
	b.SetBytes(2 * benchSize)
	for b.Loop() {
		if _, err := bundle.Write(b.Context(), io.Discard, x.Cache, x.Index, bundle.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerify reports, beside the time, the processor time: that of BenchmarkVerifyFloor is what decoding and
// hashing alone cost.
func BenchmarkVerify(b *testing.B) {
	r := benchBuilder(b).Bundle().Reader
	b.SetBytes(2 * benchSize)
	before := cpuTime(b)
	for b.Loop() {
		if _, err := r.Verify(b.Context(), bundle.VerifyOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// BenchmarkVerifyFloor decodes every frame and hashes every content, out of memory, in one goroutine, and checks
// nothing.
func BenchmarkVerifyFloor(b *testing.B) {
	data, err := os.ReadFile(benchBuilder(b).Bundle().Path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(2 * benchSize)
	before := cpuTime(b)
	for b.Loop() {
		if err := bundle.DecodeAndHash(data); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// cpuTime is what this process has used, in nanoseconds.
func cpuTime(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime)
}

func BenchmarkBlob(b *testing.B) {
	r := benchBuilder(b).Bundle().Reader
	for name, ref := range map[string]string{"text": "local/text", "random": "local/random"} {
		b.Run(name, func(b *testing.B) {
			it, _ := r.Find(bundle.KindFile, ref, "")
			d, err := r.ContentOf(b.Context(), it)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(d.Size)
			b.ReportAllocs()
			for b.Loop() {
				rc, err := r.Blob(b.Context(), d.Digest, 0)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, rc); err != nil {
					b.Fatal(err)
				}
				if err := rc.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOpen opens a bundle of 2,000 blobs in 667 items.
func BenchmarkOpen(b *testing.B) {
	x := bundletest.NewBuilder(b)
	for i := range 667 {
		x.File(fmt.Sprintf("https://files.example/release/v1/linux/amd64/file-%d", i), fmt.Sprint("file-", i), nil,
			fmt.Appendf(nil, "%0300d", i))
		x.Bytes(fmt.Appendf(nil, "%d", i))
	}
	path := filepath.Join(b.TempDir(), "x.kkb")
	if _, err := bundle.Create(b.Context(), path, x.Cache, x.Index, bundle.WriteOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, err := bundle.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err == nil {
		b.ReportMetric(float64(info.Size()), "bundle-bytes")
	}
}

// BenchmarkCombine is a copy of a whole bundle, every digest checked, beside BenchmarkCopyFile, a plain copy of the
// file.
func BenchmarkCombine(b *testing.B) {
	x := benchBuilder(b).Bundle()
	path := filepath.Join(b.TempDir(), "copy.kkb")
	b.SetBytes(x.Reader.Size())
	for b.Loop() {
		src, err := bundle.Combine(nil, bundle.From{Name: x.Path, Reader: x.Reader})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := bundle.Create(b.Context(), path, src, x.Reader.Index(), bundle.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCopyFile(b *testing.B) {
	x := benchBuilder(b).Bundle()
	path := filepath.Join(b.TempDir(), "copy.kkb")
	b.SetBytes(x.Reader.Size())
	for b.Loop() {
		in, err := os.Open(x.Path)
		if err != nil {
			b.Fatal(err)
		}
		out, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(out, in); err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(out.Sync(), out.Close(), in.Close()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerifyStream is BenchmarkVerify for a pipe.
func BenchmarkVerifyStream(b *testing.B) {
	made := benchBuilder(b).Bundle()
	b.SetBytes(2 * benchSize)
	before := cpuTime(b)
	for b.Loop() {
		f, err := os.Open(made.Path)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := bundle.VerifyStream(b.Context(), f, bundle.VerifyOptions{}); err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}
