package fetch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// images pins and brings images with their referrers.
type images struct {
	kept       kept
	registries *registries.Registries
	dir        upstream.BaseDir // of keys
	log        *slog.Logger
	hosts      *Hosts
	platforms  []string // of the run
	policy     manifest.PlatformPolicy
	root       string                  // path of the manifest's trusted root
	referrers  manifest.ReferrerPolicy // for images without a policy of their own
	complete   manifest.IndexPolicy    // for images without a policy of their own

	mu      sync.Mutex
	indexes map[string]pinnedIndex // by reference
}

// resolve pins an image, followed by its referrers.
func (i *images) resolve(ctx context.Context, img manifest.Image) ([]manifest.Pin, error) {
	ref, err := img.Ref()
	if err != nil {
		return nil, err
	}
	home, _, _, err := registries.ParseImage(ref)
	if err != nil {
		return nil, err
	}
	repo, err := i.registries.Repository(home)
	if err != nil {
		return nil, err
	}
	root, verified, err := i.rootOf(ctx, repo, img, ref)
	if err != nil {
		return nil, repo.WithTags(ctx, imageVersion(ref), err)
	}
	wanted, err := platformsOr(img.Platforms, i.platforms)
	if err != nil {
		return nil, err
	}
	found, err := repo.Image(ctx, root, wanted)
	if err != nil {
		return nil, err
	}
	lacks, err := i.checkPlatforms(ctx, ref, found, wanted, i.policy)
	if err != nil {
		return nil, err
	}
	pin := manifest.Pin{
		Kind:      manifest.ItemImage,
		Ref:       ref,
		Name:      imageName(ref),
		Version:   imageVersion(ref),
		Digest:    root.Digest,
		Size:      root.Size,
		MediaType: root.MediaType,
		Lacks:     lacks,
		Verified:  verified,
	}
	if registries.IsIndex(root.MediaType) {
		pin.Platforms = found.Platforms
		policy := cmp.Or(img.Indexes, i.complete, manifest.IndexesPinned)
		if _, pin.Complete, err = i.completed(ctx, repo, found, ref, policy); err != nil {
			return nil, err
		}
	}
	return i.pinAttached(ctx, repo, img, found, pin)
}

// rootOf returns an image's manifest or index, and what vouches for it.
func (i *images) rootOf(ctx context.Context, repo *registries.Repository, img manifest.Image,
	ref string,
) (ocispec.Descriptor, manifest.Verification, error) {
	_, tag, pinned, err := registries.ParseImage(ref)
	if err != nil {
		return ocispec.Descriptor{}, "", err
	}
	if pinned != "" {
		root, _, err := repo.Manifest(ctx, ocispec.Descriptor{Digest: pinned, Size: -1})
		return root, manifest.VerifiedManifest, err
	}
	verified := vouches(repo.Peers)
	root, old, ok, err := i.kept.image(ctx, repo, ref)
	if !ok && err == nil {
		root, _, err = repo.Resolve(ctx, tag)
	} else if lookedUp(old) {
		verified = old.Verified
	}
	if img.Verify != nil { // pinAttached checks it
		verified = manifest.VerifiedSignature
	}
	return root, verified, err
}

// platformsOr returns an item's own platforms, or else those of the run.
func platformsOr(own, run []string) ([]string, error) {
	if len(own) == 0 {
		return run, nil
	}
	return normalPlatforms(own)
}

func normalPlatforms(list []string) ([]string, error) {
	var out []string
	for _, p := range list {
		normal, err := scalar.PlatformString(p)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, normal) {
			out = append(out, normal)
		}
	}
	return out, nil
}

// imageName returns a reference without tag and digest: docker.io/library/nginx.
func imageName(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref = ref[:i]
	}
	return ref
}

// imageVersion returns a reference's tag.
func imageVersion(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	return strings.TrimPrefix(strings.TrimPrefix(ref, imageName(ref)), ":")
}

