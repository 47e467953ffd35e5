package agefile_test

import (
	"bytes"
	"io"
	"testing"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/agefile"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

// fuzzKey is the identity that seeds are encrypted to. It protects nothing.
const fuzzKey = "AGE-SECRET-KEY-1D0VE2UTGUE2DQT7PMY3FFEP6VE0LK36ZS9J2AZFRN3LY3Q9Q5XTQF33DGK" //nolint:gosec // of this test only

// FuzzEncrypted opens age files, whole and as a stream. age authenticates all content, so a file that opens is one of
// the seeds, or a header with other bytes around the same stanza.
func FuzzEncrypted(f *testing.F) {
	key, err := age.ParseX25519Identity(fuzzKey)
	if err != nil {
		f.Fatal(err)
	}
	b := bundletest.NewBuilder(f)
	b.File("local/it", "it", nil, []byte("content"))
	for _, content := range []bool{true, false} {
		var out bytes.Buffer
		if content {
			_, err = bundle.Write(f.Context(), &out, b.Cache, b.Index,
				bundle.WriteOptions{Recipients: []age.Recipient{key.Recipient()}})
		} else {
			var w io.WriteCloser
			if w, err = age.Encrypt(&out, key.Recipient()); err == nil {
				err = w.Close()
			}
		}
		if err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes())
	}
	f.Add([]byte("age-encryption.org/v1\n-> X25519 a\nb\n--- c\n"))
	f.Add([]byte("age-encryption.org/v2\n"))
	f.Add([]byte("-----BEGIN AGE ENCRYPTED FILE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys := func([]*age.Stanza) ([]age.Identity, error) { return []age.Identity{key}, nil }
		r, err := bundle.NewReaderWith(bytes.NewReader(data), int64(len(data)), keys)
		if err == nil {
			_, err = r.Verify(t.Context(), bundle.VerifyOptions{})
		}
		_, streamErr := bundle.VerifyStream(t.Context(), agefile.Decrypt(bytes.NewReader(data), keys),
			bundle.VerifyOptions{})
		if (err == nil) != (streamErr == nil) {
			t.Errorf("in place: %v; as a stream: %v", err, streamErr)
		}
	})
}
