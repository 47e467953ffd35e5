package regzip_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"strconv"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"

	"github.com/kkbundle/kkbundle/bundle/regzip"
)

// samples returns contents of several kinds; all are made here, so that recorded digests stay valid.
func samples() map[string][]byte {
	rnd := rand.New(rand.NewSource(1)) //nolint:gosec // must repeat
	noise := make([]byte, 300_000)
	rnd.Read(noise)
	words := make([][]byte, 2000)
	for i := range words {
		words[i] = noise[i*10 : i*10+2+rnd.Intn(8)]
	}
	var text, mixed bytes.Buffer
	for text.Len() < 1300<<10 {
		if at := text.Len() - 1 - rnd.Intn(40_000); at > 0 && rnd.Intn(4) == 0 { // repeats of all lengths, nearly
			text.Write(bytes.Clone(text.Bytes()[at:min(text.Len(), at+rnd.Intn(100))]))
			continue
		}
		text.Write(words[int(float64(len(words))*rnd.Float64()*rnd.Float64())])
	}
	for mixed.Len() < 1300<<10 {
		switch rnd.Intn(4) {
		case 0:
			mixed.Write(noise[:rnd.Intn(100_000)])
		case 1:
			mixed.Write(make([]byte, rnd.Intn(100_000)))
		default:
			at := rnd.Intn(text.Len() - 200_000)
			mixed.Write(text.Bytes()[at : at+rnd.Intn(200_000)])
		}
	}
	return map[string][]byte{
		"empty": nil, "byte": {7}, "three": []byte("aaa"), "zeros": make([]byte, 200_000), "noise": noise,
		"text": text.Bytes(), "mixed": mixed.Bytes(), "window": text.Bytes()[:65536],
		"near the window": text.Bytes()[:65300],
		"block":           text.Bytes()[:1<<20],
	}
}

// levels returns the levels to try: all of them for the samples that tell them apart. A short run tries those that
// select the three algorithms, on one sample: without chains, with them, and lazily.
func levels(name string) []int {
	switch {
	case testing.Short() && name == "text":
		return []int{1, 4, 6}
	case testing.Short():
		return []int{6}
	case name == "text" || name == "mixed" || name == "sample":
		return []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	}
	return []int{1, 6}
}

func opener(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// identified checks that a stream is identified and made again.
func identified(t *testing.T, packed, content []byte) regzip.ID {
	t.Helper()
	r, size, ok, err := regzip.Identify(t.Context(), opener(packed))
	if err != nil || !ok || size != int64(len(content)) {
		t.Errorf("identify: %v, %d of %d bytes, %v", ok, size, len(content), err)
		return ""
	}
	var out bytes.Buffer
	w, err := r.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	for rest := content; len(rest) > 0; {
		n := min(len(rest), 12345)
		if _, err := w.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), packed) {
		t.Errorf("%s makes other bytes", r.Encoder)
	}
	return r.Encoder
}

func TestGoStreamsAreIdentified(t *testing.T) {
	for name, content := range samples() {
		for _, level := range levels(name) {
			var std, klauspost bytes.Buffer
			a, err := gzip.NewWriterLevel(&std, level)
			check(t, err)
			b, err := kgzip.NewWriterLevel(&klauspost, level)
			check(t, err)
			for _, w := range []io.WriteCloser{a, b} {
				_, err := w.Write(content)
				check(t, err)
				check(t, w.Close())
			}
			t.Run(name+" "+strconv.Itoa(level), func(t *testing.T) {
				identified(t, std.Bytes(), content)
				identified(t, klauspost.Bytes(), content)
			})
		}
	}
}

// TestGzipStreamsAreIdentified compares with the programs of the machine: gzip, and zlib as Python or Perl have it.
func TestGzipStreamsAreIdentified(t *testing.T) {
	programs := map[string]func(level int) []string{
		"gzip":    func(level int) []string { return []string{"gzip", "-nc", "-" + strconv.Itoa(level)} },
		"python3": func(level int) []string { return []string{"python3", "-c", pythonGzip, strconv.Itoa(level)} },
	}
	contents := samples()
	if path := os.Getenv("KKBUNDLE_GZIP_SAMPLE"); path != "" { // a file of the developer's choice
		data, err := os.ReadFile(path)
		check(t, err)
		contents = map[string][]byte{"sample": data}
	}
	for program, args := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("no %s here: not compared", program)
			continue
		}
		for name, content := range contents {
			for _, level := range levels(name) {
				t.Run(fmt.Sprintf("%s %s %d", program, name, level), func(t *testing.T) {
					a := args(level)
					cmd := exec.CommandContext(t.Context(), a[0], a[1:]...)
					cmd.Stdin = bytes.NewReader(content)
					packed, err := cmd.Output()
					check(t, err)
					identified(t, packed, content)
				})
			}
		}
	}
}

