package trust_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	return must[[]byte](t)(os.ReadFile(filepath.Join("testdata", "cosign", name)))
}

// private returns a key of testdata, with its password.
func private(t testing.TB, name, password string) *trust.PrivateKey {
	t.Helper()
	return must[*trust.PrivateKey](t)(trust.ParsePrivateKey(fixture(t, name),
		func() ([]byte, error) { return []byte(password), nil }))
}

func noPassword() ([]byte, error) { return nil, errors.New("asked for a password") }

// generated returns both halves of a new key, by way of a PEM file without encryption.
func generated(t testing.TB, kind string) (*trusttest.Signer, *trust.PrivateKey) {
	t.Helper()
	s := must[*trusttest.Signer](t)(trusttest.New(kind))
	return s, must[*trust.PrivateKey](t)(trust.ParsePrivateKey(must[[]byte](t)(s.PrivatePEM()), noPassword))
}

func kinds() []string { return []string{"p256", "p384", "p521", "ed25519", "rsa"} }

// TestKeysOfCosign reads private keys that cosign wrote, and compares what they sign with what cosign signed.
func TestKeysOfCosign(t *testing.T) {
	t.Parallel()
	artifact := fixture(t, "manifest.json")
	for name, password := range map[string]string{"p256": "", "ed25519": "", "password": "open sesame"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := private(t, name+".key", password)
			if public := must[*trust.PublicKey](t)(trust.ParsePublicKey(fixture(t, name+
				".pub"))); key.Public().Fingerprint() != public.Fingerprint() || !key.Encrypted() {
				t.Fatalf("%s is another key, or not encrypted", key.Public().Fingerprint())
			}
			ours, theirs := must[[]byte](t)(key.SignBlob(artifact)), fixture(t, name+".blob.json")
			for what, data := range map[string][]byte{"ours": ours, "theirs": theirs} {
				by, err := trust.VerifyBlob([]*trust.PublicKey{key.Public()}, data, artifact)
				if err != nil || by.Fingerprint() != key.Public().Fingerprint() ||
					trust.SignerOf(data) != by.Fingerprint() {
					t.Errorf("%s: %v, %v", what, by, err)
				}
			}
			if name == "ed25519" {
				return // cosign leaves the digest out, and then does not accept it
			}
			if got := bytes.Replace(ours, signatureOf(t, ours), signatureOf(t, theirs), 1); !bytes.Equal(got, theirs) {
				t.Errorf("written otherwise:\n%s\n%s", got, theirs)
			}
		})
	}
}

func signatureOf(t testing.TB, bundle []byte) []byte {
	t.Helper()
	var b struct {
		Message struct {
			Signature json.RawMessage `json:"signature"`
		} `json:"messageSignature"`
	}
	if err := json.Unmarshal(bundle, &b); err != nil {
		t.Fatal(err)
	}
	return b.Message.Signature
}

// TestRecorded reads what SignBlob wrote when cosign was there and accepted it; testdata/cosign/README.md says how.
func TestRecorded(t *testing.T) {
	t.Parallel()
	artifact := fixture(t, "manifest.json")
	for _, kind := range kinds() {
		key := must[*trust.PublicKey](t)(trust.ParsePublicKey(fixture(t, kind+".pub")))
		data := fixture(t, kind+".kkbundle.json")
		if _, err := trust.VerifyBlob([]*trust.PublicKey{key}, data, artifact); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		_, other := generated(t, kind)
		now := must[[]byte](t)(other.SignBlob(artifact))
		now = bytes.Replace(now, signatureOf(t, now), signatureOf(t, data), 1)
		if got := bytes.Replace(now, hintOf(t, other.Public()), hintOf(t, key), 1); !bytes.Equal(got, data) {
			t.Errorf("%s is written otherwise now, which cosign has not seen:\n%s\n%s", kind, got, data)
		}
	}
}

func hintOf(t testing.TB, k *trust.PublicKey) []byte {
	t.Helper()
	sum := must[[]byte](t)(hex.DecodeString(k.Fingerprint().Encoded()))
	return []byte(base64.StdEncoding.EncodeToString(sum))
}

