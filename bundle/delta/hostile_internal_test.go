package delta

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// A forged delta has a right checksum, whatever is in it.
func forge(t testing.TB, h Head, sections [numSection][]byte) string {
	t.Helper()
	for i, s := range sections {
		h.Sections[i] = int64(len(s))
	}
	head, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	b := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(head)))
	b = append(b, head...)
	for _, s := range sections {
		b = append(b, s...)
	}
	sum := sha256.Sum256(b)
	path := filepath.Join(t.TempDir(), "forged.kkd")
	if err := os.WriteFile(path, append(b, sum[:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// small returns two bundles, the head of their delta, and its sections, those that are zstd frames decoded.
func small(t testing.TB) (old, next *bundletest.Bundle, h Head, sections [numSection][]byte) {
	t.Helper()
	make := func(text string) *bundletest.Bundle {
		b := bundletest.NewBuilder(t)
		b.Chart(bundletest.ChartRef, "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1."+text))
		b.File(bundletest.FileRef, "it", nil, bytes.Repeat([]byte("a line of the file "+text+"\n"), 20))
		if text == "2" {
			b.File("https://files.example/program", "program", nil, elf(machineAMD64, 60_000))
		}
		return b.Bundle()
	}
	old, next = make("1"), make("2")
	path := filepath.Join(t.TempDir(), "x.kkd")
	_, err := Create(t.Context(), bundle.From{Name: "next", Reader: next.Reader},
		Options{Old: &bundle.From{Name: "old", Reader: old.Reader}, Output: path})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parse(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	at := f.start
	for i := range sections {
		sections[i] = data[at : at+f.Sections[i]]
		at += f.Sections[i]
		if i != sectionMade {
			if sections[i], err = dec.DecodeAll(sections[i], nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	return old, next, f.Head, sections
}

// packed compresses a section, faster than packZstd.
func packed(t testing.TB, plain []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	return enc.EncodeAll(plain, nil)
}

// applied applies a forged delta: the result is NEW, or there is an error and nothing is left.
func applied(t testing.TB, path string, old, next *bundletest.Bundle) error {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "out.kkb")
	_, err := Apply(t.Context(), path, Options{Old: &bundle.From{Name: "old", Reader: old.Reader}, Output: out})
	entries, listErr := os.ReadDir(dir)
	if listErr != nil {
		t.Fatal(listErr)
	}
	if err != nil {
		if len(entries) > 0 {
			t.Errorf("%s is left after: %v", entries[0].Name(), err)
		}
		return err
	}
	want, wantErr := os.ReadFile(next.Path)
	got, gotErr := os.ReadFile(out)
	if wantErr != nil || gotErr != nil || !bytes.Equal(got, want) {
		t.Errorf("the result is not NEW (%v, %v)", wantErr, gotErr)
	}
	return nil
}

// opened opens the result of a forged delta: it is NEW, or there is an error, and nothing is left.
func opened(t testing.TB, path string, old, next *bundletest.Bundle) {
	t.Helper()
	dir := t.TempDir()
	base, err := bundle.Open(old.Path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), Options{Old: &bundle.From{Name: "old", Reader: base}, Scratch: dir}, path)
	if err != nil {
		err = base.Close()
	} else {
		if r.Digest() != next.Reader.Digest() {
			t.Errorf("the result is %s, not NEW", r.Digest())
		}
		err = r.Close()
	}
	entries, listErr := os.ReadDir(dir)
	if err != nil || listErr != nil || len(entries) > 0 {
		t.Errorf("left: %v (%v, %v)", entries, err, listErr)
	}
}

// FuzzApply checks that a delta with a right checksum, but any content, gives NEW or an error.
func FuzzApply(f *testing.F) {
	old, next, h, plain := small(f)
	f.Add(plain[0], plain[1], plain[2])
	for _, s := range plain {
		for at := 0; at < len(s); at += 1 + len(s)/6 {
			flipped := bytes.Clone(s)
			flipped[at] ^= 0x81
			f.Add(plain[0], plain[1], flipped)
			f.Add(plain[0], flipped, plain[2])
			f.Add(flipped, plain[1], plain[2])
		}
	}
	f.Fuzz(func(t *testing.T, base, made, blobs []byte) {
		path := forge(t, h, [numSection][]byte{packed(t, base), made, packed(t, blobs)})
		_ = applied(t, path, old, next)
		opened(t, path, old, next)
	})
}

func TestABombIsRefused(t *testing.T) {
	old, next, h, plain := small(t)
	bomb, err := packZstd(make([]byte, 64<<20), nil)
	if err != nil {
		t.Fatal(err)
	}
	sections := [numSection][]byte{packed(t, plain[0]), plain[1], packed(t, plain[2])}
	if err := applied(t, forge(t, h, sections), old, next); err != nil {
		t.Fatalf("the forged delta without a change: %v", err)
	}
	entry := binary.AppendUvarint([]byte{byte(kindZstd)}, uint64(h.Store-h.Base))
	entry = append(binary.AppendUvarint(append(entry, 0), uint64(len(bomb))), bomb...)
	sections[sectionMade] = entry
	err = applied(t, forge(t, h, sections), old, next)
	if err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("an entry larger than promised: %v", err)
	}
	h.Store = 1 << 49
	err = applied(t, forge(t, h, sections), old, next)
	if err == nil || !strings.Contains(err.Error(), "free") {
		t.Errorf("a store of 512 TiB: %v", err)
	}
	sections = [numSection][]byte{bomb, plain[1], packed(t, plain[2])}
	if err := applied(t, forge(t, h, sections), old, next); err == nil {
		t.Error("a section that is a bomb: no error")
	}
}

// TestAFewBytesDoNotTakeLong forges sections of a few hundred bytes that ask for work without end.
func TestAFewBytesDoNotTakeLong(t *testing.T) {
	old, next, h, plain := small(t)
	read := old.Reader.Blobs()[0]
	oldBlob := func(pieces ...uint64) []byte {
		sum, err := appendDigest(nil, read.Digest)
		if err != nil {
			t.Fatal(err)
		}
		sum = append(sum, 0)
		for _, n := range pieces {
			sum = binary.AppendUvarint(sum, n)
		}
		return sum
	}
	base := func(n int, blob []byte) []byte {
		return append(binary.AppendUvarint(nil, uint64(n)), bytes.Repeat(blob, n)...)
	}
	first := oldBlob(1, 1, 0, 1) // one piece, with one range of its first byte
	index, err := appendDigest(nil, h.New)
	if err != nil {
		t.Fatal(err)
	}
	index = append(index, 4, 0, 0) // 4 bytes as they are, the frame begins at 0
	blobs := func(n int, step []byte) []byte {
		b := binary.AppendUvarint(append([]byte{1}, index...), uint64(n))
		return append(b, bytes.Repeat(step, n)...)
	}
	whole := func(move int64) []byte { // a step that takes all of the store
		return binary.AppendUvarint(append([]byte{0}, binary.AppendVarint(nil, move)...), uint64(h.Store))
	}
	for name, tt := range map[string]struct {
		change func(h *Head, s *[numSection][]byte)
		want   string
	}{
		"a blob of the old bundle a million times": {func(h *Head, s *[numSection][]byte) {
			h.Base, h.Store = 1_000_000, h.Store+1_000_000
			s[sectionBase] = base(1_000_000, first)
		}, "twice"},
		"a million pieces of nothing": {func(_ *Head, s *[numSection][]byte) {
			s[sectionBase] = append(base(1, oldBlob(1_000_000)), make([]byte, 1_000_000)...)
		}, "a piece has no range"},
		"a million ranges of nothing": {func(_ *Head, s *[numSection][]byte) {
			s[sectionBase] = append(base(1, oldBlob(1, 1_000_000)), make([]byte, 2_000_000)...)
		}, "a range is empty"},
		"a million steps of nothing": {func(_ *Head, s *[numSection][]byte) {
			s[sectionBlobs] = blobs(1_000_000, []byte{0, 0, 0})
		}, "a step is empty"},
		"the store a million times": {func(_ *Head, s *[numSection][]byte) {
			s[sectionBlobs] = append(append(blobs(1_000_000, nil), whole(0)...),
				bytes.Repeat(whole(-h.Store), 999_999)...)
		}, "too often"},
	} {
		head, sections := h, plain
		tt.change(&head, &sections)
		for i := range sections {
			if i != sectionMade {
				sections[i] = packed(t, sections[i])
			}
		}
		if err := applied(t, forge(t, head, sections), old, next); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// TestCreateKeepsToWhatAReaderTakes compares the sum of all layers' files with the store that has them once.
func TestCreateKeepsToWhatAReaderTakes(t *testing.T) {
	const mib = 1 << 20
	file := &piece{size: mib}
	c := &creator{added: &scan{layers: slices.Repeat([]*layer{{frame: &piece{}, files: []placed{{file: file}}}},
		blobRatio+freeBlobs/mib)}}
	c.Store = mib
	if err := c.checkTakes(); err != nil {
		t.Errorf("as often as allowed: %v", err)
	}
	c.added.layers = append(c.added.layers, &layer{frame: &piece{size: 1}})
	if err := c.checkTakes(); err == nil || !strings.Contains(err.Error(), "more than 64 times") {
		t.Errorf("one byte more: %v", err)
	}
}

// TestCodeIsCheckedBeforeItIsConverted forges entries of kind 2.
func TestCodeIsCheckedBeforeItIsConverted(t *testing.T) {
	old, next, h, plain := small(t)
	if h.Requires[0] != featureCode {
		t.Fatalf("the head requires %q", h.Requires)
	}
	data, err := packZstd(make([]byte, h.Store-h.Base), nil)
	if err != nil {
		t.Fatal(err)
	}
	forged := func(h Head, all []code) error {
		entry := append(binary.AppendUvarint([]byte{byte(kindCode)}, uint64(h.Store-h.Base)), 0)
		entry = binary.AppendUvarint(appendCode(entry, all), uint64(len(data)))
		return applied(t, forge(t, h, [numSection][]byte{
			packed(t, plain[0]), append(entry, data...),
			packed(t, plain[2]),
		}), old, next)
	}
	for name, all := range map[string][]code{
		"behind the end":  {{span{h.Store - h.Base - 1, 2}, machineAMD64}},
		"empty":           {{span{3, 0}, machineAMD64}},
		"unknown machine": {{span{0, 8}, machineLast + 1}},
	} {
		if err := forged(h, all); err == nil || !strings.Contains(err.Error(), "a section ends early or is malformed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := forged(h, []code{{span{0, 8}, machineAMD64}}); err == nil ||
		!strings.Contains(err.Error(), "wrong digest") {
		t.Errorf("other content: %v", err)
	}
	h.Requires = []string{}
	if err := forged(h, nil); err == nil || !strings.Contains(err.Error(), "2 is more than 1") {
		t.Errorf("a kind that the head does not require: %v", err)
	}
	h.Requires = []string{featureCode, "other"}
	if err := forged(h, nil); err == nil || !strings.Contains(err.Error(), "use a newer kkbundle") {
		t.Errorf("an unknown feature: %v", err)
	}
}

// FuzzEdits checks that any data makes the promised number of bytes or an error.
func FuzzEdits(f *testing.F) {
	old := bytes.Repeat([]byte("0123456789"), 100)
	e := &editor{old: old, new: append(bytes.Clone(old[300:]), "and more"...)}
	e.index()
	e.run()
	f.Add(e.steps, e.differences, e.insertions, uint16(len(e.new)))
	f.Fuzz(func(t *testing.T, steps, differences, insertions []byte, size uint16) {
		var plain []byte
		for _, part := range [][]byte{steps, differences, insertions} {
			plain = append(binary.AppendUvarint(plain, uint64(len(part))), part...)
		}
		var out bytes.Buffer
		if _, err := applyEdits(&out, bytes.NewReader(packed(t, plain)), old, int64(size)); err == nil &&
			out.Len() != int(size) {
			t.Errorf("%d bytes; %d were promised", out.Len(), size)
		}
	})
}

func TestEditsMakeTheNewBytes(t *testing.T) {
	old := bytes.Repeat([]byte("some words, of which many are the same. "), 5000)
	for i := range old {
		old[i] ^= byte(i * i >> 7)
	}
	for name, next := range map[string][]byte{
		"same": old, "short": []byte("x"), "head": old[:1000], "tail": old[100_000:],
		"moved": append(bytes.Clone(old[50_000:]), old[:50_000]...),
		"other": bytes.Repeat([]byte{1, 2, 3}, 3000), "inserted": append(append(bytes.Clone(old[:777]), "inserted"...),
			old[777:]...),
	} {
		changed := bytes.Clone(next)
		for i := 0; i < len(changed); i += 50 {
			changed[i]++
		}
		for _, want := range [][]byte{next, changed} {
			data, err := makeEdits(old, want)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if _, err := applyEdits(&got, bytes.NewReader(data), old, int64(len(want))); err != nil ||
				!bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s: %d of %d bytes, %v", name, got.Len(), len(want), err)
			}
		}
	}
}