// checkPlatforms compares the requested platforms with the present ones and returns the missing ones, if the policy
// allows that.
func (i *images) checkPlatforms(
	ctx context.Context, ref string, img registries.Image, wanted []string, policy manifest.PlatformPolicy,
) (missing []string, err error) {
	if len(img.There) == 0 && !registries.IsIndex(img.Root.MediaType) {
		return nil, nil // an artifact, for every platform
	}
	for _, p := range wanted {
		if !slices.Contains(img.Platforms, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	slices.Sort(missing)
	there := slices.Compact(slices.Sorted(slices.Values(img.There)))
	if len(there) == 0 {
		there = []string{"no platform at all"}
	}
	lacks := fmt.Errorf("missing platforms %s; upstream has %s", strings.Join(missing, ", "), strings.Join(there, ", "))
	switch {
	case policy != manifest.PolicyWarn:
		return nil, fmt.Errorf("%w (leave the platform out, or set platformPolicy: warn)", lacks)
	case len(img.Platforms) == 0 && registries.IsIndex(img.Root.MediaType):
		return nil, fmt.Errorf("%w, so that nothing of it could be used", lacks)
	}
	i.log.WarnContext(ctx, "image lacks platforms", "item", ref, "missing", missing, "upstream", there)
	return missing, nil
}

// plan returns the plan of a pinned image.
func (i *images) plan(ctx context.Context, pin manifest.Pin, pinned referrerPins) (*plan, error) {
	repo, err := i.registries.Pinned(pin)
	if err != nil {
		return nil, err
	}
	wanted := pin.Platforms
	if len(wanted) == 0 {
		wanted = i.platforms
	}
	img, err := pinnedImage(ctx, repo, pin, wanted)
	if err != nil {
		return nil, err
	}
	// Pinned platforms must be there; only a lock without platforms leaves that to the policy.
	policy := manifest.PolicyStrict
	if len(pin.Platforms) == 0 {
		policy = manifest.PolicyWarn
	}
	if registries.IsIndex(img.Root.MediaType) {
		if _, err := i.checkPlatforms(ctx, pin.Ref, img, wanted, policy); err != nil {
			return nil, err
		}
	}
	if err := i.checkPinned(ctx, repo, img, pin, pinned); err != nil {
		return nil, err
	}
	i.sparse(pin, img)
	i.tellIndex(ctx, pin)
	if pin.Complete {
		if img, err = repo.Whole(ctx, img.Root, wanted); err != nil {
			return nil, gone(err)
		}
	}
	return planOf(repo, img).tellLost(func(b digest.Digest, err error) error {
		of := img.Attestations[b]
		if of == "" {
			return err
		}
		return fmt.Errorf("%w: it belongs to the attestation %s, which the image's index lists: ask the image's publisher to push it again, or name the image of one platform by its digest, which has no attestation",
			err, of)
	}), nil
}

// pinnedImage reads the manifests of a pinned image.
func pinnedImage(ctx context.Context, r *registries.Repository, pin manifest.Pin,
	wanted []string,
) (registries.Image, error) {
	root, _, err := r.Manifest(ctx, ocispec.Descriptor{
		Digest: pin.Digest, Size: pinnedSize(pin),
		MediaType: pin.MediaType,
	})
	if err != nil {
		return registries.Image{}, gone(err)
	}
	return r.Image(ctx, root, wanted)
}

// planOf turns an image's facts into blobs to fetch.
func planOf(r *registries.Repository, img registries.Image) *plan {
	p := &plan{root: img.Root, absent: img.Absent}
	for _, b := range img.Blobs {
		p.blobs = append(p.blobs, blob{
			digest: b.Digest, mediaType: b.MediaType, size: b.Size, first: registries.IsConfig(b),
			fetch: func(ctx context.Context) error {
				return blobOf(r.Blob(b.Digest, b.Size)).fetch(ctx) // created on demand: most blobs are shared or cached
			},
		})
	}
	return p
}

// tellLost has lost add to the error of a blob that the registry has lost.
func (p *plan) tellLost(lost func(digest.Digest, error) error) *plan {
	for i, b := range p.blobs {
		p.blobs[i].fetch = func(ctx context.Context) error {
			err := b.fetch(ctx)
			if upstream.Lacking(err, http.StatusNotFound) {
				err = lost(b.digest, err)
			}
			return err
		}
	}
	return p
}

// planReferrer returns the plan of a referrer.
func (i *images) planReferrer(ctx context.Context, pin manifest.Pin) (*plan, error) {
	repo, err := i.registries.Pinned(pin)
	if err != nil {
		return nil, err
	}
	a, err := pinnedReferrer(ctx, repo, pin)
	if err != nil {
		return nil, gone(err)
	}
	p := planOf(repo, a.Image).tellLost(func(_ digest.Digest, err error) error {
		return fmt.Errorf("%w: the artifact (%s) is attached to %s@%s: ask its publisher to attach it again, or leave such artifacts out (referrers: none, for the image or for all) and write a new lock",
			err, pin.ArtifactType, pin.Name, pin.Subject)
	})
	p.root = a.Desc
	return p, nil
}

// pinnedReferrer reads a pinned referrer again.
func pinnedReferrer(ctx context.Context, repo *registries.Repository, pin manifest.Pin) (registries.Referrer, error) {
	_, tag, byDigest, err := registries.ParseImage(pin.Ref)
	if err != nil {
		return registries.Referrer{}, err
	}
	if byDigest != "" {
		tag = ""
	}
	desc := ocispec.Descriptor{MediaType: pin.MediaType, Digest: pin.Digest, Size: pinnedSize(pin)}
	return repo.Referrer(ctx, desc, pin.Subject, tag)
}

// gone adds the remedy if upstream no longer has a pinned item.
func gone(err error) error {
	if upstream.AnsweredWith(err, http.StatusNotFound) {
		return fmt.Errorf("%w: upstream no longer has the pinned content; write a new lock with kkbundle lock", err)
	}
	return err
}
