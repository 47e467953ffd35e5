package trust_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

var artifact = []byte(`{"schemaVersion":2}`)

func signer(t testing.TB, kind string) (*trusttest.Signer, *trust.PublicKey) {
	t.Helper()
	s, err := trusttest.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	k, err := trust.ParsePublicKey(s.PEM)
	if err != nil {
		t.Fatal(err)
	}
	return s, k
}

// must returns what a signer made.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	d := digest.FromBytes(artifact)
	for _, kind := range []string{"p256", "p384", "p521", "ed25519", "rsa"} {
		s, k := signer(t, kind)
		_, other := signer(t, kind)
		simple := must[trust.SimpleSignature](t)(s.Simple("docker.io/library/app", d))
		if name, err := trust.VerifySimpleSigning(k, simple, d); err != nil || name != "docker.io/library/app" {
			t.Errorf("%s: %q, %v", kind, name, err)
		}
		if _, err := trust.VerifySimpleSigning(other, simple, d); !errors.Is(err, trust.ErrWrongKey) {
			t.Errorf("%s, another key: %v", kind, err)
		}
		for what, data := range map[string][]byte{
			trust.PredicateSign: must[[]byte](t)(s.Bundle(d, trust.PredicateSign)),
			"":                  must[[]byte](t)(s.MessageBundle(artifact)),
		} {
			if claim, err := trust.VerifyBundle(k, data, artifact); err != nil || claim.Predicate != what ||
				!claim.IsSignature() {
				t.Errorf("%s: %+v, %v", kind, claim, err)
			}
			if _, err := trust.VerifyBundle(other, data, artifact); !errors.Is(err, trust.ErrWrongKey) {
				t.Errorf("%s, another key: %v", kind, err)
			}
			if _, err := trust.VerifyBundle(k, data, []byte("something else")); !errors.Is(err, trust.ErrOtherDigest) {
				t.Errorf("%s, another artifact: %v", kind, err)
			}
		}
	}
}

