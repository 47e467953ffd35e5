package signature_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

// version3 returns a signature of version 3, which current signing tools no longer write. gpg --verify checks the form.
func version3(t *testing.T, by *openpgp.Entity, data []byte, at time.Time) []byte {
	t.Helper()
	trailer := binary.BigEndian.AppendUint32([]byte{0}, uint32(at.Unix()))
	h := sha256.New()
	h.Write(data)
	h.Write(trailer)
	sum := h.Sum(nil)
	value, err := rsa.SignPKCS1v15(rand.Reader, by.PrivateKey.PrivateKey.(*rsa.PrivateKey), crypto.SHA256, sum)
	if err != nil {
		t.Fatal(err)
	}
	value = bytes.TrimLeft(value, "\x00")
	body := append([]byte{3, 5}, trailer...)
	body = binary.BigEndian.AppendUint64(body, by.PrimaryKey.KeyId)
	body = append(body, byte(packet.PubKeyAlgoRSA), 8, sum[0], sum[1])
	bits := len(value) * 8
	for top := value[0]; top&0x80 == 0; top <<= 1 {
		bits--
	}
	body = append(binary.BigEndian.AppendUint16(body, uint16(bits)), value...)
	return append(binary.BigEndian.AppendUint16([]byte{0x89}, uint16(len(body))), body...)
}

func rsaKey(t *testing.T, at time.Time, lifetime time.Duration) *openpgp.Entity {
	t.Helper()
	config := &packet.Config{
		RSABits: 2048, Time: func() time.Time { return at },
		KeyLifetimeSecs: uint32(lifetime / time.Second),
	}
	e, err := openpgp.NewEntity("test", "", "test@example.org", config)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func public(t *testing.T, e *openpgp.Entity) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := e.Serialize(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSignatureOfVersion3 is about the signatures that several RPM distributions have on their packages.
func TestSignatureOfVersion3(t *testing.T) {
	t.Parallel()
	key, data := rsaKey(t, now().Add(-time.Hour), 0), []byte("a header")
	keys, err := signature.ReadKeys(public(t, key))
	if err != nil {
		t.Fatal(err)
	}
	sig := version3(t, key, data, now())
	verifiedByGPG(t, public(t, key), data, sig)
	if err := keys.Detached(data, sig, now()); err != nil {
		t.Error(err)
	}
	sha1 := bytes.Clone(sig)
	sha1[3+16] = 2
	for name, c := range map[string]struct {
		data, sig []byte
		want      string
	}{
		"changed data":     {[]byte("another"), sig, "verification error"},
		"changed time":     {data, changedAt(sig, 3+6), "verification error"},
		"changed value":    {data, changedAt(sig, len(sig)-1), "verification error"},
		"sha1":             {data, sha1, "SHA-2"},
		"cut off":          {data, sig[:len(sig)-1], "unreadable signature"},
		"another key's":    {data, version3(t, rsaKey(t, now(), 0), data, now()), "no given key signed it"},
		"missing its tail": {data, []byte{0x89, 0, 4, 3, 5, 0, 0}, "malformed"},
	} {
		if err := keys.Detached(c.data, c.sig, now()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSignatureOfVersion3Expired(t *testing.T) {
	t.Parallel()
	key, data := rsaKey(t, now().Add(-48*time.Hour), 24*time.Hour), []byte("a header")
	keys, err := signature.ReadKeys(public(t, key))
	if err != nil {
		t.Fatal(err)
	}
	sig := version3(t, key, data, now().Add(-47*time.Hour))
	if err := keys.Detached(data, sig, now()); err == nil ||
		!strings.Contains(err.Error(), signature.ErrExpired.Error()) {
		t.Errorf("an expired key: %v", err)
	}
	keys.AllowExpired = true
	if err := keys.Detached(data, sig, now()); err != nil {
		t.Error(err)
	}
}

func changedAt(data []byte, at int) []byte {
	out := bytes.Clone(data)
	out[at] ^= 1
	return out
}

// verifiedByGPG has GnuPG check a signature, where it is installed.
func verifiedByGPG(t *testing.T, key, data, sig []byte) {
	t.Helper()
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Log("gpg is not installed: the form of the signature is not compared")
		return
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"key": key, "data": data, "sig": sig} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"--import", "key"}, {"--verify", "sig", "data"}} {
		cmd := exec.CommandContext(t.Context(), "gpg", append([]string{"--homedir", dir, "--batch", "--no-autostart"},
			args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("gpg %q: %v\n%s", args, err, out)
		}
	}
}
