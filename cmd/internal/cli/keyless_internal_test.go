package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

// TestTrustIdentity checks bundles that an identity signed, against the trusted root of the operator's trust file.
// The Sigstore stands in for the public one.
func TestTrustIdentity(t *testing.T) {
	t.Setenv(envTrust, "")
	w := newTrustWorld(t)
	const id, issuer = "release@example.com", "https://issuer.example"
	s, err := trusttest.NewSigstore()
	if err != nil {
		t.Fatal(err)
	}
	other, err := trusttest.NewSigstore()
	if err != nil {
		t.Fatal(err)
	}
	artifact, err := w.index.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	sign := func(by *trusttest.Sigstore, subject string, bytes []byte) []byte {
		t.Helper()
		data, err := by.MessageBundle(subject, issuer, bytes)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	attestation, err := s.Bundle(id, issuer, artifact, trust.PredicateSign)
	if err != nil {
		t.Fatal(err)
	}
	w.write("etc/root.json", string(s.Root))
	w.write("etc/trust.yaml", policyHead+"require: true\nroot: root.json\nidentities: [{identity: "+id+", issuer: \""+
		issuer+"\"}]\n")
	if err := w.check(sign(s, id, artifact)); err != nil {
		t.Error(err)
	}
	if err := w.check(sign(other, id, artifact), sign(s, id, artifact)); err != nil {
		t.Error(err)
	}
	for what, signature := range map[string][]byte{
		"another identity":                    sign(s, "evil@example.com", artifact),
		"another Sigstore, the same identity": sign(other, id, artifact),
		"another bundle":                      sign(s, id, []byte("x")),
		"a statement about it":                attestation,
	} {
		var e *signatureError
		if err := w.check(signature); !errors.As(err, &e) || !strings.Contains(err.Error(), id+" ("+issuer+")") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A key is no identity, and the other way round.
	ours := w.signer("etc/ours.pub")
	if err := w.check(ours); err == nil {
		t.Error("a key's signature for an identity")
	}
	w.again()
	w.write("etc/trust.yaml", policyHead+"require: true\nkeys: [ours.pub]\n")
	if err := w.check(sign(s, id, artifact)); err == nil {
		t.Error("an identity's signature for a key")
	}
}
