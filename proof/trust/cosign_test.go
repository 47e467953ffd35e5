package trust_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/proof/trust"
)

// TestCosign reads what cosign itself wrote; testdata/cosign/README.md says how.
func TestCosign(t *testing.T) {
	t.Parallel()
	read := func(name string) []byte {
		return must[[]byte](t)(os.ReadFile(filepath.Join("testdata", "cosign", name)))
	}
	artifact, payload := read("manifest.json"), read("payload.json")
	d := digest.FromBytes(artifact)
	kinds := []string{"p256", "p384", "p521", "ed25519", "rsa"}
	for i, kind := range kinds {
		k := must[*trust.PublicKey](t)(trust.ParsePublicKey(read(kind + ".pub")))
		other := must[*trust.PublicKey](t)(trust.ParsePublicKey(read(kinds[(i+1)%len(kinds)] + ".pub")))
		var m ocispec.Manifest
		if err := json.Unmarshal(read(kind+".sig.json"), &m); err != nil ||
			m.Layers[0].MediaType != trust.MediaTypeSimpleSigning {
			t.Fatalf("%s: %+v, %v", kind, m, err)
		}
		simple := trust.SimpleSignature{Payload: payload, Annotations: m.Layers[0].Annotations}
		if name, err := trust.VerifySimpleSigning(k, simple, d); err != nil || name != "127.0.0.1:5701/app" {
			t.Errorf("%s, simple: %q, %v", kind, name, err)
		}
		if _, err := trust.VerifySimpleSigning(other, simple, d); !errors.Is(err, trust.ErrWrongKey) {
			t.Errorf("%s, simple, another key: %v", kind, err)
		}
		for file, predicate := range map[string]string{".bundle.json": trust.PredicateSign, ".blob.json": ""} {
			data := read(kind + file)
			if claim, err := trust.VerifyBundle(k, data, artifact); err != nil || claim.Predicate != predicate {
				t.Errorf("%s%s: %+v, %v", kind, file, claim, err)
			}
			if _, err := trust.VerifyBundle(other, data, artifact); !errors.Is(err, trust.ErrWrongKey) {
				t.Errorf("%s%s, another key: %v", kind, file, err)
			}
			if _, err := trust.VerifyBundle(k, data, append(bytes.Clone(artifact), '\n')); err == nil {
				t.Errorf("%s%s, another artifact: no error", kind, file)
			}
		}
	}
}
