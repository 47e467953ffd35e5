package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const (
	maxConfig = 8 << 20 // most bytes read of an image's config, for its platform
	maxDepth  = 4       // nesting of indexes
	// values in one manifest, some 100 bytes of memory each; 4 MiB of descriptors have half as many
	maxValues    = 1 << 18
	maxManifests = 1000   // manifests of one image
	maxParts     = 20_000 // descriptors in all manifests of one image
)

// An image holds the facts from an image's manifests.
type image struct {
	root      ocispec.Descriptor
	platforms []string // requested and present platforms, sorted
	there     []string // present platforms, requested or not, in upstream's spelling
	absent    []digest.Digest
	blobs     []ocispec.Descriptor // configs and layers, each once
	manifests []ocispec.Descriptor // manifests and indexes, the root first
	// children has the selected children of each index, without attestations about siblings.
	children map[digest.Digest][]digest.Digest
}

// imageRef parses a fully qualified reference. The digest is "" if there is none.
func imageRef(ref string) (name.Repository, string, digest.Digest, error) {
	rest, pinned, _ := strings.Cut(ref, "@")
	parsed, err := name.ParseReference(rest)
	if err != nil {
		return name.Repository{}, "", "", fmt.Errorf("not an image reference: %w", err)
	}
	if pinned == "" {
		return parsed.Context(), parsed.Identifier(), "", nil
	}
	d := digest.Digest(pinned)
	return parsed.Context(), parsed.Identifier(), d, upstream.CheckDigest(d)
}

// images pins and brings images with their referrers.
type images struct {
	kept       kept
	registries *registries
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
	home, _, _, err := imageRef(ref)
	if err != nil {
		return nil, err
	}
	repo, err := i.registries.repository(home)
	if err != nil {
		return nil, err
	}
	root, verified, err := i.rootOf(ctx, repo, img, ref)
	if err != nil {
		return nil, repo.withTags(ctx, imageVersion(ref), err)
	}
	wanted, err := platformsOr(img.Platforms, i.platforms)
	if err != nil {
		return nil, err
	}
	found, err := (&imageWalk{repo: repo, wanted: wanted}).read(ctx, root)
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
	if isIndex(root.MediaType) {
		pin.Platforms = found.platforms
		policy := cmp.Or(img.Indexes, i.complete, manifest.IndexesPinned)
		if _, pin.Complete, err = i.completed(ctx, repo, found, ref, policy); err != nil {
			return nil, err
		}
	}
	return i.pinAttached(ctx, repo, img, found, pin)
}

