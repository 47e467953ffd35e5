package bundle

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// put stores content in the cache.
func put(t testing.TB, c *cache.Cache, content []byte) ocispec.Descriptor {
	t.Helper()
	w, _, err := c.Begin(t.Context(), fmt.Sprintf("%d %x", len(content), content[:min(8, len(content))]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	d, err := w.Commit(t.Context(), int64(len(content)), "")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func putFile(t testing.TB, c *cache.Cache, name string, content []byte) Item {
	t.Helper()
	config, layer := put(t, c, []byte("{}")), put(t, c, content)
	config.MediaType, layer.MediaType = MediaTypeEmpty, MediaTypeFileContent
	m := ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ArtifactTypeFile, Config: config,
		Layers: []ocispec.Descriptor{layer},
	}
	m.SchemaVersion = 2
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	d := put(t, c, data)
	d.MediaType, d.ArtifactType = m.MediaType, m.ArtifactType
	return Item{Kind: KindFile, Ref: "https://files.example/" + name, Name: name, Descriptor: d}
}

// tiny returns a bundle of two files, one of them large enough for a frame of its own.
func tiny(t testing.TB) []byte {
	t.Helper()
	c, err := cache.Open(t.TempDir(), LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	x := Index{Name: "tiny", Version: "1", Items: []Item{
		putFile(t, c, "small", []byte("hello\n")),
		putFile(t, c, "large", bytes.Repeat([]byte("0123456789abcdef"), 4097)),
		putFile(t, c, "empty", nil),
	}}
	var b bytes.Buffer
	if _, err := Write(t.Context(), &b, c, x, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func openBytes(data []byte) (*Reader, error) {
	return NewReader(bytes.NewReader(data), int64(len(data)))
}

// check opens and verifies, from a file and from a pipe, which must agree about whether anything is wrong.
func check(ctx context.Context, data []byte) error {
	file := checkFile(ctx, data)
	_, pipe := VerifyStream(ctx, bytes.NewReader(data), VerifyOptions{Jobs: 1})
	// a pipe may meet damage before the part that this version does not know
	known := errors.Is(pipe, ErrDamaged) || errors.Is(pipe, ErrUnsupported)
	if (file == nil) != (pipe == nil) || pipe != nil && !known {
		return fmt.Errorf("a file and a pipe differ: %v; %v", file, pipe) //nolint:errorlint // matches neither
	}
	return file
}

// checkFile verifies as from a local file, whose stored frames are read in place, and as from one that is not, which
// must agree.
func checkFile(ctx context.Context, data []byte) error {
	r, err := openBytes(data)
	if err != nil {
		return err
	}
	_, err = r.Verify(ctx, VerifyOptions{Jobs: 1})
	r.atHand = true
	if _, inPlace := r.Verify(ctx, VerifyOptions{Jobs: 1}); (inPlace == nil) != (err == nil) {
		return fmt.Errorf("read at once and in place: %v; %v", err, inPlace) //nolint:errorlint // matches neither
	}
	return err
}

// contents decodes every frame.
func contents(t testing.TB, data []byte) [][]byte {
	t.Helper()
	r, err := openBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for _, f := range r.frames {
		content, err := r.content(f, new([]byte), new([]byte))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, content)
	}
	return out
}

// assemble makes a bundle with correct checksums of frames with any content.
func assemble(frames [][]byte) []byte { return assembleWith(format.AppendStored, frames) }

func assembleWith(appendFrame func(dst, content []byte) []byte, frames [][]byte) []byte {
	var b, entries []byte
	for _, content := range frames {
		f := appendFrame(nil, content)
		entries = format.AppendEntry(entries, format.FrameInfo{
			Len: uint32(len(f)), Size: uint32(len(content)),
			Checksum: binary.LittleEndian.Uint32(f[len(f)-4:]),
		})
		b = append(b, f...)
	}
	return format.AppendSeekTable(b, entries)
}

func TestTruncatedAnywhere(t *testing.T) {
	t.Parallel()
	data := tiny(t)
	if err := check(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if _, err := openBytes(data[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("first %d of %d bytes: got %v, want ErrDamaged", n, len(data), err)
		}
	}
}

func TestBitFlippedAnywhere(t *testing.T) {
	t.Parallel()
	data := tiny(t)
	bad, want := bytes.Clone(data), contents(t, data)
	for i := range data {
		if testing.Short() && i%8 != 0 {
			continue
		}
		for bit := i % 4; bit < 8; bit += 4 {
			bad[i] ^= 1 << bit
			err := check(t.Context(), bad)
			switch {
			case err == nil:
				// Some bits of a compressed block mean nothing. Then nothing may have changed.
				if !slices.EqualFunc(contents(t, bad), want, bytes.Equal) {
					t.Errorf("byte %d, bit %d: the content changed unseen", i, bit)
				}
			case !errors.Is(err, ErrDamaged):
				t.Errorf("byte %d, bit %d: got %v, want ErrDamaged", i, bit, err)
			}
			bad[i] = data[i]
		}
	}
}

func TestTrailingAndLeadingBytes(t *testing.T) {
	t.Parallel()
	data := tiny(t)
	for _, extra := range []string{"\x00", "\x50\x2a\x4d\x18\x01\x00\x00\x00x"} {
		for _, bad := range [][]byte{append(bytes.Clone(data), extra...), append([]byte(extra), data...)} {
			if err := check(t.Context(), bad); !errors.Is(err, ErrDamaged) {
				t.Errorf("%q added: got %v, want ErrDamaged", extra, err)
			}
		}
	}
}

// TestForged changes contents and gives them correct checksums, as an attacker would.
func TestForged(t *testing.T) {
	t.Parallel()
	data := tiny(t)
	const dir = 5 // glue, index, glue, large file, glue, directory, end
	for _, tt := range []struct {
		name  string
		forge func(frames [][]byte) [][]byte
		want  string
	}{
		{"nothing", func(f [][]byte) [][]byte { return f }, ""},
		{"path escape", func(f [][]byte) [][]byte {
			f[2] = bytes.Replace(f[2], []byte("blobs/sha256/"), []byte("../../../etc/"), 1)
			return f
		}, "does not match the directory"},
		{"other file type", func(f [][]byte) [][]byte { f[2][3*512+156] = '2'; return f }, ""},
		{"content of a small blob", func(f [][]byte) [][]byte {
			f[4] = bytes.Replace(f[4], []byte("hello"), []byte("hallo"), 1)
			f[2] = bytes.Replace(f[2], []byte("hello"), []byte("hallo"), 1)
			return f
		}, "content has digest"},
		{"content of a large blob", func(f [][]byte) [][]byte { f[3][5] ^= 1; return f }, "content has digest"},
		{"padding", func(f [][]byte) [][]byte { f[6][3] = 1; return f }, "padding"},
		{"the first entry", func(f [][]byte) [][]byte { f[0][0] = 'x'; return f }, "oci-layout"},
		{"an entry more", func(f [][]byte) [][]byte {
			more, _ := format.TarHeader("evil", 0)
			f[2] = append(f[2], more...)
			return f
		}, " instead of "},
		{"a frame more", func(f [][]byte) [][]byte { return append(f[:6:6], f[6], make([]byte, 512)) }, ""},
		{"the directory lacks a blob", editDirectory(dir, func(d *format.Directory) { d.Blobs = d.Blobs[1:] }), ""},
		{"the directory has a blob twice", editDirectory(dir,
			func(d *format.Directory) { d.Blobs = append(d.Blobs, d.Blobs[0]) }), "sorted"},
		{"the directory has another blob", editDirectory(dir, func(d *format.Directory) {
			b := d.Blobs[len(d.Blobs)-1]
			b.Sum[0] = 0xff
			d.Blobs = append(d.Blobs, b)
		}), ""},
		{"overlapping blobs", editDirectory(dir, func(d *format.Directory) {
			for i := range d.Blobs[1:] {
				d.Blobs[i+1].Place = d.Blobs[0].Place
			}
		}), ""},
		{"a place outside", editDirectory(dir, func(d *format.Directory) { d.Blobs[0].Frame = 99 }), ""},
		{"an absurd size", editDirectory(dir, func(d *format.Directory) { d.Blobs[0].Size = format.MaxSize }), ""},
		{"frame size 0", editDirectory(dir, func(d *format.Directory) { d.FrameSize = 0 }), "frame size 0"},
		{
			"another frame size", editDirectory(dir, func(d *format.Directory) { d.FrameSize = format.MinFrameSize * 3 }),
			"",
		},
		{"white space", func(f [][]byte) [][]byte {
			f[dir] = bytes.Replace(f[dir], []byte(":1,"), []byte(": 1,"),
				1)
			return f
		}, "not canonical"},
		{"index with white space", func(f [][]byte) [][]byte { f[1] = append(f[1], '\n'); return f }, ""},
		{"index names another blob", func(f [][]byte) [][]byte {
			i := bytes.Index(f[1], []byte(`"sha256:`)) + 20
			f[1][i] ^= 1
			return f
		}, ""},
		{"index is no JSON", func(f [][]byte) [][]byte { copy(f[1], "junk"); return f }, "not canonical"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := check(t.Context(), assemble(tt.forge(contents(t, data))))
			if tt.name == "nothing" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want ErrDamaged with %q", err, tt.want)
			}
		})
	}
}

func editDirectory(frame int, edit func(d *format.Directory)) func(f [][]byte) [][]byte {
	return func(f [][]byte) [][]byte {
		d, err := format.ParseDirectory(f[frame])
		if err != nil {
			panic(err)
		}
		edit(d)
		if f[frame], err = d.Marshal(); err != nil {
			panic(err)
		}
		return f
	}
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	data := tiny(t)
	for _, tt := range [][3]string{
		{`"version":1`, `"version":2`, "format version 2"},
		{`"requires":[]`, `"requires":["patched-blobs","other"],"new":{}`, "patched-blobs"},
	} {
		f := contents(t, data)
		f[5] = bytes.Replace(f[5], []byte(tt[0]), []byte(tt[1]), 1)
		_, err := openBytes(assemble(f))
		if !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt[2]) {
			t.Errorf("%s: got %v", tt[1], err)
		}
	}
}

// TestAbsurdClaims must fail before memory is taken for what is claimed.
func TestAbsurdClaims(t *testing.T) {
	data := tiny(t)
	entries := len(data) - format.SeekFooter - 7*format.SeekEntry
	patch := func(at int, v uint32) []byte {
		bad := bytes.Clone(data)
		binary.LittleEndian.PutUint32(bad[at:], v)
		return bad
	}
	enc, err := format.NewEncoder(LevelDefault, 1)
	if err != nil {
		t.Fatal(err)
	}
	bomb := contents(t, data)
	bomb[1] = make([]byte, format.MaxIndexSize+1)
	for name, bad := range map[string][]byte{
		"frames":           patch(len(data)-9, 1<<32-1),
		"many frames":      patch(len(data)-9, format.MaxFrames),
		"content":          patch(entries+4, 1<<32-1),
		"content of index": patch(entries+format.SeekEntry+4, format.MaxIndexSize),
		"frame length":     patch(entries+format.SeekEntry, 1<<31),
		"in frame header":  bytes.Replace(data, data[:9], []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa4, 0, 0, 0, 0x40}, 1),
		"bomb":             assembleWith(enc.AppendFrame, bomb),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := check(t.Context(), bad)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: got %v, want ErrDamaged", name, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
			t.Errorf("%s: took %d bytes", name, got)
		}
	}
}

