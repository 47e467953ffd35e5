package bundle_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// TestPieces puts blobs of all shapes together again from their pieces.
func TestPieces(t *testing.T) {
	t.Parallel()
	x := bundletest.NewBuilder(t)
	contents := map[string][]byte{}
	for name, b := range map[string][]byte{
		"empty": {}, "small": bundletest.Random(1, 100), "glue": bundletest.Random(2, 64<<10),
		"stored-1": bundletest.Random(3, 64<<10+1),
		"stored-2": bundletest.Random(4, 128<<10), "stored-3": bundletest.Random(5, 128<<10+1),
		"stored-4": bundletest.Random(6, 9<<20+7),
		"text":     bundletest.Text(7, 9<<20+7), "piece": bundletest.Random(8, 4<<20),
	} {
		contents[name] = b
		x.File("local/"+name, name, nil, b)
	}
	r := x.Bundle().Reader
	var buf []byte
	for name, want := range contents {
		d, got := digest.FromBytes(want), []byte{}
		for at := int64(0); at < int64(len(want)) || at == 0; {
			p, err := r.Piece(d, at)
			if err != nil {
				t.Fatal(err)
			}
			if p.Frame < 0 {
				break
			}
			if buf, err = r.ReadFrame(p.Frame, new([]byte), buf); err != nil || len(buf) != p.Whole {
				t.Fatalf("%s: frame %d has %d bytes, want %d: %v", name, p.Frame, len(buf), p.Whole, err)
			}
			got = append(got, buf[p.Skip:][:p.Size]...)
			at += int64(p.Size)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes that differ from the %d it has", name, len(got), len(want))
		}
		if _, err := r.Piece(d, int64(len(want))+1); err == nil {
			t.Errorf("%s: there is a piece after its end", name)
		}
	}
	if _, err := r.ReadFrame(-1, new([]byte), nil); err == nil {
		t.Error("frame -1 was read")
	}
}

// TestReadFrameChecks flips bits anywhere in stored and compressed frames.
func TestReadFrameChecks(t *testing.T) {
	t.Parallel()
	x := bundletest.NewBuilder(t)
	x.File("local/random", "random", nil, bundletest.Random(1, 300<<10))
	x.File("local/text", "text", nil, bundletest.Text(2, 300<<10))
	file := x.Bundle().Path
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.kkb")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.New(rand.NewSource(1))
	for n, content := range [][]byte{bundletest.Random(1, 300<<10), bundletest.Text(2, 300<<10)} {
		p, err := r.Piece(digest.FromBytes(content), 0)
		if err != nil {
			t.Fatal(err)
		}
		from, to := frameBounds(t, data, p.Frame)
		for i := range 64 {
			at := from + random.Int63n(to-from)
			if i < 16 { // the frame's header and the first block's
				at = from + int64(i)
			}
			flip := []byte{data[at] ^ 1<<random.Intn(8)}
			if _, err := f.WriteAt(flip, at); err != nil {
				t.Fatal(err)
			}
			got, err := r.ReadFrame(p.Frame, new([]byte), nil)
			harmless := err == nil && n > 0 && bytes.Equal(got, content) // a bit that a compressor did not need
			if !errors.Is(err, bundle.ErrDamaged) && !harmless {
				t.Fatalf("byte %d of the frame was flipped: %d bytes, %v", at-from, len(got), err)
			}
			if _, err := f.WriteAt(data[at:at+1], at); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.ReadFrame(p.Frame, new([]byte), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStamp holds that writing to a bundle shows.
func TestStamp(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	before, err := b.Reader.Stamp()
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Reader.Stamp()
	if err != nil || again != before || before == (bundle.Stamp{}) {
		t.Fatalf("%v, then %v: %v", before, again, err)
	}
	if err := os.Truncate(b.Path, 100); err != nil {
		t.Fatal(err)
	}
	if after, err := b.Reader.Stamp(); err != nil || after == before {
		t.Fatalf("%v after it was cut short: %v", after, err)
	}
}

// frameBounds reads the seek table at the end of a bundle.
func frameBounds(t *testing.T, data []byte, number int) (from, to int64) {
	t.Helper()
	const footer, entry = 9, 12
	frames := int(binary.LittleEndian.Uint32(data[len(data)-footer:]))
	table := data[len(data)-footer-frames*entry:]
	for i := 0; i <= number; i++ {
		from, to = to, to+int64(binary.LittleEndian.Uint32(table[i*entry:]))
	}
	return from, to
}
