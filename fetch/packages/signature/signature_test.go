package signature_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"

	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

func now() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func armored(t *testing.T, key *packagestest.Key) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := armor.Encode(&b, "PGP PUBLIC KEY BLOCK", nil)
	if err == nil {
		_, err = w.Write(key.Public(t))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), '\n')
}

func TestClear(t *testing.T) {
	t.Parallel()
	first, second := packagestest.NewKey(t, now().Add(-time.Hour), 0), packagestest.NewKey(t, now().Add(-time.Hour), 0)
	keys, err := signature.ReadKeys(append(armored(t, first), armored(t, second)...)) // as cat makes them
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("Suite: stable\n- dashes\nlast: line\n")
	signed := packagestest.Clear(t, text, second)
	if got, err := keys.Clear(signed, now()); err != nil ||
		strings.TrimRight(string(got), "\n") != strings.TrimRight(string(text), "\n") {
		t.Errorf("%q, %v", got, err)
	}
	for name, bad := range map[string][]byte{
		"not signed":  text,
		"text before": append([]byte("Suite: other\n"), signed...),
		"text after":  append(bytes.Clone(signed), "Suite: other\n"...),
		"changed":     bytes.Replace(signed, []byte("stable"), []byte("sTable"), 1),
		"cut off":     signed[:len(signed)-40],
	} {
		if got, err := keys.Clear(bad, now()); err == nil {
			t.Errorf("%s: %q was taken", name, got)
		}
	}
}

func TestExpired(t *testing.T) {
	t.Parallel()
	key := packagestest.NewKey(t, now().Add(-48*time.Hour), 24*time.Hour)
	keys, err := signature.ReadKeys(key.Public(t))
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("repomd")
	sig := key.Detached(t, data)
	if err := keys.Detached(data, sig, now()); !errors.Is(err, signature.ErrExpired) {
		t.Errorf("error %v", err)
	}
	keys.AllowExpired = true
	if err := keys.Detached(data, sig, now()); err != nil {
		t.Error(err)
	}
	if err := keys.Detached([]byte("another"), sig, now()); err == nil {
		t.Error("another text was taken")
	}
}

func TestReadKeysNone(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"", "text",
		"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nxxxx\n-----END PGP PUBLIC KEY BLOCK-----\n",
	} {
		if _, err := signature.ReadKeys([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestReadKeysOtherForms names the way out for files that people take for a file of public keys.
func TestReadKeysOtherForms(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"keybox":      "\x00\x00\x00\x20\x01\x01\x00\x02KBXf\x00\x00\x00\x00",
		"private key": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nxxxx\n-----END PGP PRIVATE KEY BLOCK-----\n",
	} {
		if _, err := signature.ReadKeys([]byte(data)); err == nil || !strings.Contains(err.Error(), "gpg --export") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
