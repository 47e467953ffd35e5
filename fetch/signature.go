package fetch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/proof/trust"
)

// largeReferrer is the size, in bytes, from which a referrer is logged, since the manifest does not list it.
const largeReferrer = 64 << 20

// maxSignatures bounds the signatures tried for one image.
const maxSignatures = 200

// Annotations of items, as package bundle names them.
const (
	annotationLacks     = "io.kkbundle.lacks"
	annotationReferrers = "io.kkbundle.referrers"
	annotationSignedBy  = "io.kkbundle.signed-by"
	annotationPackage   = "io.kkbundle.package"
	annotationVerified  = "io.kkbundle.verified"
)

// annotated copies a pin's facts, except its content, to the item's descriptor.
func annotated(d ocispec.Descriptor, pin manifest.Pin) ocispec.Descriptor {
	notes := map[string]string{
		annotationLacks: strings.Join(pin.Lacks, ","), annotationReferrers: pin.Referrers,
		annotationVerified: string(pin.Verified),
		annotationSignedBy: cmp.Or(pin.KeyDigest.String(), strings.TrimSpace(pin.Identity+" "+pin.Issuer)),
	}
	if pin.Package != "" {
		notes[annotationPackage] = strings.Join(append([]string{pin.Package}, pin.Provides...), ",")
	}
	maps.DeleteFunc(notes, func(_, v string) bool { return v == "" })
	if len(notes) > 0 {
		maps.Copy(notes, d.Annotations)
		d.Annotations = notes
	}
	return d
}

// An UnsignedError means an image is not signed by the key that its manifest demands.
type UnsignedError struct {
	Digest    digest.Digest // of the image or its index
	Key       string        // path, in the manifest's spelling
	KeyDigest digest.Digest // the key's fingerprint
	// Identity and Issuer are of the demanded certificate, instead of a key.
	Identity, Issuer string
	// Missing are the unsigned selected children of the index, if some are signed.
	Missing []digest.Digest
	Refused []RefusedSignature
	// Unknown is the reason that not all referrers could be checked; nil if all were.
	Unknown error
}

// A RefusedSignature is a signature that does not count, with the reason.
type RefusedSignature struct {
	Subject digest.Digest // the manifest it is attached to
	Ref     string        // its place
	Err     error
}

// Error names the image's digest, the key, and the problem of each signature found.
func (e *UnsignedError) Error() string {
	var b strings.Builder
	if e.Identity != "" {
		fmt.Fprintf(&b, "%s is not signed by %s (%s)", e.Digest, e.Identity, e.Issuer)
	} else {
		fmt.Fprintf(&b, "%s is not signed with %s (%s)", e.Digest, e.Key, e.KeyDigest)
	}
	for i, d := range e.Missing {
		fmt.Fprintf(&b, "%s%s", []string{", nor is its child ", ", "}[min(i, 1)], d)
	}
	if len(e.Refused) == 0 {
		b.WriteString("; no signature was found")
	}
	for i, r := range e.Refused {
		fmt.Fprintf(&b, "%s%s: %v", []string{"; found ", "; "}[min(i, 1)], r.Ref, r.Err)
	}
	if e.Unknown != nil {
		fmt.Fprintf(&b, "; not all attached artifacts could be checked: %s", oneLine(e.Unknown))
	}
	return b.String()
}

// oneLine returns the text of joined errors on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Unwrap returns the reasons.
func (e *UnsignedError) Unwrap() []error {
	var errs []error
	for _, r := range e.Refused {
		errs = append(errs, r.Err)
	}
	if e.Unknown != nil {
		errs = append(errs, e.Unknown)
	}
	return errs
}