// fakeSource serves documents under digests that they do not have: what sha256 makes impossible.
type fakeSource map[format.Sum][]byte

func (f fakeSource) lookup(_ context.Context, s format.Sum) (int64, bool, error) {
	data, ok := f[s]
	return int64(len(data)), ok, nil
}

func (f fakeSource) read(_ context.Context, s format.Sum, _ int64) ([]byte, error) { return f[s], nil }

func TestWalkEnds(t *testing.T) {
	t.Parallel()
	index := func(children ...byte) []byte {
		var m []string
		for _, c := range children {
			m = append(m, fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%%d}`, ocispec.MediaTypeImageIndex,
				format.Sum{c}.Digest()))
		}
		// Every document has the same length, so that sizes can be right in a loop.
		doc := fmt.Sprintf(`{"manifests":[%s]}`, strings.Join(m, ","))
		return []byte(fmt.Sprintf("%-4000s", strings.ReplaceAll(doc, "%d", "4000")))
	}
	chain := fakeSource{}
	for i := range byte(20) {
		chain[format.Sum{i}] = index(i + 1)
	}
	for name, tt := range map[string]struct {
		src  fakeSource
		want string
	}{
		"self reference": {fakeSource{format.Sum{0}: index(0, 0, 0)}, ""},
		"loop": {fakeSource{
			format.Sum{0}: index(1, 2), format.Sum{1}: index(2, 0),
			format.Sum{2}: index(0, 1),
		}, ""},
		"too deep": {chain, "more than 8 deep"},
	} {
		var got error
		w := &walk{src: tt.src, report: func(_ format.Sum, _ Item,
			err error,
		) error {
			got = errors.Join(got, err)
			return nil
		}}
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: format.Sum{0}.Digest(), Size: 4000}
		if err := w.run(t.Context(), []Item{{Kind: KindImage, Ref: "a", Descriptor: d}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if (tt.want == "") != (got == nil) || (got != nil && !strings.Contains(got.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", name, got, tt.want)
		}
	}
}

// TestStrangers has blobs that nobody needs, and needed ones in another order: both fit the directory.
func TestStrangers(t *testing.T) {
	t.Parallel()
	c, err := cache.Open(t.TempDir(), LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	x := Index{Name: "tiny", Items: []Item{putFile(t, c, "one", []byte("one"))}}
	stranger := put(t, c, []byte("nobody needs this"))
	p, err := newPlan(t.Context(), c, x)
	if err != nil {
		t.Fatal(err)
	}
	s, err := format.ParseDigest(stranger.Digest)
	if err != nil {
		t.Fatal(err)
	}
	blobs := p.layout.Blobs
	for name, tt := range map[string]struct {
		blobs []format.Blob
		want  string
	}{
		"stranger": {
			append(blobs[:len(blobs):len(blobs)], format.Blob{Sum: s, Size: stranger.Size}),
			"nothing in the bundle refers to it",
		},
		"order":   {[]format.Blob{blobs[1], blobs[0], blobs[2]}, "the order of the blobs deviates"},
		"missing": {blobs[:2], "is missing"},
	} {
		err := check(t.Context(), writeOrder(t, c, p, tt.blobs))
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// writeOrder writes a well-formed bundle of any blobs in any order.
func writeOrder(t *testing.T, c *cache.Cache, p *plan, blobs []format.Blob) []byte {
	t.Helper()
	forged := &plan{index: p.index, layout: format.Layout{
		FrameSize: p.layout.FrameSize, IndexSize: p.layout.IndexSize,
		Blobs: blobs,
	}}
	forged.layout.Put()
	if err := forged.addDirectory(c.Encoding()); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := forged.write(t.Context(), &b, c, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A bundle whose frames are sound and whose content is not what its digest says is not copied.
func TestCombineForged(t *testing.T) {
	t.Parallel()
	data := tiny(t)
	for name, change := range map[string][2]string{
		"small": {"hello\n", "jello\n"},
		"large": {"0123456789abcdef", "0123456789abcdeF"},
	} {
		frames := contents(t, data)
		for i, f := range frames {
			frames[i] = bytes.Replace(f, []byte(change[0]), []byte(change[1]), 1)
		}
		r, err := openBytes(assemble(frames))
		if err != nil {
			t.Fatal(err)
		}
		src, err := Combine(nil, From{"forged.kkb", r})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Write(t.Context(), io.Discard, src, r.Index(), WriteOptions{})
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "copy from forged.kkb: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
