package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// hexOf returns the digits of a sum whose first byte is b.
func hexOf(b byte) string { return Sum{b}.Hex() }

func TestDamageErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	blob := Sum{1}.Digest()
	for _, tt := range []struct {
		err  *DamageError
		want string
	}{
		{Damage(-1, "reason %d", 1), "damaged bundle: reason 1"},
		{Damage(0, "reason"), "damaged bundle: reason (at byte 0 of the file)"},
		{
			&DamageError{Blob: blob, Offset: -1, Part: "x.kkb.001", Reason: "reason", Err: cause},
			"damaged bundle: blob " + string(blob) + ": reason: cause",
		},
		{
			&DamageError{Offset: 0, Part: "x.kkb.001", Reason: "reason", Items: []string{"image a", "image b"}},
			"damaged bundle: reason (at byte 0 of the bundle, in x.kkb.001); part of image a, image b",
		},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
		if !errors.Is(tt.err, ErrDamaged) || errors.Is(tt.err, ErrUnsupported) ||
			errors.Is(tt.err, cause) != (tt.err.Err != nil) {
			t.Errorf("%v matches other errors than it should", tt.err)
		}
	}
	if err := error(&UnsupportedError{"x"}); !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrDamaged) {
		t.Error("an UnsupportedError matches other errors than it should")
	}
}

