// Package trust makes and checks signatures with keys. It is pure: it has no network access and reads no files.
//
// Two kinds of image signatures are read, both in cosign's format:
//
//   - Simple signing (VerifySimpleSigning): a signed JSON payload that names the digest (cosign's
//     specs/SIGNATURE_SPEC.md). It lies in the layers of a manifest under the tag sha256-<hex>.sig.
//   - Sigstore bundles (VerifyBundle, media type MediaTypeBundle): a DSSE envelope around an in-toto statement about
//     the digest, or a signature of the bytes themselves (sigstore's protobuf-specs, sigstore_bundle.proto). It lies in
//     the layer of an OCI referrer.
//
// Bundles of kkbundle are signed like files with `cosign sign-blob`: SignBlob and VerifyBlob.
//
// This package knows keys. Signatures with certificates of Fulcio (keyless signing) are refused with ErrKeyless here;
// package keyless below it checks them. Transparency log entries and timestamps in a signature are
// ignored: a key's owner needs neither.
//
// All input is bounded by the caller's slice, and descriptions of signatures by MaxSignature.
package trust

import "errors"

// MaxSignature is the maximal size of a payload or a bundle, in bytes. Cosign's are below 20 KiB.
const MaxSignature = 4 << 20

// Media types, annotations and names of stored signatures.
const (
	// MediaTypeSimpleSigning is the layer of a simple signature: the payload.
	MediaTypeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	// AnnotationSignature is on that layer: the signature in base64.
	AnnotationSignature = "dev.cosignproject.cosign/signature"
	// AnnotationCertificate is on that layer if it was signed without a key.
	AnnotationCertificate = "dev.sigstore.cosign/certificate"
	// MediaTypeBundle is a Sigstore bundle: a layer's media type, and its manifest's artifact type.
	MediaTypeBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// PredicateSign is the predicate of cosign's image signatures, as opposed to attestations.
	PredicateSign = "https://sigstore.dev/cosign/sign/v1"
)

// Reasons to refuse a signature. The errors of this package match them with errors.Is.
var (
	// ErrWrongKey means the key did not make the signature.
	ErrWrongKey = errors.New("the key did not make this signature")
	// ErrOtherDigest means the signature is valid, but of another artifact.
	ErrOtherDigest = errors.New("signature of another artifact")
	// ErrKeyless means the signature was made with a certificate in place of a key.
	ErrKeyless = errors.New(
		"signed without a key (keyless, with a certificate), which needs an identity and a trusted root to be checked, not a key")
	// ErrMalformed means the data is not a signature or key of the claimed kind.
	ErrMalformed = errors.New("malformed")
)
