package bundle

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

const (
	dockerConfig = "application/vnd.docker.container.image.v1+json"
	// containerd reads an image's name from this annotation when it imports an archive (its images/annotations.go).
	annotationImageName = "io.containerd.image.name"
)

// ForPlatform returns the item with the single manifest of one platform as its root, instead of an index. Without
// wanted (nil) there must be only one manifest. An item without an index is returned unchanged if its platform is
// wanted or it has none.
func (c *Catalog) ForPlatform(ctx context.Context, it Item, wanted func(platform string) bool) (Item, error) {
	if p := it.Descriptor.Platform; p != nil && wanted != nil && !wanted(PlatformString(p)) {
		return it, fmt.Errorf("%s: no manifest for the requested platform", it)
	}
	if classOf(it.Descriptor.MediaType) != classIndex {
		return it, nil
	}
	var found []ocispec.Descriptor
	var there []string
	if err := c.manifestsOf(ctx, it, it.Descriptor.Digest, 0, func(d ocispec.Descriptor) {
		p := PlatformString(d.Platform)
		there = append(there, p)
		if wanted == nil || wanted(p) {
			found = append(found, d)
		}
	}); err != nil {
		return it, fmt.Errorf("%s: %w", it, err)
	}
	if len(found) == 0 || wanted == nil && len(found) > 1 {
		return it, fmt.Errorf("%s: several platforms: choose one with --platform: %s", it, strings.Join(there, ", "))
	}
	one := found[0]
	it.Descriptor = ocispec.Descriptor{MediaType: one.MediaType, Digest: one.Digest, Size: one.Size, Platform: one.Platform}
	it.Absent = nil
	return it, nil
}

// manifestsOf visits the manifests below an index whose platform is wanted and that the bundle holds, in the index's
// order.
func (c *Catalog) manifestsOf(ctx context.Context, it Item, index digest.Digest, depth int, visit func(ocispec.Descriptor)) error {
	if depth > maxDepth {
		return fmt.Errorf("indexes are nested more than %d deep", maxDepth)
	}
	data, err := c.ReadBlob(ctx, index, maxManifest)
	if err != nil {
		return err
	}
	var doc ocispec.Index
	if err := json.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("index %s: %w", index, err)
	}
	for _, d := range doc.Manifests {
		if slices.Contains(it.Absent, d.Digest) || PlatformString(d.Platform) == attestationPlatform {
			continue
		}
		switch classOf(d.MediaType) {
		case classIndex:
			if err := c.manifestsOf(ctx, it, d.Digest, depth+1, visit); err != nil {
				return err
			}
		case classManifest:
			visit(d)
		}
	}
	return nil
}

// WriteOCIArchive writes items to w as a tar of an OCI image layout. Every blob is checked before its last bytes are
// written. After an error, w holds an incomplete archive.
func (r *Reader) WriteOCIArchive(ctx context.Context, w io.Writer, items []Item) error {
	return r.WriteMissing(ctx, w, items, func(digest.Digest) bool { return false })
}

// WriteMissing is WriteOCIArchive for a receiver that already has some blobs. These blobs are left out of the archive;
// everything that refers to them stays unchanged.
func (r *Reader) WriteMissing(ctx context.Context, w io.Writer, items []Item, has func(digest.Digest) bool) error {
	a, err := r.newArchive(ctx, w, items)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	a.blobs = slices.DeleteFunc(a.blobs, func(b format.Blob) bool { return has(b.Sum.Digest()) })
	if err := a.write(ctx); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// WriteDockerArchive writes a container image of one platform (see ForPlatform) to w in the format of docker save since
// version 25: an OCI image layout with a manifest.json. docker load, podman load, ctr images import and skopeo read it.
// Layers stay compressed, which all of these tools detect, so digests stay the same. The older file "repositories" is
// left out: it names directories that such archives no longer have, and tools read it only without manifest.json.
func (r *Reader) WriteDockerArchive(ctx context.Context, w io.Writer, it Item) error {
	a, err := r.newArchive(ctx, w, []Item{it})
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if a.docker, err = r.dockerManifest(ctx, it); err != nil {
		return fmt.Errorf("archive of %s: %w", it, err)
	}
	if err := a.write(ctx); err != nil {
		return fmt.Errorf("archive of %s: %w", it, err)
	}
	return nil
}

// dockerManifest returns manifest.json.
func (c *Catalog) dockerManifest(ctx context.Context, it Item) ([]byte, error) {
	if classOf(it.Descriptor.MediaType) != classManifest {
		return nil, errors.New("docker's archives hold one platform: choose it with --platform")
	}
	data, err := c.ReadBlob(ctx, it.Descriptor.Digest, maxManifest)
	if err != nil {
		return nil, err
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if t := m.Config.MediaType; t != dockerConfig && t != ocispec.MediaTypeImageConfig {
		return nil, fmt.Errorf("not a container image: its config has type %q; use an OCI format", t)
	}
	image := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: archiveName(m.Config), RepoTags: repoTags(it.Ref), Layers: []string{}}
	for _, l := range m.Layers {
		image.Layers = append(image.Layers, archiveName(l))
	}
	return json.Marshal([]any{image})
}

func archiveName(d ocispec.Descriptor) string { return format.BlobPrefix + d.Digest.Encoded() }

// repoTags returns the reference without its digest, or nothing if only a digest names the image.
func repoTags(ref string) []string {
	name, _, _ := strings.Cut(ref, "@")
	if strings.LastIndexByte(name, ':') <= strings.LastIndexByte(name, '/') {
		return nil
	}
	return []string{name}
}

// An archive writes a tar of an image layout.
type archive struct {
	copyBlob func(context.Context, io.Writer, format.Blob) error
	tar      *tar.Writer
	index    []byte
	docker   []byte // manifest.json, if there is one
	blobs    []format.Blob
}

func (r *Reader) newArchive(ctx context.Context, w io.Writer, items []Item) (*archive, error) {
	x := Index{Items: slices.Clone(items)}
	for i, it := range x.Items {
		if it.Kind != KindImage {
			continue
		}
		annotations := maps.Clone(it.Descriptor.Annotations)
		if annotations == nil {
			annotations = make(map[string]string)
		}
		annotations[annotationImageName] = it.Ref
		if tags := repoTags(it.Ref); len(tags) > 0 {
			annotations[annotationImageName] = tags[0]
		}
		x.Items[i].Descriptor.Annotations = annotations
	}
	index, err := x.Marshal()
	if err != nil {
		return nil, err
	}
	blobs, err := r.needed(ctx, items)
	if err != nil {
		return nil, err
	}
	return &archive{copyBlob: r.copyBlob, tar: tar.NewWriter(w), index: index, blobs: blobs}, nil
}

func (a *archive) write(ctx context.Context) error {
	for _, f := range []struct {
		name string
		data []byte
	}{{format.LayoutName, []byte(format.LayoutContent)}, {format.IndexName, a.index}, {"manifest.json", a.docker}} {
		if f.data == nil {
			continue
		}
		if err := a.header(f.name, int64(len(f.data))); err != nil {
			return err
		}
		if _, err := a.tar.Write(f.data); err != nil {
			return err
		}
	}
	for _, b := range a.blobs {
		if err := a.header(format.BlobPrefix+b.Sum.Hex(), b.Size); err != nil {
			return err
		}
		if err := a.copyBlob(ctx, a.tar, b); err != nil {
			return err
		}
	}
	return a.tar.Close()
}

func (a *archive) header(name string, size int64) error {
	return a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644})
}
