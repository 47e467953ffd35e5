package trust_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/proof/trust"
	"github.com/kkbundle/kkbundle/proof/trust/trusttest"
)

func TestSignStatement(t *testing.T) {
	t.Parallel()
	statement := []byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"` +
		digest.FromString("a").Encoded() + `"}}],"predicateType":"x","predicate":{}}`)
	var keys []*trust.PublicKey
	for _, kind := range []string{"p256", "p384", "ed25519", "rsa"} {
		s, err := trusttest.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		private, err := s.PrivatePEM()
		if err != nil {
			t.Fatal(err)
		}
		key, err := trust.ParsePrivateKey(private, nil)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := key.SignStatement(statement)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := trust.VerifyStatement(keys, signed); !errors.Is(err, trust.ErrWrongKey) {
			t.Errorf("%s: with others' keys: %v", kind, err)
		}
		keys = append(keys, key.Public())
		got, by, err := trust.VerifyStatement(keys, signed)
		if err != nil || !bytes.Equal(got, statement) || by != key.Public() {
			t.Errorf("%s: %s %v", kind, got, err)
		}
		if claim, err := trust.VerifyBundle(key.Public(), signed, []byte("a")); err != nil || claim.Predicate != "x" {
			t.Errorf("%s: as an attestation: %v %v", kind, claim, err)
		}
		if _, err := trust.VerifyBlob(keys, signed, []byte("a")); !errors.Is(err, trust.ErrMalformed) {
			t.Errorf("%s: a statement passes for a signature of the bytes: %v", kind, err)
		}
		changed := bytes.Replace(signed, []byte(`"payload":"e`), []byte(`"payload":"f`), 1)
		if _, _, err := trust.VerifyStatement(keys, changed); err == nil {
			t.Errorf("%s: a changed statement is good", kind)
		}
		blob, err := key.SignBlob([]byte("a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := trust.VerifyStatement(keys, blob); !errors.Is(err, trust.ErrMalformed) {
			t.Errorf("%s: a signature passes for a statement: %v", kind, err)
		}
	}
}
