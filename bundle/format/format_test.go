package format

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestEncoderVersion keeps the encoder's name true.
func TestEncoderVersion(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`github.com/klauspost/compress (v\S+)`).FindSubmatch(mod)
	if m == nil || string(m[1]) != zstdVersion {
		t.Errorf("go.mod has klauspost/compress %s, the encoder says %s", m, zstdVersion)
	}
	seen := map[string]bool{}
	for _, level := range []Level{LevelFast, LevelDefault, LevelBetter, LevelBest} {
		e, err := NewEncoder(level, 1)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseLevel(level.String()); back != level || err != nil {
			t.Errorf("level %s: %v, %v", level, back, err)
		}
		if seen[e.ID] || !strings.Contains(e.ID, zstdVersion) || CheckText(e.ID) != nil || len(e.ID) > MaxEncoderID {
			t.Errorf("encoder %q", e.ID)
		}
		seen[e.ID] = true
	}
	if _, err := NewEncoder(Level(9), 1); err == nil {
		t.Error("level 9 was accepted")
	}
}

// sizes are where something about frames changes.
func sizes() []int {
	return []int{
		1, 255, 256, 257, 65535, 65536 + 255, 65536 + 256, StoredBlock - 1, StoredBlock, StoredBlock + 1,
		3*StoredBlock + 9, 4 << 20,
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	dec, err := NewDecoder(1)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for _, level := range []Level{LevelFast, LevelDefault, LevelBetter, LevelBest} {
		enc, err := NewEncoder(level, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range sizes() {
			for name, content := range map[string][]byte{
				"text":  bytes.Repeat([]byte("some text, "), n/11+1)[:n],
				"zeros": make([]byte, n), "noise": noise(n),
			} {
				frame := enc.AppendFrame(nil, content)
				length, size, err := SplitFrame(append(bytes.Clone(frame), "more"...))
				if err != nil || length != len(frame) || size != int64(n) {
					t.Fatalf("%s %s %d: split: %d, %d, %v", level, name, n, length, size, err)
				}
				if int64(len(frame)) > MaxFrameLen(int64(n)) {
					t.Errorf("%s %s %d: frame of %d bytes", level, name, n, len(frame))
				}
				if got, err := DecodeFrame(dec, frame, nil, int64(n)); err != nil || !bytes.Equal(got, content) {
					t.Errorf("%s %s %d: decode: %v", level, name, n, err)
				}
				if got, err := plain.DecodeAll(frame, nil); err != nil || !bytes.Equal(got, content) {
					t.Errorf("%s %s %d: any decoder: %v", level, name, n, err)
				}
			}
		}
	}
}

func noise(n int) []byte {
	b, x := make([]byte, n), uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 32)
	}
	return b
}

func TestStoredCostsLittle(t *testing.T) {
	t.Parallel()
	enc, err := NewEncoder(LevelDefault, 1)
	if err != nil {
		t.Fatal(err)
	}
	content := noise(4 << 20)
	if got := len(enc.AppendFrame(nil, content)) - len(content); got != 4+1+4+32*3+4 {
		t.Errorf("stored with %d bytes more", got)
	}
}

// TestEncoderHasNoMemory gives one encoder pieces in two orders: what came before must not show.
func TestEncoderHasNoMemory(t *testing.T) {
	t.Parallel()
	for _, level := range []Level{LevelFast, LevelDefault, LevelBetter, LevelBest} {
		enc, err := NewEncoder(level, 1)
		if err != nil {
			t.Fatal(err)
		}
		pieces := [][]byte{
			bytes.Repeat([]byte("abcdefgh, "), 50_000), append(noise(100_000), make([]byte, 300_000)...),
			bytes.Repeat([]byte("xyz 123 "), 20), noise(9000),
		}
		first := make([][]byte, len(pieces))
		for i, p := range pieces {
			first[i] = enc.AppendFrame(nil, p)
		}
		for round := range 3 {
			for i := len(pieces) - 1; i >= 0; i-- {
				if got := enc.AppendFrame(make([]byte, 0, 10<<20), pieces[i]); !bytes.Equal(got, first[i]) {
					t.Errorf("%s, round %d: piece %d differs", level, round, i)
				}
			}
		}
	}
}

