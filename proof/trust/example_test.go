package trust_test

import (
	"fmt"
	"log"

	"github.com/kkbundle/kkbundle/proof/trust"
)

// Sign a bundle's index.json with a new key, and check the signature with the public key.
func Example() {
	password := func() ([]byte, error) { return []byte("secret"), nil }
	pair, err := trust.GenerateKeyPair([]byte("secret"))
	if err != nil {
		log.Fatal(err)
	}
	private, err := trust.ParsePrivateKey(pair.Private, password)
	if err != nil {
		log.Fatal(err)
	}
	artifact := []byte("index.json of a bundle")
	signature, err := private.SignBlob(artifact)
	if err != nil {
		log.Fatal(err)
	}

	public, err := trust.ParsePublicKey(pair.Public)
	if err != nil {
		log.Fatal(err)
	}
	signer, err := trust.VerifyBlob([]*trust.PublicKey{public}, signature, artifact)
	fmt.Println(signer.Fingerprint() == public.Fingerprint(), err)
	_, err = trust.VerifyBlob([]*trust.PublicKey{public}, signature, []byte("another index.json"))
	fmt.Println(err != nil)
	// Output:
	// true <nil>
	// true
}