// rootOf returns an image's manifest or index, and what vouches for it.
func (i *images) rootOf(ctx context.Context, repo *repository, img manifest.Image,
	ref string,
) (ocispec.Descriptor, manifest.Verification, error) {
	_, tag, pinned, err := imageRef(ref)
	if err != nil {
		return ocispec.Descriptor{}, "", err
	}
	if pinned != "" {
		root, _, err := repo.manifest(ctx, ocispec.Descriptor{Digest: pinned, Size: -1})
		return root, manifest.VerifiedManifest, err
	}
	verified := vouches(repo.peers)
	root, old, ok, err := i.kept.image(ctx, repo, ref)
	if !ok && err == nil {
		root, _, err = repo.resolve(ctx, tag)
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
	ctx context.Context, ref string, img image, wanted []string, policy manifest.PlatformPolicy,
) (missing []string, err error) {
	if len(img.there) == 0 && !isIndex(img.root.MediaType) {
		return nil, nil // an artifact, for every platform
	}
	for _, p := range wanted {
		if !slices.Contains(img.platforms, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	slices.Sort(missing)
	there := slices.Compact(slices.Sorted(slices.Values(img.there)))
	if len(there) == 0 {
		there = []string{"no platform at all"}
	}
	lacks := fmt.Errorf("missing platforms %s; upstream has %s", strings.Join(missing, ", "), strings.Join(there, ", "))
	switch {
	case policy != manifest.PolicyWarn:
		return nil, fmt.Errorf("%w (leave the platform out, or set platformPolicy: warn)", lacks)
	case len(img.platforms) == 0 && isIndex(img.root.MediaType):
		return nil, fmt.Errorf("%w, so that nothing of it could be used", lacks)
	}
	i.log.WarnContext(ctx, "image lacks platforms", "item", ref, "missing", missing, "upstream", there)
	return missing, nil
}

// imageWalk reads an image's manifests, except those of other platforms.
type imageWalk struct {
	repo   *repository
	wanted []string
	// complete selects all platforms of an index.
	complete bool
	all      bool // everything is selected, and nothing is read as a container image
	image    image
	seen     map[digest.Digest]bool // manifests
	taken    map[digest.Digest]bool // blobs
	sizes    map[digest.Digest]int64
	parts    int
}

func (w *imageWalk) read(ctx context.Context, root ocispec.Descriptor) (image, error) {
	w.image = image{root: root, children: map[digest.Digest][]digest.Digest{}}
	w.seen, w.taken, w.sizes = map[digest.Digest]bool{}, map[digest.Digest]bool{}, map[digest.Digest]int64{}
	if err := w.manifest(ctx, root, 0); err != nil {
		return image{}, err
	}
	slices.Sort(w.image.platforms)
	w.image.platforms = slices.Compact(w.image.platforms)
	slices.Sort(w.image.absent)
	w.image.absent = slices.Compact(w.image.absent)
	// An index may name one manifest for several platforms; it is present if any of them is requested.
	w.image.absent = slices.DeleteFunc(w.image.absent, func(d digest.Digest) bool { return w.seen[d] })
	return w.image, nil
}

// manifestDoc holds the fields in use of every kind of manifest.
type manifestDoc struct {
	ArtifactType string               `json:"artifactType"`
	Subject      *ocispec.Descriptor  `json:"subject"`
	Annotations  map[string]string    `json:"annotations"`
	Config       *ocispec.Descriptor  `json:"config"`
	Layers       []ocispec.Descriptor `json:"layers"`
	Manifests    []ocispec.Descriptor `json:"manifests"`
}

// blobs returns the layers and the config.
func (d manifestDoc) blobs() []ocispec.Descriptor {
	if d.Config == nil {
		return d.Layers
	}
	return append(slices.Clone(d.Layers), *d.Config)
}

func parseManifest(desc ocispec.Descriptor, data []byte) (manifestDoc, error) {
	var doc manifestDoc
	if err := capped.JSON(data, maxValues, &doc); err != nil {
		return doc, fmt.Errorf("manifest %s: %w", desc.Digest, err)
	}
	// A document of both kinds can be read as two different images (CVE-2021-41190).
	if isIndex(desc.MediaType) && (doc.Config != nil || len(doc.Layers) > 0) ||
		!isIndex(desc.MediaType) && len(doc.Manifests) > 0 {
		return doc, fmt.Errorf("manifest %s is an index and an image at once, which is ambiguous and refused",
			desc.Digest)
	}
	for _, d := range slices.Concat(doc.Layers, doc.Manifests) {
		if err := checkDescriptor(d); err != nil {
			return doc, fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
	}
	if doc.Config != nil {
		if err := checkDescriptor(*doc.Config); err != nil {
			return doc, fmt.Errorf("manifest %s: config: %w", desc.Digest, err)
		}
	}
	return doc, nil
}

func checkDescriptor(d ocispec.Descriptor) error {
	if d.Size < 0 || d.Size > upstream.MaxBlob {
		return fmt.Errorf("blob %s: a size of %d bytes is impossible", upstream.Printable(d.Digest.String()), d.Size)
	}
	return upstream.CheckDigest(d.Digest)
}

func (w *imageWalk) manifest(ctx context.Context, desc ocispec.Descriptor, depth int) error {
	if w.seen[desc.Digest] {
		return nil
	}
	if depth > maxDepth || len(w.seen) >= maxManifests {
		return fmt.Errorf("index %s: more than %d levels or %d manifests", w.image.root.Digest, maxDepth, maxManifests)
	}
	w.seen[desc.Digest] = true
	desc, doc, err := w.repo.document(ctx, desc)
	if err != nil {
		return err
	}
	if w.parts += len(doc.Layers) + len(doc.Manifests); w.parts > maxParts {
		return fmt.Errorf("image %s has more than %d layers and manifests", w.image.root.Digest, maxParts)
	}
	if err := w.agree(desc.Digest, doc); err != nil {
		return err
	}
	w.image.manifests = append(w.image.manifests, desc)
	if !isIndex(desc.MediaType) {
		return w.leaf(ctx, doc, depth == 0)
	}
	return w.index(ctx, desc.Digest, doc.Manifests, depth)
}

// agree returns an error if the image has two sizes for one digest. One of them is wrong, and no bundle could have
// such an image.
func (w *imageWalk) agree(parent digest.Digest, doc manifestDoc) error {
	for _, d := range slices.Concat(doc.blobs(), doc.Manifests) {
		if size, known := w.sizes[d.Digest]; known && size != d.Size {
			return fmt.Errorf("manifest %s has a size of %d bytes for %s, which has %d bytes elsewhere in the image: ask its publisher to push it again",
				parent, d.Size, d.Digest, size)
		}
		w.sizes[d.Digest] = d.Size
	}
	return nil
}

// index selects children of an index.
func (w *imageWalk) index(ctx context.Context, parent digest.Digest, children []ocispec.Descriptor, depth int) error {
	// Attestations about a child follow the child, whatever the index's order.
	slices.SortStableFunc(children, func(a, b ocispec.Descriptor) int {
		return strings.Compare(attested(a).String(), attested(b).String())
	})
	for i, child := range children {
		if child.Platform != nil || !isManifest(child.MediaType) || w.all {
			continue
		}
		// If an index lacks the platform, the image's config has it; container runtimes look there, too.
		platform, err := w.configPlatform(ctx, child)
		if err != nil {
			return err
		}
		children[i].Platform = platform
	}
	chosen := w.choose(children)
	for _, child := range children {
		if !w.takes(child, chosen) {
			w.image.absent = append(w.image.absent, child.Digest)
			continue
		}
		err := w.manifest(ctx, child, depth+1)
		if lost := attested(child) != "" && !w.all && upstream.Lacking(err, http.StatusNotFound); lost {
			// Registries that remove manifests without a tag leave such holes, and images run without attestations.
			w.repo.loader.Sender.Log.WarnContext(ctx,
				"the registry has lost an attestation that an index lists; going on without it",
				"image", w.image.root.Digest, "attestation", child.Digest)
			delete(w.seen, child.Digest)
			w.image.absent = append(w.image.absent, child.Digest)
			continue
		}
		if err != nil {
			return fmt.Errorf("manifest %s of index %s: %w", child.Digest, parent, err)
		}
		if attested(child) == "" {
			w.image.children[parent] = append(w.image.children[parent], child.Digest)
		}
	}
	return nil
}

// choose returns the platforms of an index's children that match the requested ones best.
func (w *imageWalk) choose(children []ocispec.Descriptor) (chosen []string) {
	var there []string
	for _, child := range children {
		p := platformString(child.Platform)
		if p != "" && p != "unknown/unknown" && (isIndex(child.MediaType) || isManifest(child.MediaType)) {
			there = append(there, p)
		}
	}
	w.image.there = append(w.image.there, there...)
	for _, p := range w.wanted {
		for _, runs := range scalar.RunsOn(p) {
			if slices.Contains(there, runs) {
				w.image.platforms = append(w.image.platforms, p)
				chosen = append(chosen, runs)
				break
			}
		}
	}
	return chosen
}

// attested returns the digest of the sibling that a child of an index attests, if any: BuildKit stores provenance and
// SBOMs beside images this way (its docs/attestations/attestation-storage.md).
func attested(d ocispec.Descriptor) digest.Digest {
	if platformString(d.Platform) != "unknown/unknown" {
		return ""
	}
	return digest.Digest(d.Annotations["vnd.docker.reference.digest"])
}

// takes reports whether a child of an index is selected, given the chosen platforms.
func (w *imageWalk) takes(child ocispec.Descriptor, chosen []string) bool {
	of := attested(child)
	switch {
	case !isIndex(child.MediaType) && !isManifest(child.MediaType):
		return false
	case w.all, w.complete, child.Platform == nil && isIndex(child.MediaType):
		return true
	case of != "" && isManifest(child.MediaType):
		return w.seen[of]
	}
	return slices.Contains(chosen, platformString(child.Platform))
}

func (w *imageWalk) configPlatform(ctx context.Context, desc ocispec.Descriptor) (*ocispec.Platform, error) {
	_, doc, err := w.repo.document(ctx, desc)
	if err != nil {
		return nil, err
	}
	return w.platform(ctx, doc)
}

// leaf adds the blobs of a manifest. If no index has the platform, the config must have it.
func (w *imageWalk) leaf(ctx context.Context, doc manifestDoc, alone bool) error {
	for _, b := range doc.blobs() {
		if isForeign(b.MediaType) {
			return fmt.Errorf("layer %s (%s) may not be redistributed by its licence, and is not in the registry: %w",
				b.Digest, b.MediaType, errForeign)
		}
		if !w.taken[b.Digest] {
			w.taken[b.Digest] = true
			w.image.blobs = append(w.image.blobs, ocispec.Descriptor{
				MediaType: b.MediaType, Digest: b.Digest,
				Size: b.Size,
			})
		}
	}
	if !alone || w.all {
		return nil
	}
	platform, err := w.platform(ctx, doc)
	if err != nil || platform == nil {
		return err
	}
	w.image.root.Platform = platform
	w.choose([]ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageManifest, Platform: platform}})
	return nil
}

func isForeign(mediaType string) bool {
	return strings.HasPrefix(mediaType, "application/vnd.docker.image.rootfs.foreign.") ||
		strings.HasPrefix(mediaType, "application/vnd.oci.image.layer.nondistributable.")
}

// platform reads the platform of an image's config; nil if the manifest is not a container image.
func (w *imageWalk) platform(ctx context.Context, doc manifestDoc) (*ocispec.Platform, error) {
	c := doc.Config
	if c == nil || doc.ArtifactType != "" || !isConfig(*c) {
		return nil, nil // not an image
	}
	if c.Size > maxConfig {
		return nil, fmt.Errorf("config %s: %d bytes are more than the %d allowed", c.Digest, c.Size, maxConfig)
	}
	data, err := w.repo.small(ctx, *c, maxConfig)
	if err != nil {
		return nil, err
	}
	var p ocispec.Platform
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("config %s: %w", c.Digest, err)
	}
	if p.OS == "" || p.Architecture == "" {
		return nil, nil // for every platform, or unknown
	}
	return &ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}, nil
}