func TestSplitFrameRefuses(t *testing.T) {
	t.Parallel()
	good := AppendStored(nil, []byte("some content"))
	for name, edit := range map[string]func(b []byte) []byte{
		"magic":             func(b []byte) []byte { b[0] = 0; return b },
		"window":            func(b []byte) []byte { b[4] &^= flagSingle; return b },
		"no checksum":       func(b []byte) []byte { b[4] &^= flagChecksum; return b },
		"dictionary":        func(b []byte) []byte { b[4] |= 1; return b },
		"reserved":          func(b []byte) []byte { b[4] |= 1 << 3; return b },
		"8 byte size":       func(b []byte) []byte { b[4] |= 3 << 6; return b },
		"cut":               func(b []byte) []byte { return b[:len(b)-1] },
		"very cut":          func(b []byte) []byte { return b[:9] },
		"block without end": func(b []byte) []byte { b[6] &^= 1; return b },
	} {
		if length, size, err := SplitFrame(edit(bytes.Clone(good))); err == nil {
			t.Errorf("%s: accepted with %d bytes for %d", name, length, size)
		}
	}
	dec, err := NewDecoder(1)
	if err != nil {
		t.Fatal(err)
	}
	two := append(bytes.Clone(good), good...)
	if _, err := DecodeFrame(dec, two, nil, 24); err == nil {
		t.Error("two frames were accepted as one")
	}
	skip := append(bytes.Clone(good), "\x50\x2a\x4d\x18\x00\x00\x00\x00"...)
	if _, err := DecodeFrame(dec, skip, nil, 12); err == nil {
		t.Error("a skippable frame behind the frame was accepted")
	}
}

// TestTarHeader holds the bytes that package bundle's doc.go specifies, built from the specification.
func TestTarHeader(t *testing.T) {
	t.Parallel()
	const name = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
	block := func(name, mode, size string, flag byte, dev string) []byte {
		b := make([]byte, TarBlock)
		for at, v := range map[int]string{
			0: name, 100: mode, 108: "0000000", 116: "0000000", 124: size,
			136: "00000000000", 148: "        ", 156: string(flag), 257: "ustar\x0000", 329: dev, 337: dev,
		} {
			copy(b[at:], v)
		}
		total := 0
		for _, c := range b {
			total += int(c)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", total))
		return b
	}
	for size, want := range map[int64][]byte{
		0:         block(BlobPrefix+name, "0000444", "00000000000", '0', "0000000"),
		65537:     block(BlobPrefix+name, "0000444", "00000200001", '0', "0000000"),
		1<<33 - 1: block(BlobPrefix+name, "0000444", "77777777777", '0', "0000000"),
		1 << 33: bytes.Join([][]byte{
			block("blobs/sha256/PaxHeaders.0/"+name, "0000000", "00000000023", 'x', ""),
			append([]byte("19 size=8589934592\n"), make([]byte, TarBlock-19)...),
			block(BlobPrefix+name, "0000444", "00000000000", '0', "0000000"),
		}, nil),
	} {
		got, err := TarHeader(BlobPrefix+name, size)
		if err != nil || !bytes.Equal(got, want) || int64(len(got)) != headerLen(size) {
			t.Errorf("size %d: %v\ngot  %s\nwant %s", size, err, hex.EncodeToString(got), hex.EncodeToString(want))
		}
	}
}

// TestLayoutOfHugeBlobs checks the arithmetic beyond 2^33 and 2^32 without any content.
func TestLayoutOfHugeBlobs(t *testing.T) {
	t.Parallel()
	l := &Layout{FrameSize: 4 << 20, IndexSize: 1000, DirectorySize: 500, Blobs: []Blob{
		{Sum: Sum{1}, Size: 1 << 33}, {Sum: Sum{2}, Size: 3}, {Sum: Sum{3}, Size: 1<<40 + 1},
	}}
	frames := l.Put()
	if want := 2 + 1 + 2048 + 1 + (1<<18 + 1) + 1 + 2; frames != want {
		t.Errorf("%d frames, want %d", frames, want)
	}
	// The padding of index.json is 24 bytes, then there are the three header blocks of the first blob.
	if got := []Place{l.Blobs[0].Place, l.Blobs[1].Place, l.Blobs[2].Place}; got[0] != (Place{Frame: 3}) ||
		got[1] != (Place{Frame: 2051, At: 512}) || got[2] != (Place{Frame: 2052}) {
		t.Errorf("places %v", got)
	}
}

func FuzzDirectory(f *testing.F) {
	d := Directory{Encoder: "e", FrameSize: 4 << 20, Blobs: []Blob{
		{Sum: Sum{1}, Size: 3},
		{Sum: Sum{2}, Size: 1 << 40, Place: Place{Frame: 9}},
	}}
	data, err := d.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"requires":["x"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := ParseDirectory(data)
		if err != nil {
			return
		}
		if again, err := d.Marshal(); err != nil || !bytes.Equal(again, data) {
			t.Errorf("accepted %q, writes %q: %v", data, again, err)
		}
	})
}
