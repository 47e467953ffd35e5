package closure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

const maxManifest = 4 << 20 // bytes of a manifest, an index or an image's configuration

// ReadBlob returns a blob of at most the given number of bytes.
type ReadBlob func(ctx context.Context, d digest.Digest, most int64) ([]byte, error)

// Pinned returns the items pinned by a lock.
func Pinned(l *manifest.Lock) []Item {
	items := make([]Item, 0, len(l.Items))
	for _, p := range l.Items {
		if p.Kind == manifest.ItemReferrer {
			continue
		}
		it := Item{Kind: p.Kind, Ref: p.Ref, Name: p.Name, Digest: p.Digest, Platforms: p.Platforms, Lacks: p.Lacks}
		if p.Package != "" {
			it.Packages = append([]string{p.Package}, p.Provides...)
		}
		if p.Platform != "" {
			it.Platforms = []string{p.Platform}
		}
		items = append(items, it)
	}
	return items
}

// Contents returns the items of a bundle with the platforms in their manifests: images, charts, files, and files
// written by a user. Items that only describe others are left out.
func Contents(ctx context.Context, items []bundle.Item, read ReadBlob) ([]Item, error) {
	var out []Item
	for _, it := range items {
		switch it.Kind {
		case bundle.KindImage, bundle.KindChart, bundle.KindFile, bundle.KindGit, bundle.KindManifest:
		default:
			continue
		}
		one := Item{Kind: it.Kind, Ref: it.Ref, Name: it.Name, Digest: it.Descriptor.Digest}
		if lacks := it.Descriptor.Annotations[bundle.AnnotationLacks]; lacks != "" {
			one.Lacks = strings.Split(lacks, ",")
		}
		if names := it.Descriptor.Annotations[bundle.AnnotationPackage]; names != "" {
			one.Packages = strings.Split(names, ",")
		}
		platform := bundle.PlatformString(it.Descriptor.Platform)
		switch {
		case platform != "":
			one.Platforms = []string{platform}
		case it.Kind == bundle.KindImage:
			w := platformWalk{read: read, absent: make(map[digest.Digest]bool, len(it.Absent))}
			for _, d := range it.Absent {
				w.absent[d] = true
			}
			if err := w.document(ctx, it.Descriptor, 0); err != nil {
				return nil, fmt.Errorf("%s: %w", it, err)
			}
			slices.Sort(w.platforms)
			one.Platforms = slices.Compact(w.platforms)
			if len(one.Platforms) == 0 && w.index {
				one.Platforms = []string{} // no child was selected
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// A platformWalk looks for the platforms of an image.
type platformWalk struct {
	read      ReadBlob
	absent    map[digest.Digest]bool
	descent   bundle.Descent
	platforms []string
	index     bool
}

func (w *platformWalk) document(ctx context.Context, d ocispec.Descriptor, depth int) error {
	if first, err := w.descent.Enter(d.Digest, depth); err != nil || !first {
		return err
	}
	data, err := w.read(ctx, d.Digest, maxManifest)
	if err != nil {
		return err
	}
	var doc struct {
		Config    *ocispec.Descriptor  `json:"config"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := bundle.DecodeManifest(data, &doc); err != nil {
		return fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if err := w.descent.Count(len(doc.Manifests)); err != nil {
		return err
	}
	if doc.Config != nil {
		return w.config(ctx, *doc.Config)
	}
	w.index = true
	for _, child := range doc.Manifests {
		if w.absent[child.Digest] {
			continue
		}
		platform := bundle.PlatformString(child.Platform)
		switch {
		case platform == "unknown/unknown": // an attestation of a sibling
		case platform != "":
			w.platforms = append(w.platforms, platform)
		default:
			if err := w.document(ctx, child, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// config reads the platform of an image without index. Another type of configuration means an artifact, for every
// platform.
func (w *platformWalk) config(ctx context.Context, d ocispec.Descriptor) error {
	if d.MediaType != ocispec.MediaTypeImageConfig && d.MediaType != dockerConfig {
		return nil
	}
	data, err := w.read(ctx, d.Digest, maxManifest)
	if err != nil {
		return err
	}
	var p ocispec.Platform
	if err := bundle.DecodeManifest(data, &p); err != nil {
		return errors.Join(fmt.Errorf("configuration %s is unreadable", d.Digest), err)
	}
	if p.OS != "" && p.Architecture != "" {
		w.platforms = append(w.platforms,
			bundle.PlatformString(&ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}))
	}
	return nil
}

// dockerConfig is the media type of an image configuration written by docker.
const dockerConfig = "application/vnd.docker.container.image.v1+json"