// platformString formats a platform as in manifests; an unknown platform keeps upstream's spelling.
func platformString(p *ocispec.Platform) string {
	if p == nil {
		return ""
	}
	raw := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		raw += "/" + p.Variant
	}
	if normal, err := scalar.PlatformString(raw); err == nil {
		return normal
	}
	return upstream.Printable(raw)
}

// plan returns the plan of a pinned image.
func (i *images) plan(ctx context.Context, pin manifest.Pin, pinned referrerPins) (*plan, error) {
	repo, err := i.registries.pinned(pin)
	if err != nil {
		return nil, err
	}
	wanted := pin.Platforms
	if len(wanted) == 0 {
		wanted = i.platforms
	}
	img, err := repo.pinned(ctx, pin, wanted)
	if err != nil {
		return nil, err
	}
	// Pinned platforms must be there; only a lock without platforms leaves that to the policy.
	policy := manifest.PolicyStrict
	if len(pin.Platforms) == 0 {
		policy = manifest.PolicyWarn
	}
	if isIndex(img.root.MediaType) {
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
		if img, err = repo.whole(ctx, img.root, wanted); err != nil {
			return nil, gone(err)
		}
	}
	return repo.plan(img), nil
}

// pinned reads the manifests of a pinned image.
func (r *repository) pinned(ctx context.Context, pin manifest.Pin, wanted []string) (image, error) {
	root, _, err := r.manifest(ctx, ocispec.Descriptor{
		Digest: pin.Digest, Size: pinnedSize(pin),
		MediaType: pin.MediaType,
	})
	if err != nil {
		return image{}, gone(err)
	}
	return (&imageWalk{repo: r, wanted: wanted}).read(ctx, root)
}

// gone adds the remedy if upstream no longer has a pinned item.
func gone(err error) error {
	if upstream.AnsweredWith(err, http.StatusNotFound) {
		return fmt.Errorf("%w: upstream no longer has the pinned content; write a new lock with kkbundle lock", err)
	}
	return err
}

// isConfig reports whether a blob is an image's configuration. Configurations are small and come first: a bundle reads
// facts about its images (platform, licence) from them before the layers arrive.
func isConfig(d ocispec.Descriptor) bool {
	return d.MediaType == ocispec.MediaTypeImageConfig || d.MediaType == dockerConfig
}

// plan turns an image's facts into blobs to fetch.
func (r *repository) plan(img image) *plan {
	p := &plan{root: img.root, absent: img.absent}
	for _, b := range img.blobs {
		p.blobs = append(p.blobs, blob{
			digest: b.Digest, mediaType: b.MediaType, size: b.Size, first: isConfig(b),
			fetch: func(ctx context.Context) error {
				return blobOf(r.blob(b.Digest, b.Size)).fetch(ctx) // created on demand: most blobs are shared or cached
			},
		})
	}
	return p
}