const pythonGzip = `
import sys, zlib
c = zlib.compressobj(int(sys.argv[1]), zlib.DEFLATED, 31)
sys.stdout.buffer.write(c.compress(sys.stdin.buffer.read()) + c.flush())
`

// TestEncodersKeepTheirBytes holds the output of each encoder. A digest that changes means that files written before
// can no longer be read: keep the old encoder under its ID, and give the new one another.
func TestEncodersKeepTheirBytes(t *testing.T) {
	contents := samples()
	header := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	for id, want := range recorded() {
		sum := sha256.New()
		for _, name := range []string{"text", "mixed", "noise"} {
			w, err := regzip.Recipe{Encoder: id, Header: header}.NewWriter(sum)
			check(t, err)
			_, err = w.Write(contents[name])
			check(t, err)
			check(t, w.Close())
		}
		if got := hex.EncodeToString(sum.Sum(nil))[:16]; got != want {
			t.Errorf("%q: %q, // want %s", id, got, want)
		}
	}
}

func TestUnknownStreamsAreNotIdentified(t *testing.T) {
	content := samples()["text"]
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(content)
	check(t, err)
	check(t, w.Close())
	whole := packed.Bytes()
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	crc := bytes.Clone(whole)
	crc[len(crc)-6] ^= 1
	var flushed bytes.Buffer
	w.Reset(&flushed)
	_, err = w.Write(content[:1000])
	check(t, err)
	check(t, w.Flush())
	_, err = w.Write(content[1000:])
	check(t, err)
	check(t, w.Close())
	for name, data := range map[string][]byte{
		"nothing": nil, "text": content, "cut": whole[:len(whole)-9], "cut in the header": whole[:5],
		"without trailer": whole[:len(whole)-8],
		"flipped":         flipped, "checksum": crc, "two members": append(bytes.Clone(whole), whole...),
		"a byte more": append(bytes.Clone(whole), 0),
		"flushed":     flushed.Bytes(),
	} {
		if r, _, ok, err := regzip.Identify(t.Context(), opener(data)); ok || err != nil {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	for _, content := range [][]byte{nil, []byte("aaaa"), bytes.Repeat([]byte("abc"), 1000)} {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(content)
		_ = w.Close()
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, size, ok, err := regzip.Identify(t.Context(), opener(data))
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		content, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("identified, but not gzip: %v", err)
		}
		raw, err := io.ReadAll(content)
		if err != nil || int64(len(raw)) != size {
			t.Fatalf("%d bytes of %d, %v", len(raw), size, err)
		}
		identifiedAgain(t, r, raw, data)
	})
}

func identifiedAgain(t *testing.T, r regzip.Recipe, raw, packed []byte) {
	t.Helper()
	var out bytes.Buffer
	w, err := r.NewWriter(&out)
	check(t, err)
	_, err = w.Write(raw)
	check(t, err)
	check(t, w.Close())
	if !bytes.Equal(out.Bytes(), packed) {
		t.Fatalf("%s makes other bytes", r.Encoder)
	}
}

// FuzzRoundTrip checks that our own deflate encoders make streams that decode to their content.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("hello hello hello"), byte(6))
	f.Fuzz(func(t *testing.T, content []byte, choice byte) {
		id := regzip.ID([]string{"zlib/", "gnu/"}[choice&1] + strconv.Itoa(1+int(choice>>1)%9))
		var out bytes.Buffer
		w, err := regzip.Recipe{Encoder: id, Header: []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3}}.NewWriter(&out)
		check(t, err)
		for range 40 { // beyond the window
			_, err = w.Write(content)
			check(t, err)
		}
		check(t, w.Close())
		r, err := gzip.NewReader(&out)
		check(t, err)
		got, err := io.ReadAll(r)
		check(t, err)
		if !bytes.Equal(got, bytes.Repeat(content, 40)) {
			t.Fatalf("%s: other content", id)
		}
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
