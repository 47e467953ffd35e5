package trust

import (
	"encoding/json"
	"fmt"
)

// signedStatement is a Sigstore bundle with a DSSE envelope, its keys in cosign's order.
type signedStatement struct {
	MediaType string `json:"mediaType"`
	Material  struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Envelope struct {
		Payload     []byte          `json:"payload"`
		PayloadType string          `json:"payloadType"`
		Signatures  []dsseSignature `json:"signatures"`
	} `json:"dsseEnvelope"`
}

type dsseSignature struct {
	Sig []byte `json:"sig"`
}

// SignStatement signs an in-toto statement and returns a Sigstore bundle with it in a DSSE envelope, like `cosign
// attest-blob`. `cosign verify-blob-attestation --key` accepts it. The hashes are those of SignBlob.
func (k *PrivateKey) SignStatement(statement []byte) ([]byte, error) {
	var out signedStatement
	var err error
	out.MediaType = MediaTypeBundle
	if out.Material.PublicKey.Hint, err = k.hint(); err != nil {
		return nil, err
	}
	out.Envelope.Payload, out.Envelope.PayloadType = statement, inToto
	signature, err := k.sign(preAuthEncoding(inToto, statement))
	if err != nil {
		return nil, err
	}
	out.Envelope.Signatures = []dsseSignature{{signature}}
	data, err := json.Marshal(out)
	if err == nil && len(data) > MaxSignature {
		err = fmt.Errorf("the signed statement has %d bytes; at most %d are allowed", len(data), MaxSignature)
	}
	return data, err
}

// VerifyStatement checks a Sigstore bundle with an in-toto statement, as written by SignStatement and `cosign
// attest-blob`. It returns the statement and the key among keys that signed it. The caller must check the statement's
// subject.
//
// The error matches ErrWrongKey, ErrKeyless or ErrMalformed.
func VerifyStatement(keys []*PublicKey, bundle []byte) ([]byte, *PublicKey, error) {
	b, err := parseStatement(bundle)
	if err != nil {
		return nil, nil, err
	}
	if len(b.Envelope.Signatures) != 1 {
		return nil, nil, fmt.Errorf("%w: the envelope has %d signatures, not one", ErrMalformed,
			len(b.Envelope.Signatures))
	}
	message := preAuthEncoding(b.Envelope.PayloadType, b.Envelope.Payload)
	for _, k := range keys {
		if k.Verify(message, b.Envelope.Signatures[0].Sig) == nil {
			return b.Envelope.Payload, k, nil
		}
	}
	if b.keyless() {
		return nil, nil, ErrKeyless
	}
	return nil, nil, ErrWrongKey
}

// UncheckedStatement returns the statement of a Sigstore bundle without checking its signature.
func UncheckedStatement(bundle []byte) ([]byte, error) {
	b, err := parseStatement(bundle)
	if err != nil {
		return nil, err
	}
	return b.Envelope.Payload, nil
}

func parseStatement(bundle []byte) (*sigstoreBundle, error) {
	b, err := parseBundle(bundle)
	switch {
	case err != nil:
		return nil, err
	case b.Envelope == nil:
		return nil, fmt.Errorf("%w: there is no statement", ErrMalformed)
	case b.Message != nil:
		return nil, fmt.Errorf("%w: there is an envelope and a message signature", ErrMalformed)
	case b.Envelope.PayloadType != inToto:
		return nil, fmt.Errorf("%w: the envelope holds %.80q, not %s", ErrMalformed, b.Envelope.PayloadType, inToto)
	}
	return b, nil
}