// Newer programs sign over the hash that goes with the key.
func TestOtherHashes(t *testing.T) {
	t.Parallel()
	message := []byte("message")
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum384 := sha512.Sum384(message)
	sig, err := ecdsa.SignASN1(rand.Reader, p384, sum384[:])
	if err != nil {
		t.Fatal(err)
	}
	if err := parse(t, &p384.PublicKey).Verify(message, sig); err != nil {
		t.Errorf("P-384 over SHA-384: %v", err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum512 := sha512.Sum512(message)
	if sig, err = private.Sign(nil, sum512[:], crypto.SHA512); err != nil {
		t.Fatal(err)
	}
	if err := parse(t, public).Verify(message, sig); err != nil {
		t.Errorf("Ed25519ph: %v", err)
	}
}

func encode(t testing.TB, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func parse(t testing.TB, key any) *trust.PublicKey {
	t.Helper()
	return must[*trust.PublicKey](t)(trust.ParsePublicKey(encode(t, key)))
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	s, k := signer(t, "p256")
	if again := must[*trust.PublicKey](t)(trust.ParsePublicKey(append([]byte("# comment\n"),
		s.PEM...))); again.Fingerprint() != k.Fingerprint() {
		t.Error("one key, two fingerprints")
	}
}

func TestParsePublicKeySaysWhy(t *testing.T) {
	t.Parallel()
	s, _ := signer(t, "p256")
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for says, data := range map[string][]byte{
		"not a public key": []byte("nonsense"),
		"private key": []byte(
			"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n"),
		"certificate":     []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
		"want PUBLIC KEY": []byte("-----BEGIN RSA PUBLIC KEY-----\nAAAA\n-----END RSA PUBLIC KEY-----\n"),
		"public key:":     []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
		"more than one":   append(append([]byte{}, s.PEM...), s.PEM...),
		"at most 65536":   make([]byte, trust.MaxKey+1),
		"P-256, P-384":    encode(t, &p224.PublicKey),
		"RSA key of 1024": encode(t, &short.PublicKey),
	} {
		if _, err := trust.ParsePublicKey(data); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
}

func TestSimpleSigningRefuses(t *testing.T) {
	t.Parallel()
	s, k := signer(t, "p256")
	d := digest.FromBytes(artifact)
	good := must[trust.SimpleSignature](t)(s.Simple("a", d))
	tampered := good
	tampered.Payload = []byte(strings.Replace(string(good.Payload), `"a"`, `"b"`, 1))
	payload := func(text string) trust.SimpleSignature {
		return must[trust.SimpleSignature](t)(s.Payload([]byte(text)))
	}
	annotated := func(key, value string) trust.SimpleSignature {
		return trust.SimpleSignature{Payload: good.Payload, Annotations: map[string]string{key: value, "x": "y"}}
	}
	keyless := annotated(trust.AnnotationSignature, "AAAA")
	keyless.Annotations[trust.AnnotationCertificate] = "-----BEGIN CERTIFICATE-----"
	for what, c := range map[string]struct {
		s    trust.SimpleSignature
		want error
	}{
		"tampered":     {tampered, trust.ErrWrongKey},
		"other digest": {must[trust.SimpleSignature](t)(s.Simple("a", digest.FromString("b"))), trust.ErrOtherDigest},
		"no signature": {annotated("y", "z"), trust.ErrMalformed},
		"not base64":   {annotated(trust.AnnotationSignature, "?"), trust.ErrMalformed},
		"not ASN.1":    {annotated(trust.AnnotationSignature, "AAAA"), trust.ErrWrongKey},
		"keyless":      {keyless, trust.ErrKeyless},
		"no JSON":      {payload("x"), trust.ErrMalformed},
		"more JSON":    {payload(string(good.Payload) + "{}"), trust.ErrMalformed},
		"another type": {
			payload(strings.Replace(string(good.Payload), "cosign container", "some", 1)),
			trust.ErrMalformed,
		},
		"no type": {
			payload(`{"critical":{"image":{"docker-manifest-digest":"` + d.String() + `"}}}`),
			trust.ErrMalformed,
		},
		"upper digest": {
			must[trust.SimpleSignature](t)(s.Simple("a", digest.Digest(strings.ToUpper(d.String())))),
			trust.ErrOtherDigest,
		},
	} {
		if _, err := trust.VerifySimpleSigning(k, c.s, d); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

func TestBundleRefuses(t *testing.T) {
	t.Parallel()
	s, k := signer(t, "p256")
	d := digest.FromBytes(artifact)
	good := string(must[[]byte](t)(s.Bundle(d, trust.PredicateSign)))
	change := func(f func(map[string]any)) string {
		var b map[string]any
		if err := json.Unmarshal([]byte(good), &b); err != nil {
			t.Fatal(err)
		}
		f(b)
		return string(must[[]byte](t)(json.Marshal(b)))
	}
	envelope := func(b map[string]any) map[string]any { return b["dsseEnvelope"].(map[string]any) }
	certificate := func(b map[string]any) {
		b["verificationMaterial"] = map[string]any{"certificate": map[string]any{"rawBytes": "AAAA"}}
	}
	for what, c := range map[string]struct {
		bundle string
		want   error
	}{
		"payload": {change(func(b map[string]any) { envelope(b)["payload"] = "AAAA" }), trust.ErrWrongKey},
		"payload type": {
			change(func(b map[string]any) { envelope(b)["payloadType"] = "text/plain" }),
			trust.ErrWrongKey,
		},
		"no signature": {change(func(b map[string]any) { envelope(b)["signatures"] = []any{} }), trust.ErrMalformed},
		"two signatures": {change(func(b map[string]any) {
			envelope(b)["signatures"] = append(envelope(b)["signatures"].([]any), map[string]any{})
		}), trust.ErrMalformed},
		"no envelope": {change(func(b map[string]any) { delete(b, "dsseEnvelope") }), trust.ErrMalformed},
		"both": {
			change(func(b map[string]any) { b["messageSignature"] = map[string]any{} }),
			trust.ErrMalformed,
		},
		"media type": {change(func(b map[string]any) { b["mediaType"] = "text/plain" }), trust.ErrMalformed},
		"keyless": {
			change(func(b map[string]any) { certificate(b); envelope(b)["payload"] = "AAAA" }),
			trust.ErrKeyless,
		},
		"other digest": {
			string(must[[]byte](t)(s.Bundle(digest.FromString("b"), trust.PredicateSign))),
			trust.ErrOtherDigest,
		},
		"no predicate": {string(must[[]byte](t)(s.Bundle(d, ""))), trust.ErrMalformed},
		"not JSON":     {"x", trust.ErrMalformed},
		"more behind":  {good + "x", trust.ErrMalformed},
		"huge":         {strings.Repeat(" ", trust.MaxSignature+1), trust.ErrMalformed},
	} {
		if _, err := trust.VerifyBundle(k, []byte(c.bundle), artifact); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	claim, err := trust.VerifyBundle(k, must[[]byte](t)(s.Bundle(d, "https://slsa.dev/provenance/v1")), artifact)
	if err != nil || claim.IsSignature() || claim.Predicate != "https://slsa.dev/provenance/v1" {
		t.Errorf("an attestation: %+v, %v", claim, err)
	}
}

func FuzzParsePublicKey(f *testing.F) {
	s, _ := signer(f, "p256")
	f.Add(s.PEM)
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := trust.ParsePublicKey(data)
		if err == nil && (k.Fingerprint().Validate() != nil || k.Verify(nil, nil) == nil) {
			t.Error("a key without a fingerprint, or that takes anything")
		}
	})
}

// Whatever the bytes are, what is accepted was made with the key: nothing that a fuzzer finds was.
func FuzzVerify(f *testing.F) {
	s, _ := signer(f, "p256")
	_, other := signer(f, "p256")
	d := digest.FromBytes(artifact)
	simple := must[trust.SimpleSignature](f)(s.Simple("a", d))
	f.Add(simple.Payload, simple.Annotations[trust.AnnotationSignature])
	f.Add(must[[]byte](f)(s.Bundle(d, trust.PredicateSign)), "")
	f.Add(must[[]byte](f)(s.MessageBundle(artifact)), "AAAA")
	f.Fuzz(func(t *testing.T, data []byte, signature string) {
		if _, err := trust.VerifyBundle(other, data, artifact); err == nil {
			t.Error("a bundle that the key did not sign")
		}
		o := trust.SimpleSignature{Payload: data, Annotations: map[string]string{trust.AnnotationSignature: signature}}
		if _, err := trust.VerifySimpleSigning(other, o, d); err == nil {
			t.Error("a payload that the key did not sign")
		}
	})
}
