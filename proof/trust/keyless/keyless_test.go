package keyless

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

// The signatures are made by a Sigstore for tests (trusttest): public Sigstore was not reached.

func newSigstore(t *testing.T) (*trusttest.Sigstore, *Root) {
	t.Helper()
	v, err := trusttest.NewSigstore()
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRoot(v.Root)
	if err != nil {
		t.Fatal(err)
	}
	return v, r
}

func signer() Identity { return Identity{"release@example.com", "https://issuer.example"} }

func statementBundle(t *testing.T, v *trusttest.Sigstore, id Identity, artifact []byte, predicate string) []byte {
	t.Helper()
	data, err := v.Bundle(id.Subject, id.Issuer, artifact, predicate)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func simple(t *testing.T, v *trusttest.Sigstore, id Identity, manifest digest.Digest) trust.SimpleSignature {
	t.Helper()
	s, err := v.Simple(id.Subject, id.Issuer, "x", manifest)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestVerifyBundle(t *testing.T) {
	t.Parallel()
	v, r := newSigstore(t)
	other, otherRoot := newSigstore(t)
	artifact := []byte("an image's manifest")
	data := statementBundle(t, v, signer(), artifact, trust.PredicateSign)
	claim, err := r.VerifyBundle(signer(), data, artifact)
	if err != nil || !claim.IsSignature() {
		t.Fatalf("%+v, %v", claim, err)
	}
	if claim, err := r.VerifyBundle(signer(), statementBundle(t, v, signer(), artifact,
		"https://slsa.dev/provenance/v1"), artifact); err != nil || claim.IsSignature() {
		t.Errorf("an attestation: %+v, %v", claim, err)
	}
	for name, c := range map[string]struct {
		root     *Root
		id       Identity
		data     []byte
		artifact string
		want     error
	}{
		"another artifact": {r, signer(), data, "x", ErrRefused},
		"another subject":  {r, Identity{"evil@example.com", signer().Issuer}, data, string(artifact), ErrRefused},
		"another issuer": {
			r,
			Identity{signer().Subject, "https://evil.example"},
			data, string(artifact),
			ErrRefused,
		},
		"part of the subject": {r, Identity{"release@example", signer().Issuer}, data, string(artifact), ErrRefused},
		"another root":        {otherRoot, signer(), data, string(artifact), ErrRefused},
		"another Sigstore": {
			r, signer(), statementBundle(t, other, signer(), artifact, trust.PredicateSign),
			string(artifact), ErrRefused,
		},
		"no log entry":   {r, signer(), without(t, data, "tlogEntries"), string(artifact), ErrRefused},
		"no certificate": {r, signer(), without(t, data, "certificate"), string(artifact), trust.ErrMalformed},
		"no bundle":      {r, signer(), []byte("{}"), string(artifact), trust.ErrMalformed},
	} {
		if _, err := c.root.VerifyBundle(c.id, c.data, []byte(c.artifact)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	message, err := v.MessageBundle(signer().Subject, signer().Issuer, artifact)
	if err != nil {
		t.Fatal(err)
	}
	if claim, err := r.VerifyBundle(signer(), message, artifact); err != nil || !claim.IsSignature() {
		t.Errorf("a signature of the bytes: %+v, %v", claim, err)
	}
	if _, err := r.VerifyBundle(signer(), message, []byte("x")); !errors.Is(err, ErrRefused) {
		t.Errorf("a signature of other bytes: %v", err)
	}
	if _, err := r.VerifyBundle(Identity{}, data, artifact); err == nil {
		t.Error("no identity is any identity")
	}
}

// without removes a key of the verification material.
func without(t *testing.T, data []byte, key string) []byte {
	t.Helper()
	var b map[string]any
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	delete(b["verificationMaterial"].(map[string]any), key)
	out, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestVerifySimple(t *testing.T) {
	t.Parallel()
	v, r := newSigstore(t)
	_, otherRoot := newSigstore(t)
	manifest := digest.FromString("an image's manifest")
	good := simple(t, v, signer(), manifest)
	if err := r.VerifySimple(signer(), good, manifest); err != nil {
		t.Fatal(err)
	}
	changed := func(key, value string) trust.SimpleSignature {
		s := trust.SimpleSignature{Payload: good.Payload, Annotations: maps.Clone(good.Annotations)}
		s.Annotations[key] = value
		return s
	}
	for name, c := range map[string]struct {
		root *Root
		id   Identity
		s    trust.SimpleSignature
		d    digest.Digest
		want error
	}{
		"another image":   {r, signer(), good, digest.FromString("x"), trust.ErrOtherDigest},
		"another subject": {r, Identity{"evil@example.com", signer().Issuer}, good, manifest, ErrRefused},
		"another root":    {otherRoot, signer(), good, manifest, ErrRefused},
		"another payload": {
			r, signer(),
			trust.SimpleSignature{
				Payload:     []byte(strings.Replace(string(good.Payload), "null", "1", 1)),
				Annotations: good.Annotations,
			},
			manifest, ErrRefused,
		},
		"no log entry": {r, signer(), changed(annotationRekor, ""), manifest, trust.ErrMalformed},
		"a later log entry": {r, signer(), changed(annotationRekor, strings.Replace(good.Annotations[annotationRekor],
			`"integratedTime":1`, `"integratedTime":2`, 1)), manifest, ErrRefused},
		"an entry of another": {
			r, signer(), changed(annotationRekor, simple(t, v, signer(),
				digest.FromString("y")).Annotations[annotationRekor]), manifest, ErrRefused,
		},
		"another certificate": {r, signer(), changed(trust.AnnotationCertificate,
			simple(t, v, signer(), manifest).Annotations[trust.AnnotationCertificate]), manifest, ErrRefused},
		"no certificate": {r, signer(), changed(trust.AnnotationCertificate, ""), manifest, trust.ErrMalformed},
		"no signature":   {r, signer(), changed(trust.AnnotationSignature, ""), manifest, trust.ErrMalformed},
	} {
		if err := c.root.VerifySimple(c.id, c.s, c.d); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseRootRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "{}", `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`,
		strings.Repeat("x", MaxRoot+1),
	} {
		if _, err := ParseRoot([]byte(text)); err == nil {
			t.Errorf("%.40q is accepted", text)
		}
	}
}
