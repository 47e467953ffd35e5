package packages_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"github.com/ulikunitz/xz/lzma"

	"github.com/kkbundle/kkbundle/fetch/packages"
)

// TestUnpack reads a list in every form that an index may name.
func TestUnpack(t *testing.T) {
	t.Parallel()
	const text = "Package: a\n"
	writers := map[string]func(io.Writer) (io.WriteCloser, error){
		".gz":   func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
		".xz":   func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) },
		".zst":  func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
		".lzma": func(w io.Writer) (io.WriteCloser, error) { return lzma.NewWriter(w) },
	}
	for _, form := range packages.ListForms() {
		packed := []byte(text)
		switch {
		case form == ".bz2": // bzip2's own, for Go has no writer
			packed, _ = base64.StdEncoding.DecodeString(
				"QlpoOTFBWSZTWZd1ArwAAAHbAAAQQAAAEEAAKoggACIGE0IMmIIYKjmTxdyRThQkJd1ArwA=")
		case form != "":
			var b bytes.Buffer
			w, err := writers[form](&b)
			if err == nil {
				_, err = io.WriteString(w, text)
			}
			if err == nil {
				err = w.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			packed = b.Bytes()
		}
		in, err := packages.Unpack("x/Packages"+form, bytes.NewReader(packed))
		if err != nil {
			t.Errorf("%q: %v", form, err)
			continue
		}
		if got, err := io.ReadAll(in); err != nil || string(got) != text {
			t.Errorf("%q: %q, %v", form, got, err)
		}
		if err := in.Close(); err != nil {
			t.Errorf("%q: %v", form, err)
		}
	}
	for _, name := range []string{"Packages.lz4", "primary.xml.zck"} {
		if _, err := packages.Unpack(name, strings.NewReader(text)); err == nil ||
			!strings.Contains(err.Error(), "unsupported compression") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
