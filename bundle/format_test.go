package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/format"
)

func FuzzSeekTable(f *testing.F) {
	data := tiny(f)
	length := format.SeekHeader + 7*format.SeekEntry + format.SeekFooter
	f.Add(data[len(data)-length:], int64(len(data)))
	f.Fuzz(func(t *testing.T, table []byte, size int64) {
		if len(table) < format.SeekFooter || size < int64(len(table)) {
			return
		}
		n, err := format.SeekTableLen(table[len(table)-format.SeekFooter:], size)
		if err != nil || n != int64(len(table)) {
			return
		}
		frames, err := format.ParseSeekTable(table, size-n)
		if err != nil {
			return
		}
		var entries []byte
		for _, f := range frames {
			entries = format.AppendEntry(entries, f)
		}
		if !bytes.Equal(format.AppendSeekTable(nil, entries), table) {
			t.Error("another table was accepted")
		}
	})
}

// FuzzOpen opens, verifies and reads whole small bundles, the tar in them included.
func FuzzOpen(f *testing.F) {
	data := tiny(f)
	f.Add(data)
	f.Add(data[:len(data)/2])
	frames := contents(f, data)
	frames[0][0] = 'x'
	f.Add(assemble(frames))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := openBytes(data)
		if err != nil {
			return
		}
		_, verr := r.Verify(t.Context(), VerifyOptions{Jobs: 1})
		for _, d := range r.Blobs() {
			got, err := r.ReadBlob(t.Context(), d.Digest, 1<<20)
			if verr == nil && (err != nil || int64(len(got)) != d.Size) {
				t.Errorf("verified, but blob %s reads %d bytes: %v", d.Digest, len(got), err)
			}
		}
	})
}

// FuzzStream wants a pipe to give the verdict of a file.
func FuzzStream(f *testing.F) {
	data := tiny(f)
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Add(append(bytes.Clone(data), 0))
	frames := contents(f, data)
	frames[0][0] = 'x'
	f.Add(assemble(frames))
	f.Fuzz(func(t *testing.T, data []byte) { _ = agree(t, data) })
}

// agree fails where a file and a pipe have different verdicts.
func agree(t *testing.T, data []byte) error {
	t.Helper()
	err := check(t.Context(), data)
	if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	return err
}

// FuzzForged gives the fuzzer the frames' contents, with correct checksums around them: the tar, index and directory.
func FuzzForged(f *testing.F) {
	data := tiny(f)
	frames := contents(f, data)
	f.Add(frames[0], frames[1], frames[2], frames[5])
	f.Fuzz(func(t *testing.T, first, index, glue, dir []byte) {
		all := [][]byte{first, index, glue, frames[3], frames[4], dir, frames[6]}
		for _, c := range all {
			if len(c) == 0 {
				return
			}
		}
		bad := assemble(all)
		if agree(t, bad) != nil {
			return
		}
		// What was verified is a tar, to a reader that knows nothing of us, of exactly the directory's blobs.
		d, err := format.ParseDirectory(dir)
		if err != nil {
			t.Fatal(err)
		}
		left := make(map[string]int64)
		for _, b := range d.Blobs {
			left[format.BlobPrefix+b.Sum.Hex()] = b.Size
		}
		for tr := tar.NewReader(bytes.NewReader(bytes.Join(all, nil))); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			size, ok := left[h.Name]
			content, err := io.ReadAll(tr)
			got := sha256.Sum256(content)
			if ok && (err != nil || size != h.Size || h.Name != format.BlobPrefix+format.Sum(got).Hex()) {
				t.Errorf("entry %s: %v", h.Name, err)
			}
			delete(left, h.Name)
		}
		if len(left) > 0 {
			t.Errorf("not in the tar: %v", left)
		}
	})
}