// TestCosignItself runs cosign where it is installed: it checks what we sign, with keys of every kind, and signs with
// a key that we made, without asking any network.
func TestCosignItself(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("cosign")
	if err != nil {
		t.Skip("cosign is not installed; what it wrote and accepted is in testdata/cosign")
	}
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(args ...string) error {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
		cmd.Env = append(os.Environ(), "COSIGN_PASSWORD=open sesame", "HTTPS_PROXY=http://127.0.0.1:1", "HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%v: %s", args, out)
		}
		return err
	}
	blob := file("index.json", artifact)
	verify := func(public, bundle string) error {
		return run("verify-blob", "--key", public, "--bundle", bundle, "--insecure-ignore-tlog", blob)
	}
	for _, kind := range kinds() {
		s, key := generated(t, kind)
		bundle := file(kind+".json", must[[]byte](t)(key.SignBlob(artifact)))
		if err := verify(file(kind+".pub", s.PEM), bundle); err != nil {
			t.Errorf("%s: cosign refuses: %v", kind, err)
		}
	}
	pair := must[trust.KeyPair](t)(trust.GenerateKeyPair([]byte("open sesame")))
	private, bundle := file("ours.key", pair.Private), filepath.Join(dir, "theirs.json")
	if err := run("sign-blob", "--key", private, "--tlog-upload=false", "--use-signing-config=false", "-y", "--bundle",
		bundle, blob); err != nil {
		t.Fatalf("cosign does not sign with our key: %v", err)
	}
	key := must[*trust.PublicKey](t)(trust.ParsePublicKey(pair.Public))
	if _, err := trust.VerifyBlob([]*trust.PublicKey{key}, must[[]byte](t)(os.ReadFile(bundle)), artifact); err != nil {
		t.Errorf("theirs: %v", err)
	}
	if err := verify(file("ours.pub", pair.Public), bundle); err != nil {
		t.Errorf("cosign refuses its own: %v", err)
	}
	if err := verify(filepath.Join(dir, "p256.pub"), bundle); err == nil {
		t.Error("cosign accepts another key's signature: this test finds nothing")
	}
}

func TestVerifyBlobRefuses(t *testing.T) {
	t.Parallel()
	s, key := generated(t, "p256")
	_, other := generated(t, "p384")
	good := must[[]byte](t)(key.SignBlob(artifact))
	both := []*trust.PublicKey{other.Public(), key.Public()}
	if by, err := trust.VerifyBlob(both, good, artifact); err != nil || by != key.Public() {
		t.Fatalf("%v, %v", by, err)
	}
	swap := func(from, to string) []byte {
		if !bytes.Contains(good, []byte(from)) {
			t.Fatalf("%s is not in %s", from, good)
		}
		return bytes.Replace(good, []byte(from), []byte(to), 1)
	}
	statement := must[[]byte](t)(s.Bundle(digest.FromBytes(artifact), trust.PredicateSign))
	certificate := must[[]byte](t)(other.SignBlob(artifact))
	for name, c := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"empty":       {nil, trust.ErrMalformed, ""},
		"garbage":     {[]byte("\x00\xff"), trust.ErrMalformed, ""},
		"huge":        {append(bytes.Clone(good), make([]byte, trust.MaxSignature)...), trust.ErrMalformed, "bytes"},
		"more behind": {append(bytes.Clone(good), good...), trust.ErrMalformed, "data after"},
		"media type":  {swap("sigstore.bundle.v0.3", "other"), trust.ErrMalformed, "not a Sigstore bundle"},
		"cosign 2": {
			[]byte(`{"base64Signature":"AAAA","rekorBundle":null}`), trust.ErrMalformed,
			"--new-bundle-format",
		},
		"statement":     {statement, trust.ErrMalformed, "attestation"},
		"no signature":  {swap("messageSignature", "signatureMessage"), trust.ErrMalformed, "no signature"},
		"not base64":    {swap(`"signature":"`, `"signature":"*`), trust.ErrMalformed, ""},
		"null":          {[]byte("null"), trust.ErrMalformed, ""},
		"deep":          {[]byte(strings.Repeat(`{"mediaType":`, 100_000)), trust.ErrMalformed, ""},
		"other digest":  {must[[]byte](t)(key.SignBlob([]byte("another"))), trust.ErrOtherDigest, "SHA-256"},
		"digest is off": {swap(`"digest":"`, `"digest":"AAAA`), trust.ErrOtherDigest, ""},
		"lying digest":  {lying(t, key), trust.ErrWrongKey, ""},
		"keyless": {bytes.Replace(certificate, []byte(`"publicKey":`), []byte(`"certificate":{},"publicKey":`),
			1), trust.ErrKeyless, ""},
	} {
		by, err := trust.VerifyBlob([]*trust.PublicKey{key.Public()}, c.data, artifact)
		if by != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, %v", name, by, err)
		}
	}
	if by, err := trust.VerifyBlob(nil, good, artifact); by != nil || !errors.Is(err, trust.ErrWrongKey) {
		t.Errorf("no keys: %v, %v", by, err)
	}
	if trust.SignerOf([]byte("{}")) != "" || trust.SignerOf(swap(`"hint":"`, `"hint":"AA`)) != "" {
		t.Error("a signer out of nothing")
	}
}

// lying is a signature of something else that says it is of the artifact.
func lying(t testing.TB, key *trust.PrivateKey) []byte {
	t.Helper()
	good, other := must[[]byte](t)(key.SignBlob(artifact)), must[[]byte](t)(key.SignBlob([]byte("another")))
	return bytes.Replace(good, signatureOf(t, good), signatureOf(t, other), 1)
}

