package ocilayout

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

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/format"
)

const (
	dockerConfig = "application/vnd.docker.container.image.v1+json"
	// containerd reads an image's name from this annotation when it imports an archive (its images/annotations.go).
	annotationImageName = "io.containerd.image.name"
)

// Archive writes items to w as a tar of an OCI image layout. Every blob is checked before its last bytes are
// written. After an error, w holds an incomplete archive.
func Archive(ctx context.Context, w io.Writer, r *bundle.Reader, items []bundle.Item) error {
	return ArchiveMissing(ctx, w, r, items, func(digest.Digest) bool { return false })
}

// ArchiveMissing is Archive for a receiver that already has some blobs. These blobs are left out of the archive;
// everything that refers to them stays unchanged.
func ArchiveMissing(ctx context.Context, w io.Writer, r *bundle.Reader, items []bundle.Item,
	has func(digest.Digest) bool,
) error {
	a, err := newArchive(ctx, w, r, items)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	a.blobs = slices.DeleteFunc(a.blobs, func(b ocispec.Descriptor) bool { return has(b.Digest) })
	if err := a.write(ctx); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// DockerArchive writes a container image of one platform (see bundle.Catalog.ForPlatform) to w in the format of
// docker save since version 25: an OCI image layout with a manifest.json. docker load, podman load, ctr images import
// and skopeo read it. Layers stay compressed, which all of these tools detect, so digests stay the same. The older
// file "repositories" is left out: it names directories that such archives no longer have, and tools read it only
// without manifest.json.
func DockerArchive(ctx context.Context, w io.Writer, r *bundle.Reader, it bundle.Item) error {
	a, err := newArchive(ctx, w, r, []bundle.Item{it})
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if a.docker, err = dockerManifest(ctx, r, it); err != nil {
		return fmt.Errorf("archive of %s: %w", it, err)
	}
	if err := a.write(ctx); err != nil {
		return fmt.Errorf("archive of %s: %w", it, err)
	}
	return nil
}

// dockerManifest returns manifest.json.
func dockerManifest(ctx context.Context, r *bundle.Reader, it bundle.Item) ([]byte, error) {
	if !bundle.IsManifest(it.Descriptor.MediaType) {
		return nil, errors.New("docker's archives hold one platform: choose it with --platform")
	}
	data, err := r.ReadBlob(ctx, it.Descriptor.Digest, bundle.MaxManifest)
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
	copyBlob func(context.Context, io.Writer, ocispec.Descriptor) error
	tar      *tar.Writer
	index    []byte
	docker   []byte // manifest.json, if there is one
	blobs    []ocispec.Descriptor
}

func newArchive(ctx context.Context, w io.Writer, r *bundle.Reader, items []bundle.Item) (*archive, error) {
	x := bundle.Index{Items: slices.Clone(items)}
	for i, it := range x.Items {
		if it.Kind != bundle.KindImage {
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
	blobs, err := r.Needed(ctx, items)
	if err != nil {
		return nil, err
	}
	return &archive{copyBlob: copyBlob(r), tar: tar.NewWriter(w), index: index, blobs: blobs}, nil
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
		if err := a.header(format.BlobPrefix+b.Digest.Encoded(), b.Size); err != nil {
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