// pinAttached looks up the referrers of an image, checks the signature if required, and returns all pins.
func (i *images) pinAttached(
	ctx context.Context, repo *registries.Repository, img manifest.Image, found registries.Image, pin manifest.Pin,
) ([]manifest.Pin, error) {
	policy := cmp.Or(img.Referrers, i.referrers, manifest.ReferrersAll)
	if policy == manifest.ReferrersNone && img.Verify == nil {
		return []manifest.Pin{pin}, nil
	}
	attached, unknown := repo.Attached(ctx, found.Manifests, policy != manifest.ReferrersAll)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if img.Verify != nil {
		pin.Key, pin.Identity, pin.Issuer = img.Verify.Key, img.Verify.Identity, img.Verify.Issuer
		if pin.Identity != "" {
			pin.Root = i.root
		}
		by, err := i.signer(&pin)
		if err != nil {
			return nil, err
		}
		c := signatureCheck{repo: repo, name: imageName(pin.Ref), by: by, image: found, referrers: attached}
		if err := c.run(ctx, pin, unknown); err != nil {
			return nil, err
		}
	}
	if unknown != nil {
		pin.Referrers = manifest.ReferrersUnknown
		i.log.WarnContext(ctx, "not all artifacts attached to an image could be looked up", "item", pin.Ref, "error",
			oneLine(unknown))
	}
	pins := []manifest.Pin{pin}
	for _, a := range attached {
		p := referrerPin(a, imageName(pin.Ref))
		p.Verified = vouches(repo.Peers)
		if a.Size > largeReferrer {
			i.log.WarnContext(ctx, "a large artifact is attached to an image", "item", pin.Ref, "referrer", p.Ref,
				"type", p.ArtifactType, "bytes", a.Size)
		}
		pins = append(pins, p)
	}
	return pins, nil
}

func referrerPin(a registries.Referrer, repository string) manifest.Pin {
	return manifest.Pin{
		Kind:         manifest.ItemReferrer,
		Ref:          a.Ref(repository),
		Name:         repository,
		Digest:       a.Desc.Digest,
		Size:         a.Desc.Size,
		MediaType:    a.Desc.MediaType,
		ArtifactType: a.Desc.ArtifactType,
		Subject:      a.Subject,
	}
}

// publicKey reads a key named by the manifest or the lock.
func (i *images) publicKey(path string) (*trust.PublicKey, error) {
	data, err := capped.ReadFile(i.dir.Path(path), trust.MaxKey)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	key, err := trust.ParsePublicKey(data)
	if err != nil {
		return nil, fmt.Errorf("verify: %s: %w", path, err)
	}
	return key, nil
}

// referrerPins are the referrers of a lock by the digest of their subject.
type referrerPins map[digest.Digest][]manifest.Pin

func pinnedReferrers(pins []manifest.Pin) referrerPins {
	out := referrerPins{}
	for _, p := range pins {
		if p.Kind == manifest.ItemReferrer {
			out[p.Subject] = append(out[p.Subject], p)
		}
	}
	return out
}

// checkPinned checks an image's pinned signatures again, before large transfers.
func (i *images) checkPinned(ctx context.Context, repo *registries.Repository, img registries.Image, pin manifest.Pin,
	pinned referrerPins,
) error {
	if !mustBeSigned(pin) {
		return nil
	}
	now := pin
	by, err := i.signer(&now)
	switch {
	case err != nil:
		return err
	case now.KeyDigest != pin.KeyDigest:
		return fmt.Errorf("verify: key %s (%s) differs from the key of the lock (%s): if that is right, run kkbundle lock",
			pin.Key, now.KeyDigest, pin.KeyDigest)
	case now.RootDigest != pin.RootDigest:
		return fmt.Errorf("verify: trusted root %s (%s) differs from the root of the lock (%s): if that is right, run kkbundle lock",
			pin.Root, now.RootDigest, pin.RootDigest)
	}
	c := signatureCheck{repo: repo, name: imageName(pin.Ref), by: by, image: img}
	for _, m := range img.Manifests {
		for _, p := range pinned[m.Digest] {
			if imageName(p.Ref) != c.name {
				continue
			}
			a, err := pinnedReferrer(ctx, repo, p)
			if err != nil {
				return gone(err)
			}
			c.referrers = append(c.referrers, a)
		}
	}
	return c.run(ctx, pin, nil)
}

// A signatureCheck looks for signatures of an image.
type signatureCheck struct {
	repo      *registries.Repository
	name      string // of the repository, in references
	by        signer
	image     registries.Image
	referrers []registries.Referrer

	decided map[digest.Digest]bool // manifests and indexes that were looked at
	tried   int
	refused []RefusedSignature
	missing []digest.Digest
}