func TestGenerateKeyPair(t *testing.T) {
	t.Parallel()
	pair := must[trust.KeyPair](t)(trust.GenerateKeyPair([]byte("open sesame")))
	if bytes.Contains(pair.Private, []byte("open sesame")) ||
		!bytes.HasPrefix(pair.Private, []byte("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n")) {
		t.Errorf("%s", pair.Private)
	}
	key := must[*trust.PrivateKey](t)(trust.ParsePrivateKey(pair.Private,
		func() ([]byte, error) { return []byte("open sesame"), nil }))
	public := must[*trust.PublicKey](t)(trust.ParsePublicKey(pair.Public))
	if key.Public().Fingerprint() != public.Fingerprint() {
		t.Error("the halves do not fit")
	}
	if _, err := trust.ParsePrivateKey(pair.Private,
		func() ([]byte, error) { return []byte("open barley"), nil }); !errors.Is(err, trust.ErrPassword) {
		t.Errorf("another password: %v", err)
	}
}

func TestParsePrivateKeySaysWhy(t *testing.T) {
	t.Parallel()
	s, _ := generated(t, "p256")
	plain := must[[]byte](t)(s.PrivatePEM())
	box := func(json string) []byte {
		return []byte("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n" +
			base64.StdEncoding.EncodeToString([]byte(json)) + "\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n")
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":        {nil, "not a private key"},
		"huge":         {make([]byte, trust.MaxKey+1), "at most"},
		"public":       {s.PEM, "a public key cannot sign"},
		"EC":           {bytes.ReplaceAll(plain, []byte(" PRIVATE KEY"), []byte(" EC PRIVATE KEY")), "import-key-pair"},
		"cut":          {bytes.Replace(plain, []byte("M"), []byte("A"), 1), "private key: "},
		"no JSON":      {box("scrypt"), "malformed"},
		"other cipher": {box(`{"kdf":{"name":"pbkdf2"}}`), "pbkdf2"},
		"takes years": {
			box(`{"kdf":{"name":"scrypt","params":{"N":1073741824,"r":8,"p":1}},"cipher":{"name":"nacl/secretbox"}}`),
			"scrypt parameters",
		},
		"nonce": {box(`{"kdf":{"name":"scrypt","params":{"N":32768,"r":8,"p":1}},"cipher":{"name":"nacl/secretbox","nonce":"AAAA"}}`), "the nonce has 3 bytes"},
		"asked": {fixture(t, "password.key"), "asked for a password"},
	} {
		if _, err := trust.ParsePrivateKey(c.data, noPassword); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestParsePublicKeys(t *testing.T) {
	t.Parallel()
	a, b := fixture(t, "p256.pub"), fixture(t, "rsa.pub")
	list, err := trust.ParsePublicKeys(bytes.Join([][]byte{[]byte("# ours\n"), a, []byte("# theirs\n"), b}, nil))
	if err != nil || len(list) != 2 || list[0].Fingerprint() == list[1].Fingerprint() {
		t.Fatalf("%v, %v", list, err)
	}
	if _, err := trust.ParsePublicKeys(append(bytes.Clone(a), b[:len(b)-40]...)); err == nil ||
		!strings.Contains(err.Error(), "only 1 of 2") {
		t.Errorf("the second is cut: %v", err)
	}
	if _, err := trust.ParsePublicKeys(append(bytes.Clone(a), fixture(t, "p256.key")...)); err == nil ||
		!strings.Contains(err.Error(), "private key") {
		t.Errorf("a private key: %v", err)
	}
}

func FuzzParsePrivateKey(f *testing.F) {
	s, _ := generated(f, "p256")
	f.Add(must[[]byte](f)(s.PrivatePEM()))
	f.Add(fixture(f, "p256.key"))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Without a password, or a run would be spent on scrypt.
		key, err := trust.ParsePrivateKey(data, noPassword)
		if err != nil {
			return
		}
		signature := must[[]byte](t)(key.SignBlob(artifact))
		if _, err := trust.VerifyBlob([]*trust.PublicKey{key.Public()}, signature, artifact); err != nil {
			t.Errorf("a key that signs and is not believed: %v", err)
		}
	})
}

// Whatever the bytes are, nothing is accepted that the key did not sign, and SignerOf is a digest or nothing.
func FuzzVerifyBlob(f *testing.F) {
	_, key := generated(f, "p256")
	_, other := generated(f, "ed25519")
	f.Add(must[[]byte](f)(key.SignBlob(artifact)))
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","messageSignature":{"signature":""}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if by, err := trust.VerifyBlob([]*trust.PublicKey{other.Public()}, data, artifact); err == nil || by != nil {
			t.Error("a signature that the key did not make")
		}
		if d := trust.SignerOf(data); d != "" && d.Validate() != nil {
			t.Errorf("%q is no digest", d)
		}
	})
}
