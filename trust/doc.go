// Package trust makes and checks signatures with keys. It is pure: it reads bytes that it is given and asks nobody.
//
// Two ways of signing a container image are read, both as cosign writes them:
//
//   - Simple signing (VerifySimpleSigning): a JSON payload that names the digest, signed as it is
//     (cosign's specs/SIGNATURE_SPEC.md). It lies in the layers of a manifest under the tag sha256-<hex>.sig.
//   - Sigstore bundles (VerifyBundle, media type MediaTypeBundle): a DSSE envelope around an in-toto statement about the
//     digest, or a signature of the bytes themselves (sigstore's protobuf-specs, sigstore_bundle.proto). It lies in the
//     layer of an OCI referrer.
//
// Bundles of kkbundle are signed as `cosign sign-blob` signs files: SignBlob and VerifyBlob.
//
// Only keys are supported. Certificates of Fulcio (keyless signing) are worth nothing without Sigstore's roots of trust
// and its transparency log, which have to be asked; they are refused with ErrKeyless. Entries of a transparency log and
// timestamps that a signature brings along are not looked at: a key's owner needs neither.
//
// All input is bounded by the caller's slice, and by MaxSignature for what describes a signature.
package trust

import "errors"

// MaxSignature is how large a payload or a bundle may be, in bytes. Cosign's are below 20 KiB.
const MaxSignature = 4 << 20

// Media types, annotations and names of what signatures are stored as.
const (
	// MediaTypeSimpleSigning is the layer of a simple signature: the payload.
	MediaTypeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	// AnnotationSignature is on that layer: the signature in base64.
	AnnotationSignature = "dev.cosignproject.cosign/signature"
	// AnnotationCertificate is on that layer where it was signed without a key.
	AnnotationCertificate = "dev.sigstore.cosign/certificate"
	// MediaTypeBundle is a Sigstore bundle: a layer's media type, and its manifest's artifact type.
	MediaTypeBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// PredicateSign is what a statement says that is cosign's signature of an image, and no attestation about it.
	PredicateSign = "https://sigstore.dev/cosign/sign/v1"
)

// Why a signature was refused; errors.Is finds these in the errors of this package.
var (
	// ErrWrongKey says that the key did not make the signature.
	ErrWrongKey = errors.New("the key did not make this signature")
	// ErrOtherDigest says that the signature is good, and of something else.
	ErrOtherDigest = errors.New("it signs something else")
	// ErrKeyless says that it was signed with a certificate in place of a key.
	ErrKeyless = errors.New("it was signed without a key (keyless, with a certificate), which cannot be checked without asking Sigstore: sign with a key")
	// ErrMalformed says that it is no signature of the kind it claims to be.
	ErrMalformed = errors.New("it cannot be read")
)