func TestParseDigest(t *testing.T) {
	t.Parallel()
	good := "sha256:" + hexOf(0xab)
	if s, err := ParseDigest(digest.Digest(good)); err != nil || s != (Sum{0xab}) || string(s.Digest()) != good {
		t.Errorf("%x, %v", s, err)
	}
	for bad, want := range map[string]string{
		"": "is not a digest", "sha256": "is not a digest", "sha256:": "is not a digest", "sha512:" +
			hexOf(1): "only sha256",
		good[:len(good)-1]: "64 lower-case", good + "0": "64 lower-case", strings.ToUpper(good): "only sha256",
		"sha256:" + strings.ToUpper(hexOf(0xab)): "64 lower-case", "sha256:" + strings.Repeat("x", 64): "64 lower-case",
	} {
		if _, err := ParseDigest(digest.Digest(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", bad, err, want)
		}
	}
}

// TestDirectory has the bytes of directories, values at their bounds, and changes of one place, each of which is
// refused.
func TestDirectory(t *testing.T) {
	t.Parallel()
	record := func(b byte, size, frame, at int64) string {
		return fmt.Sprintf(`{"digest":"sha256:%s","size":%d,"frame":%d,"at":%d}`, hexOf(b), size, frame, at)
	}
	text := func(encoder string, frameSize int64, records ...string) string {
		return fmt.Sprintf(`{"version":1,"requires":[],"encoder":"%s","frame_size":%d,"blobs":[%s]}`, encoder,
			frameSize, strings.Join(records, ","))
	}
	for _, good := range []string{
		text("e", MinFrameSize), text("", MaxFrameSize, record(1, 0, 0, 0)),
		text(strings.Repeat("e", MaxEncoderID), MaxFrameSize-MinFrameSize, record(1, 12, 2, 512),
			record(2, 1, 2, 1024)),
		text(`a \"b\" \\ c`, MinFrameSize, record(1, MaxSize, MaxFrames, MaxGlue)),
	} {
		d, err := ParseDirectory([]byte(good))
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		if again, err := d.Marshal(); err != nil || string(again) != good {
			t.Errorf("%s is written as %s, %v", good, again, err)
		}
	}
	d, err := ParseDirectory([]byte(text("e", MinFrameSize, record(1, 12, 2, 512))))
	if err != nil || d.Encoder != "e" || d.FrameSize != MinFrameSize ||
		!slices.Equal(d.Blobs, []Blob{{Sum{1}, 12, Place{2, 512}}}) {
		t.Errorf("%+v, %v", d, err)
	}
	one := text("e", MinFrameSize, record(1, 12, 2, 512), record(2, 1, 2, 1024))
	for _, bad := range []string{
		"", "{}", one + " ", one[:len(one)-1], text(strings.Repeat("e", MaxEncoderID+1), MinFrameSize),
		text("e", MinFrameSize-1), text("e", 0),
		text("e", MinFrameSize+1), text("e", MaxFrameSize+MinFrameSize),
		text("e", MinFrameSize, record(1, MaxSize+1, 2, 0)), text("e", MinFrameSize, record(1, 1, MaxFrames+1, 0)),
		text("e", MinFrameSize, record(1, 1, 2, MaxGlue+1)),
		text("e", MinFrameSize, record(1, 1, 2, 0), record(1, 1, 2, 512)),
		text("e", MinFrameSize, record(2, 1, 2, 0), record(1, 1, 2, 512)),
		strings.Replace(one, `"size":12`, `"size":012`, 1), strings.Replace(one, `"size":12`, `"size":-2`, 1),
		strings.Replace(one, `"size":12`, `"size":`, 1), strings.Replace(one, `},{`, `}{`, 1),
		strings.Replace(one, `[{`, `[,{`, 1), text(`\n`, MinFrameSize), text("\x01", MinFrameSize),
		strings.Replace(one, hexOf(1), hexOf(0xab)[:1]+"B"+hexOf(0xab)[2:], 1),
	} {
		if d, err := ParseDirectory([]byte(bad)); err == nil || errors.Is(err, ErrUnsupported) {
			t.Errorf("%.300q: %+v, %v", bad, d, err)
		}
	}
	for bad, want := range map[string]string{
		strings.Replace(one, `"version":1`, `"version":2`, 1):              "format version 2",
		strings.Replace(one, `"version":1`, `"version":0`, 1):              "format version 0",
		strings.Replace(one, `"requires":[]`, `"requires":["a","b"],x`, 1): `"a"`,
	} {
		if _, err := ParseDirectory([]byte(bad)); !errors.Is(err, ErrUnsupported) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestScanner(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0": 0, "7": 7, "10": 10, "19": 19} {
		if s := NewScanner([]byte(text)); s.Integer(19) != want || s.End() != nil {
			t.Errorf("%s: %v", text, s.Err)
		}
	}
	for _, text := range []string{"", "20", "100", "00", "01", "+1", "9223372036854775808", "x"} {
		if s := NewScanner([]byte(text)); s.Integer(19) != 0 || s.Err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	long := strings.Repeat("x", MaxString)
	for _, text := range []string{"", "a", `"`, `\`, "a\\b\"", "\\\\\"", "ä\u00a0", long} {
		b := AppendText(nil, text)
		if s := NewScanner(b); s.Text() != text || s.End() != nil {
			t.Errorf("%.40q is read otherwise: %v", b, s.Err)
		}
	}
	for _, raw := range []string{
		``, `"`, `"a`, `a"`, `"\`, `"\"`, `"\n"`, "\"\x1f\"", "\"\x7f\"", "\"\u0080\"",
		"\"\u009f\"", "\"\u2028\"", "\"\u2029\"", "\"\xff\"", `"` + long + `x"`,
	} {
		if s := NewScanner([]byte(raw)); s.Text() != "" && s.Err == nil {
			t.Errorf("%.40q is taken", raw)
		} else if s.Err == nil {
			t.Errorf("%.40q: no error", raw)
		}
	}
	s := NewScanner([]byte("ab"))
	if s.Has("abc") || !s.Has("a") || s.End() == nil || s.Has("b") || !strings.Contains(s.Err.Error(), "byte 1") {
		t.Errorf("after an error: %v", s.Err)
	}
	first := s.Err
	if s.Fail("more"); s.Err != first || s.Integer(9) != 0 || s.Text() != "" || s.HexSum() != (Sum{}) || s.Err != first { //nolint:errorlint // the same error
		t.Errorf("the first error is replaced: %v", s.Err)
	}
	for text, want := range map[string]bool{hexOf(0xaf): true, hexOf(0xaf) + "x": true, hexOf(9)[:63]: false, "g" +
		hexOf(9)[1:]: false, "`" + hexOf(9)[1:]: false, "/" + hexOf(9)[1:]: false, ":" + hexOf(9)[1:]: false, "A" +
		hexOf(9)[1:]: false} {
		if s := NewScanner([]byte(text)); (s.HexSum().Hex() == text[:min(64, len(text))]) != want ||
			(s.Err == nil) != want {
			t.Errorf("%s: %v", text, s.Err)
		}
	}
}

// table returns the seek table of frames, and the offset at which it begins.
func table(frames []FrameInfo) (b []byte, start int64) {
	var entries []byte
	for _, f := range frames {
		entries = AppendEntry(entries, f)
		start += int64(f.Len)
	}
	return AppendSeekTable(nil, entries), start
}

func TestSeekTable(t *testing.T) {
	t.Parallel()
	frames := []FrameInfo{
		{0, 20, 7, 1},
		{20, 13, 1, 2},
		{33, 100, 50, 3},
		{133, 30, MaxIndexSize, 4},
		{163, 15, MaxFrameSize, 5},
	}
	frames[1].Size = MaxIndexSize
	b, start := table(frames)
	if n, err := SeekTableLen(b[len(b)-SeekFooter:], start+int64(len(b))); err != nil || n != int64(len(b)) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if got, err := ParseSeekTable(b, start); err != nil || !slices.Equal(got, frames) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := SeekTableLen(b[len(b)-SeekFooter:], int64(len(b))); err != nil {
		t.Errorf("a table as long as the file: %v", err)
	}
	footer := func(n uint32, flags byte, magic uint32) []byte {
		return binary.LittleEndian.AppendUint32(append(binary.LittleEndian.AppendUint32(nil, n), flags), magic)
	}
	if n, err := SeekTableLen(footer(MaxFrames, seekChecksums, seekableMagic), 1<<40); err != nil ||
		n != SeekHeader+MaxFrames*SeekEntry+SeekFooter {
		t.Errorf("as many frames as allowed: %d, %v", n, err)
	}
	for name, foot := range map[string][]byte{
		"short": b[len(b)-SeekFooter+1:], "magic": footer(5, seekChecksums, 1), "flags": footer(5, 0, seekableMagic),
		"few":  footer(4, seekChecksums, seekableMagic),
		"many": footer(MaxFrames+1, seekChecksums, seekableMagic),
	} {
		if _, err := SeekTableLen(foot, 1<<40); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := SeekTableLen(b[len(b)-SeekFooter:], int64(len(b))-1); !errors.Is(err, ErrDamaged) {
		t.Errorf("a table longer than the file: %v", err)
	}
	for i, change := range []func(f []FrameInfo, b []byte){
		func(f []FrameInfo, _ []byte) { f[0].Len = minFrame - 1 },
		func(f []FrameInfo, _ []byte) { f[2].Size = 0 },
		func(f []FrameInfo, _ []byte) { f[0].Size = MaxFrameSize + 1 },
		func(f []FrameInfo, _ []byte) { f[4].Size = MaxFrameSize + 1 },
		func(f []FrameInfo, _ []byte) { f[1].Size = MaxIndexSize + 1 },
		func(f []FrameInfo, _ []byte) { f[3].Size = MaxIndexSize + 1 },
		func(f []FrameInfo, _ []byte) { f[2].Len = uint32(MaxFrameLen(50)) + 1 },
	} {
		bad := slices.Clone(frames)
		change(bad, nil)
		b, start := table(bad)
		if _, err := ParseSeekTable(b, start); !errors.Is(err, ErrDamaged) {
			t.Errorf("change %d: %v", i, err)
		}
	}
	for i := range 8 { // magic and length
		bad := bytes.Clone(b)
		bad[i]++
		if _, err := ParseSeekTable(bad, start); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d of the header: %v", i, err)
		}
	}
	for _, off := range []int64{-1, 1} {
		if _, err := ParseSeekTable(b, start+off); !errors.Is(err, ErrDamaged) {
			t.Errorf("a table that begins %d bytes from its place: %v", off, err)
		}
	}
}

// TestFramesFollowFromTheLayout computes the frames of a layout by hand: three small blobs of which two fill a glue
// frame exactly, and a blob of two pieces.
func TestFramesFollowFromTheLayout(t *testing.T) {
	t.Parallel()
	half := Blob{Sum: Sum{1}, Size: MaxGlue/2 - TarBlock} // with its header half of a glue frame
	l := &Layout{FrameSize: MinFrameSize, IndexSize: 2 * TarBlock, DirectorySize: 2*TarBlock + 1, Blobs: []Blob{
		half, {Sum: Sum{2}, Size: half.Size - 1}, {Sum: Sum{3}, Size: 1}, {Sum: Sum{4}, Size: MinFrameSize + 1},
	}}
	if n := l.Put(); n != 9 {
		t.Errorf("%d frames", n)
	}
	var places []Place
	for _, b := range l.Blobs {
		places = append(places, b.Place)
	}
	if want := []Place{{2, 512}, {2, 512 + MaxGlue/2}, {3, 512}, {4, 0}}; !slices.Equal(places, want) {
		t.Errorf("places %v, want %v", places, want)
	}
	sizes := []uint32{
		2*TarBlock + TarBlock, 2 * TarBlock, MaxGlue, 3 * TarBlock, MinFrameSize, 1, 511 + TarBlock,
		2*TarBlock + 1, 511 + TarEnding,
	}
	var frames []FrameInfo
	for _, n := range sizes {
		frames = append(frames, FrameInfo{Size: n})
	}
	if err := CheckFrames(l, frames); err != nil {
		t.Error(err)
	}
	for i := range frames {
		for _, by := range []uint32{1, ^uint32(0)} {
			bad := slices.Clone(frames)
			bad[i].Size += by
			if err := CheckFrames(l, bad); !errors.Is(err, ErrDamaged) {
				t.Errorf("frame %d of another size: %v", i, err)
			}
		}
		if err := CheckFrames(l, frames[:i]); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d frames: %v", i, err)
		}
	}
	if err := CheckFrames(l, append(frames, FrameInfo{Size: 1})); !errors.Is(err, ErrDamaged) {
		t.Errorf("a frame too many: %v", err)
	}
	if (Blob{Size: SmallBlob}).Pieces(MinFrameSize) != 0 || (Blob{Size: 2 * MinFrameSize}).Pieces(MinFrameSize) != 2 ||
		(Blob{Size: SmallBlob + 1}).Pieces(MinFrameSize) != 1 {
		t.Error("the number of pieces is wrong")
	}
}

// TestFrameScanner reads a stream in pieces of a byte, and refuses frames that are longer or larger than allowed, and
// ends of any kind.
func TestFrameScanner(t *testing.T) {
	t.Parallel()
	contents := [][]byte{[]byte("a"), noise(3 * StoredBlock), bytes.Repeat([]byte("text "), 1000)}
	enc, err := NewEncoder(LevelFast, 1)
	if err != nil {
		t.Fatal(err)
	}
	var stream, entries []byte
	var offsets []int64
	for _, c := range contents {
		f := enc.AppendFrame(nil, c)
		offsets = append(offsets, int64(len(stream)))
		entries = AppendEntry(entries, FrameInfo{
			Len: uint32(len(f)), Size: uint32(len(c)),
			Checksum: binary.LittleEndian.Uint32(f[len(f)-4:]),
		})
		stream = append(stream, f...)
	}
	framesEnd := len(stream)
	stream = AppendSeekTable(stream, entries)
	dec, err := NewDecoder(1)
	if err != nil {
		t.Fatal(err)
	}
	read := func(src io.Reader) error {
		s := NewFrameScanner(t.Context(), src)
		var buf []byte
		for i, want := range contents {
			raw, f, err := s.Next(buf, int64(len(want)))
			if err != nil {
				return err
			}
			got, err := DecodeFrame(dec, raw, nil, int64(f.Size))
			if err != nil || !bytes.Equal(got, want) || f.Off != offsets[i] || int(f.Len) != len(raw) ||
				s.Frames[i] != f || len(s.Frames) != i+1 {
				return fmt.Errorf("frame %d: %+v, %w", i, f, err)
			}
			buf = raw
		}
		err := s.End()
		if err == nil && s.Off != int64(len(stream)) {
			t.Errorf("the end is at byte %d of %d", s.Off, len(stream))
		}
		return err
	}
	if err := read(bytes.NewReader(stream)); err != nil {
		t.Error(err)
	}
	for _, n := range []int{0, 1, 8, 9, 13, 14, 100, framesEnd - 1, framesEnd, framesEnd + 1, len(stream) - 1} {
		if err := read(bytes.NewReader(stream[:n])); !errors.Is(err, ErrDamaged) ||
			!strings.Contains(err.Error(), "unexpected end") {
			t.Errorf("%d of %d bytes: %v", n, len(stream), err)
		}
	}
	if err := read(io.MultiReader(bytes.NewReader(stream), strings.NewReader("x"))); !errors.Is(err, ErrDamaged) ||
		!strings.Contains(err.Error(), "after the end") {
		t.Errorf("a byte more: %v", err)
	}
	broken := errors.New("the pipe broke")
	for _, n := range []int{0, 100, framesEnd, len(stream)} {
		if err := read(io.MultiReader(bytes.NewReader(stream[:n]), failing{broken})); !errors.Is(err, broken) ||
			errors.Is(err, ErrDamaged) {
			t.Errorf("a pipe that breaks after %d bytes: %v", n, err)
		}
	}
	other := bytes.Clone(stream)
	other[len(other)-SeekFooter-1]++
	if err := read(bytes.NewReader(other)); !errors.Is(err, ErrDamaged) ||
		!strings.Contains(err.Error(), "does not match") {
		t.Errorf("another seek table: %v", err)
	}
	for _, most := range []int64{0, 4} {
		if _, _, err := NewFrameScanner(t.Context(), bytes.NewReader(AppendStored(nil, []byte("12345")))).Next(nil,
			most); !errors.Is(err, ErrDamaged) {
			t.Errorf("5 bytes where %d are allowed: %v", most, err)
		}
	}
	if _, _, err := NewFrameScanner(t.Context(), bytes.NewReader(AppendStored(nil, nil))).Next(nil, 10); !errors.Is(err,
		ErrDamaged) {
		t.Errorf("an empty frame: %v", err)
	}
	long := AppendStoredHeader(nil, 1)
	for range 10 {
		long = append(AppendBlockHeader(long, 10, false), "0123456789"...)
	}
	if _, _, err := NewFrameScanner(t.Context(), bytes.NewReader(append(long, make([]byte, 100)...))).Next(nil,
		10); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "longer than allowed") {
		t.Errorf("a frame of blocks without end: %v", err)
	}
}

// failing is a pipe that breaks.
type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }
