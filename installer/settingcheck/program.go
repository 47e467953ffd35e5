package settingcheck

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// maxLayer bounds the bytes that are searched for a program; the images of Kubernetes' programs have 0.1 GB.
const maxLayer = 2 << 30

// Contents are what hosts get: a bundle, or a lock with a cache.
type Contents interface {
	// Find returns the digest of the content for a need of a cluster: of the bytes of a file, or of an image's index
	// or manifest. The error says what is missing.
	Find(ctx context.Context, c *manifest.Cluster, need manifest.Need,
		platform scalar.Platform) (digest.Digest, error)
	// Open opens a blob. ReadBlob returns a whole one of at most max bytes, checked against its digest.
	Open(ctx context.Context, d digest.Digest) (io.ReadCloser, error)
	ReadBlob(ctx context.Context, d digest.Digest, max int64) ([]byte, error)
}

// A program is one of Kubernetes' programs in the release of a cluster.
type program struct {
	name    string
	cluster *manifest.Cluster
	from    Contents
}

// open opens the program for this machine: the kubelet is a file, the others are in their images.
func (p program) open(ctx context.Context) (io.ReadCloser, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("it is a program of Linux, and this is %s", runtime.GOOS)
	}
	need := manifest.Need{Kind: manifest.ItemImage, Name: p.name}
	if p.name == kubelet {
		need.Kind = manifest.ItemFile
	}
	at, err := p.from.Find(ctx, p.cluster, need, "linux/"+runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	if need.Kind == manifest.ItemFile {
		return p.from.Open(ctx, at)
	}
	layers, err := p.layersOf(ctx, at, 0)
	if err != nil {
		return nil, err
	}
	for _, l := range slices.Backward(layers) {
		in, err := p.openMember(ctx, l.Digest)
		if in != nil || err != nil {
			return in, err
		}
	}
	return nil, errors.New("its image has no program of that name")
}

// layersOf returns the layers of an image for this machine.
func (p program) layersOf(ctx context.Context, d digest.Digest, depth int) ([]ocispec.Descriptor, error) {
	data, err := p.from.ReadBlob(ctx, d, bundle.MaxManifest)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := bundle.DecodeManifest(data, &doc); err != nil {
		return nil, err
	}
	for _, m := range doc.Manifests {
		if on := m.Platform; depth == 0 && on != nil && on.OS == "linux" && on.Architecture == runtime.GOARCH {
			return p.layersOf(ctx, m.Digest, depth+1)
		}
	}
	if len(doc.Manifests) > 0 {
		return nil, fmt.Errorf("its image has none for linux/%s", runtime.GOARCH)
	}
	return doc.Layers, nil
}

// A member is a file of a layer.
type member struct {
	io.Reader
	closers []io.Closer
}

// Close closes the layer.
func (m member) Close() error {
	var errs []error
	for _, c := range m.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// openMember opens the program in a layer, nil if the layer does not have it.
func (p program) openMember(ctx context.Context, layer digest.Digest) (_ io.ReadCloser, err error) {
	blob, err := p.from.Open(ctx, layer)
	if err != nil {
		return nil, err
	}
	m := member{closers: []io.Closer{blob}}
	defer func() {
		if m.Reader == nil {
			err = errors.Join(err, m.Close())
		}
	}()
	in := bufio.NewReader(blob)
	var text io.Reader = in
	if magic, err := in.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		m.closers, text = append(m.closers, z), z
	}
	for entries := tar.NewReader(io.LimitReader(text, maxLayer)); ; {
		h, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil //nolint:nilnil // another layer may have it
		case err != nil:
			return nil, err
		case h.Typeflag == tar.TypeReg && path.Base(h.Name) == p.name:
			m.Reader = entries
			return m, nil
		}
	}
}
