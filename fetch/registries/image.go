package registries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// Bounds on what a registry sends.
const (
	MaxConfig = 8 << 20 // most bytes read of an image's config, for its platform
	maxDepth  = 4       // nesting of indexes
	// MaxValues is of one manifest, some 100 bytes of memory each; 4 MiB of descriptors have half as many.
	MaxValues    = 1 << 18
	maxManifests = 1000   // manifests of one image
	maxParts     = 20_000 // descriptors in all manifests of one image
)

// ErrForeign means that a layer's licence forbids its redistribution.
var ErrForeign = errors.New("images with such layers cannot be bundled")

// ParseImage parses a fully qualified reference. The digest is "" if there is none.
func ParseImage(ref string) (name.Repository, string, digest.Digest, error) {
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

// An Image holds the facts from an image's manifests.
type Image struct {
	Root      ocispec.Descriptor
	Platforms []string // requested and present platforms, sorted
	There     []string // present platforms, requested or not, in upstream's spelling
	Absent    []digest.Digest
	Blobs     []ocispec.Descriptor // configs and layers, each once
	Manifests []ocispec.Descriptor // manifests and indexes, the root first
	// Children has the selected children of each index, without attestations about siblings.
	Children map[digest.Digest][]digest.Digest
	// Attestations has the manifest of each blob that only BuildKit's attestations need.
	Attestations map[digest.Digest]digest.Digest
}

// Size returns the bytes of an image's manifests and blobs.
func (i Image) Size() (sum int64) {
	for _, d := range i.Manifests {
		sum += max(d.Size, 0)
	}
	for _, d := range i.Blobs {
		sum += d.Size
	}
	return sum
}

// IsConfig reports whether a blob is an image's configuration. Configurations are small and come first: a bundle reads
// facts about its images (platform, licence) from them before the layers arrive.
func IsConfig(d ocispec.Descriptor) bool {
	return d.MediaType == ocispec.MediaTypeImageConfig || d.MediaType == dockerConfig
}

// Image reads an image with the platforms of its index that were asked for.
func (r *Repository) Image(ctx context.Context, root ocispec.Descriptor, wanted []string) (Image, error) {
	return (&imageWalk{repo: r, wanted: wanted}).read(ctx, root)
}

// Whole reads an image with all platforms of its index.
func (r *Repository) Whole(ctx context.Context, root ocispec.Descriptor, wanted []string) (Image, error) {
	return (&imageWalk{repo: r, wanted: wanted, complete: true}).read(ctx, root)
}

// imageWalk reads an image's manifests, except those of other platforms.
type imageWalk struct {
	repo   *Repository
	wanted []string
	// complete selects all platforms of an index.
	complete bool
	all      bool // everything is selected, and nothing is read as a container image
	image    Image
	seen     map[digest.Digest]bool // manifests
	taken    map[digest.Digest]bool // blobs
	sizes    map[digest.Digest]int64
	parts    int
}

func (w *imageWalk) read(ctx context.Context, root ocispec.Descriptor) (Image, error) {
	w.image = Image{
		Root: root, Children: map[digest.Digest][]digest.Digest{}, Attestations: map[digest.Digest]digest.Digest{},
	}
	w.seen, w.taken, w.sizes = map[digest.Digest]bool{}, map[digest.Digest]bool{}, map[digest.Digest]int64{}
	if err := w.manifest(ctx, root, 0); err != nil {
		return Image{}, err
	}
	slices.Sort(w.image.Platforms)
	w.image.Platforms = slices.Compact(w.image.Platforms)
	slices.Sort(w.image.Absent)
	w.image.Absent = slices.Compact(w.image.Absent)
	// An index may name one manifest for several platforms; it is present if any of them is requested.
	w.image.Absent = slices.DeleteFunc(w.image.Absent, func(d digest.Digest) bool { return w.seen[d] })
	return w.image, nil
}

// Manifest holds the fields in use of every kind of manifest.
type Manifest struct {
	ArtifactType string               `json:"artifactType"`
	Subject      *ocispec.Descriptor  `json:"subject"`
	Annotations  map[string]string    `json:"annotations"`
	Config       *ocispec.Descriptor  `json:"config"`
	Layers       []ocispec.Descriptor `json:"layers"`
	Manifests    []ocispec.Descriptor `json:"manifests"`
}

// blobs returns the layers and the config.
func (d Manifest) blobs() []ocispec.Descriptor {
	if d.Config == nil {
		return d.Layers
	}
	return append(slices.Clone(d.Layers), *d.Config)
}

// ParseManifest parses and checks the text of a manifest or index with that descriptor.
func ParseManifest(desc ocispec.Descriptor, data []byte) (Manifest, error) {
	var doc Manifest
	if err := capped.JSON(data, MaxValues, &doc); err != nil {
		return doc, fmt.Errorf("manifest %s: %w", desc.Digest, err)
	}
	// A document of both kinds can be read as two different images (CVE-2021-41190). A bundle refuses empty lists, too.
	if IsIndex(desc.MediaType) && (doc.Config != nil || doc.Layers != nil) ||
		!IsIndex(desc.MediaType) && doc.Manifests != nil {
		return doc, fmt.Errorf("manifest %s is an index and an image at once, which is ambiguous and refused",
			desc.Digest)
	}
	for _, d := range slices.Concat(doc.Layers, doc.Manifests) {
		if err := CheckDescriptor(d); err != nil {
			return doc, fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
	}
	if doc.Config != nil {
		if err := CheckDescriptor(*doc.Config); err != nil {
			return doc, fmt.Errorf("manifest %s: config: %w", desc.Digest, err)
		}
	}
	return doc, nil
}

// CheckDescriptor returns an error for a size that is impossible, or a digest that is not supported.
func CheckDescriptor(d ocispec.Descriptor) error {
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
		return fmt.Errorf("index %s: more than %d levels or %d manifests", w.image.Root.Digest, maxDepth, maxManifests)
	}
	w.seen[desc.Digest] = true
	desc, doc, err := w.repo.document(ctx, desc)
	if err != nil {
		return err
	}
	if w.parts += len(doc.Layers) + len(doc.Manifests); w.parts > maxParts {
		return fmt.Errorf("image %s has more than %d layers and manifests", w.image.Root.Digest, maxParts)
	}
	if err := w.agree(desc.Digest, doc); err != nil {
		return err
	}
	w.image.Manifests = append(w.image.Manifests, desc)
	if !IsIndex(desc.MediaType) {
		return w.leaf(ctx, desc, doc, depth == 0)
	}
	return w.index(ctx, desc.Digest, doc.Manifests, depth)
}

// agree returns an error if the image has two sizes for one digest. One of them is wrong, and no bundle could have
// such an image.
func (w *imageWalk) agree(parent digest.Digest, doc Manifest) error {
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
	lost := map[digest.Digest]bool{}
	for i, child := range children {
		if child.Platform != nil && child.Platform.OS == "" && child.Platform.Architecture == "" {
			child.Platform, children[i].Platform = nil, nil
		}
		if child.Platform != nil || !IsManifest(child.MediaType) || w.all {
			continue
		}
		// If an index lacks the platform, the image's config has it; container runtimes look there, too.
		platform, err := w.configPlatform(ctx, child)
		if !w.complete && upstream.Lacking(err, http.StatusNotFound) {
			w.lose(ctx, child)
			lost[child.Digest] = true
			continue
		}
		if err != nil {
			return fmt.Errorf("manifest %s of index %s, which does not say its platform: %w", child.Digest, parent, err)
		}
		children[i].Platform = platform
	}
	chosen := w.choose(children)
	for _, child := range children {
		if lost[child.Digest] || !w.takes(child, chosen) {
			w.image.Absent = append(w.image.Absent, child.Digest)
			continue
		}
		before := len(w.image.Blobs)
		err := w.manifest(ctx, child, depth+1)
		if attested(child) != "" && !w.all && upstream.Lacking(err, http.StatusNotFound) {
			w.lose(ctx, child) // images run without attestations
			delete(w.seen, child.Digest)
			w.image.Absent = append(w.image.Absent, child.Digest)
			continue
		}
		if err != nil {
			return fmt.Errorf("manifest %s of index %s: %w", child.Digest, parent, err)
		}
		if attested(child) != "" {
			for _, b := range w.image.Blobs[before:] { // attestations come last
				w.image.Attestations[b.Digest] = child.Digest
			}
		} else {
			w.image.Children[parent] = append(w.image.Children[parent], child.Digest)
		}
	}
	return nil
}

// lose tells about a child that an index lists and that is not there: registries that remove manifests without a tag
// leave such holes. Without one that does not say its platform, a platform may be missing, which is an error then.
func (w *imageWalk) lose(ctx context.Context, child ocispec.Descriptor) {
	what := "without a platform"
	if attested(child) != "" {
		what = "attestation"
	}
	w.repo.loader.Sender.Log.WarnContext(ctx, "the registry has lost a manifest that an index lists; going on without it",
		"image", w.image.Root.Digest, "manifest", child.Digest, "kind", what)
}

// choose returns the platforms of an index's children that match the requested ones best.
func (w *imageWalk) choose(children []ocispec.Descriptor) (chosen []string) {
	var there []string
	for _, child := range children {
		p := platformString(child.Platform)
		if p != "" && p != "unknown/unknown" && (IsIndex(child.MediaType) || IsManifest(child.MediaType)) {
			there = append(there, p)
		}
	}
	w.image.There = append(w.image.There, there...)
	for _, p := range w.wanted {
		for _, runs := range scalar.RunsOn(p) {
			if slices.Contains(there, runs) {
				w.image.Platforms = append(w.image.Platforms, p)
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
	case !IsIndex(child.MediaType) && !IsManifest(child.MediaType):
		return false
	case w.all, w.complete, child.Platform == nil && IsIndex(child.MediaType):
		return true
	case of != "" && IsManifest(child.MediaType):
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
func (w *imageWalk) leaf(ctx context.Context, desc ocispec.Descriptor, doc Manifest, alone bool) error {
	if doc.Config == nil && !w.all {
		return fmt.Errorf("manifest %s has no config, and registries refuse it: ask its publisher to push it again",
			desc.Digest)
	}
	for _, b := range doc.blobs() {
		if isForeign(b.MediaType) {
			return fmt.Errorf("layer %s (%s) may not be redistributed by its licence, and is not in the registry: %w",
				b.Digest, b.MediaType, ErrForeign)
		}
		if !w.taken[b.Digest] {
			w.taken[b.Digest] = true
			w.image.Blobs = append(w.image.Blobs, ocispec.Descriptor{
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
	w.image.Root.Platform = platform
	w.choose([]ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageManifest, Platform: platform}})
	return nil
}

func isForeign(mediaType string) bool {
	return strings.HasPrefix(mediaType, "application/vnd.docker.image.rootfs.foreign.") ||
		strings.HasPrefix(mediaType, "application/vnd.oci.image.layer.nondistributable.")
}

// platform reads the platform of an image's config; nil if the manifest is not a container image.
func (w *imageWalk) platform(ctx context.Context, doc Manifest) (*ocispec.Platform, error) {
	c := doc.Config
	if c == nil || doc.ArtifactType != "" || !IsConfig(*c) {
		return nil, nil // not an image
	}
	if c.Size > MaxConfig {
		return nil, fmt.Errorf("config %s: %d bytes are more than the %d allowed", c.Digest, c.Size, MaxConfig)
	}
	data, err := w.repo.Small(ctx, *c, MaxConfig)
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
