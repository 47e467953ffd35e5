package rpm_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/rpm"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

// The packages in testdata were built by rpmbuild 4.18 and signed by rpmsign with keys of GnuPG 2.2. kk-s-rsa.rpm has
// an RSA signature, kk-s-eddsa.rpm one of Ed25519, kk-s-unsigned.rpm none.

func testdata(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func packageKeyed(t *testing.T, key string) *packages.Package {
	t.Helper()
	keys, err := signature.ReadKeys(testdata(t, key))
	if err != nil {
		t.Fatal(err)
	}
	return &packages.Package{Name: "kk-s", Version: "1-1", Arch: "noarch", Keys: keys}
}

func later() time.Time { return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) }

func TestSignatureOfPackage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rsa", "eddsa"} {
		file, p := testdata(t, "kk-s-"+name+".rpm"), packageKeyed(t, name+".asc")
		if err := rpm.CheckSignature(bytes.NewReader(file), p, later()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSignatureOfPackageRefused(t *testing.T) {
	t.Parallel()
	good, keyed := testdata(t, "kk-s-rsa.rpm"), packageKeyed(t, "rsa.asc")
	other := *keyed
	other.Version = "2-1"
	inHeader := bytes.LastIndex(good, []byte("MIT"))
	for name, c := range map[string]struct {
		file []byte
		of   *packages.Package
		want string
	}{
		"unsigned":        {testdata(t, "kk-s-unsigned.rpm"), keyed, "no signature"},
		"another key":     {good, packageKeyed(t, "eddsa.asc"), "no given key signed it"},
		"changed header":  {changed(good, inHeader), keyed, "signature"},
		"changed payload": {changed(good, len(good)-20), keyed, "payload"},
		"another version": {good, &other, `"1-1"`},
		"cut off":         {good[:len(good)-1], keyed, "payload"},
		"no package":      {[]byte("text"), keyed, "not an RPM package"},
	} {
		if err := rpm.CheckSignature(bytes.NewReader(c.file), c.of, later()); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func changed(data []byte, at int) []byte {
	out := bytes.Clone(data)
	out[at] ^= 1
	return out
}

// FuzzSignature has no file accepted that differs from the signed one in header or payload.
func FuzzSignature(f *testing.F) {
	for _, name := range []string{"kk-s-rsa.rpm", "kk-s-eddsa.rpm", "kk-s-unsigned.rpm"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	keyring, err := os.ReadFile("testdata/rsa.asc")
	if err != nil {
		f.Fatal(err)
	}
	keys, err := signature.ReadKeys(keyring)
	if err != nil {
		f.Fatal(err)
	}
	signed, err := os.ReadFile("testdata/kk-s-rsa.rpm")
	if err != nil {
		f.Fatal(err)
	}
	// before it are the lead and the signatures, which nothing signs
	header := bytes.LastIndex(signed, []byte("\x8e\xad\xe8\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &packages.Package{Name: "kk-s", Version: "1-1", Arch: "noarch", Keys: keys}
		if rpm.CheckSignature(bytes.NewReader(data), p, later()) == nil && !bytes.HasSuffix(data, signed[header:]) {
			t.Error("a changed package was accepted")
		}
	})
}