// run requires that the image is signed or, for an index, every selected child: the digest of an index covers its
// children, but publishers that sign each platform's image may leave the index unsigned. BuildKit's attestations beside
// a child never run, and need no signature.
func (c *signatureCheck) run(ctx context.Context, pin manifest.Pin, unknown error) error {
	slices.SortFunc(c.referrers, func(a, b registries.Referrer) int { return cmp.Compare(a.Ref(""), b.Ref("")) })
	ok, err := c.covered(ctx, c.image.Root.Digest)
	if err != nil || ok {
		return err
	}
	e := &UnsignedError{
		Digest: c.image.Root.Digest, Key: pin.Key, KeyDigest: pin.KeyDigest, Identity: pin.Identity,
		Issuer: pin.Issuer, Refused: c.refused, Unknown: unknown,
	}
	for _, d := range c.missing {
		if d != e.Digest && !slices.Contains(e.Missing, d) {
			e.Missing = append(e.Missing, d)
		}
	}
	if children := c.image.Children[e.Digest]; len(e.Missing) == len(children) {
		e.Missing = nil // nothing is signed: naming the index is enough
	}
	return e
}

// covered reports whether a manifest or index is signed, itself or by all its children.
func (c *signatureCheck) covered(ctx context.Context, d digest.Digest) (bool, error) {
	if covered, decided := c.decided[d]; decided {
		return covered, nil
	}
	if c.decided == nil {
		c.decided = map[digest.Digest]bool{}
	}
	covered, err := c.decide(ctx, d)
	c.decided[d] = covered
	return covered, err
}

func (c *signatureCheck) decide(ctx context.Context, d digest.Digest) (bool, error) {
	ok, err := c.signed(ctx, d)
	if ok || err != nil {
		return ok, err
	}
	children := c.image.Children[d]
	all := len(children) > 0
	for _, child := range children { // check every child, to name all that lack a signature
		ok, err := c.covered(ctx, child)
		if err != nil {
			return false, err
		}
		all = all && ok
	}
	if !all {
		c.missing = append(c.missing, d)
	}
	return all, nil
}

func (c *signatureCheck) signed(ctx context.Context, d digest.Digest) (bool, error) {
	for _, a := range c.referrers {
		if a.Subject != d || registries.IsIndex(a.Desc.MediaType) {
			continue
		}
		for i, layer := range a.Doc.Layers {
			if !registries.IsSignatureLayer(layer) {
				continue
			}
			if c.tried++; c.tried > maxSignatures {
				return false, fmt.Errorf("%s has more than %d signatures, and none of those tried is by the signer", d,
					maxSignatures)
			}
			refused, err := c.verify(ctx, d, layer)
			if err != nil {
				return false, err
			}
			if refused == nil {
				return true, nil
			}
			ref := a.Ref(c.name)
			if len(a.Doc.Layers) > 1 {
				ref += fmt.Sprintf(" (layer %d)", i+1)
			}
			c.refused = append(c.refused, RefusedSignature{Subject: d, Ref: ref, Err: refused})
		}
	}
	return false, nil
}

// verify returns the reason that a signature does not count, nil if it does. An unreadable signature is an error.
func (c *signatureCheck) verify(ctx context.Context, d digest.Digest, layer ocispec.Descriptor) (refused, err error) {
	if layer.Size > trust.MaxSignature {
		return fmt.Errorf("%w: %d bytes", trust.ErrMalformed, layer.Size), nil
	}
	data, err := c.repo.Small(ctx, layer, trust.MaxSignature)
	if upstream.Lacking(err, http.StatusNotFound) { // another signature may count
		return fmt.Errorf("its content is lost: %w; ask its publisher to sign again", err), nil
	}
	if err != nil {
		return nil, err
	}
	if layer.MediaType == trust.MediaTypeSimpleSigning {
		return c.by.simple(trust.SimpleSignature{Payload: data, Annotations: layer.Annotations}, d), nil
	}
	_, signed, err := c.repo.Manifest(ctx, ocispec.Descriptor{Digest: d, Size: -1})
	if err != nil {
		return nil, err
	}
	claim, refused := c.by.bundle(data, signed)
	if refused == nil && !claim.IsSignature() {
		refused = fmt.Errorf("an attestation (%s), not a signature", upstream.Printable(claim.Predicate))
	}
	return refused, nil
}
