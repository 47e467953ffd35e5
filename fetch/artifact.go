package fetch

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/manifest"
)

// An Artifact is one artifact of a registry, and the means to fetch the blobs in its manifest.
type Artifact struct {
	Digest   digest.Digest // digest of the manifest
	Manifest []byte        // at most 4 MiB
	s        *session
	repo     *registries.Repository
}

// Wanted is an item with the blobs of an artifact that it needs.
type Wanted struct {
	Kind, Ref, Platform string
	Blobs               []ocispec.Descriptor // digest and size
}

// OpenArtifact reads the manifest that a tag or digest names. It ignores the platform options of o.
func OpenArtifact(ctx context.Context, repo name.Repository, reference string, o Options) (*Artifact, error) {
	s, err := newSession(o)
	if err != nil {
		return nil, err
	}
	a := &Artifact{s: s}
	if err := a.open(ctx, repo, reference); err != nil {
		s.close()
		return nil, err
	}
	return a, nil
}

func (a *Artifact) open(ctx context.Context, repo name.Repository, reference string) (err error) {
	if a.repo, err = a.s.registries.Repository(repo); err != nil {
		return err
	}
	var desc ocispec.Descriptor
	desc, a.Manifest, err = a.repo.Named(ctx, reference)
	a.Digest = desc.Digest
	return err
}

// Fetch brings blobs into the Store: each once, the largest first, resuming those that the Store has a part of. The
// error is *Errors with every item that failed, joined with the context's error if that ended.
func (a *Artifact) Fetch(ctx context.Context, wanted []Wanted) error {
	j := &Job{s: a.s, items: len(wanted), failed: &failures{}, have: map[digest.Digest]int64{}}
	for _, w := range wanted {
		p := &plan{pin: manifest.Pin{Kind: w.Kind, Ref: w.Ref, Platform: w.Platform}}
		for _, d := range w.Blobs {
			if err := registries.CheckDescriptor(d); err != nil {
				return fmt.Errorf("%s: %w", a.repo, err)
			}
			p.blobs = append(p.blobs, blobOf(a.repo.Blob(d.Digest, d.Size)))
		}
		j.plans = append(j.plans, p)
	}
	var err error
	if j.tasks, j.sum, err = a.s.tasks(ctx, j.plans, j.have); err != nil {
		return err
	}
	_, err = j.Run(ctx)
	return err
}

// Document returns another manifest of the artifact's repository.
func (a *Artifact) Document(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	if err := registries.CheckDescriptor(d); err != nil {
		return nil, fmt.Errorf("%s: %w", a.repo, err)
	}
	_, data, err := a.repo.Manifest(ctx, ocispec.Descriptor{Digest: d.Digest, Size: d.Size})
	return data, err
}

// Referrers lists the manifests whose subject is the artifact. The list is the registry's claim.
func (a *Artifact) Referrers(ctx context.Context) ([]ocispec.Descriptor, error) {
	return a.repo.Listed(ctx, a.Digest)
}

// Close ends the connections.
func (a *Artifact) Close() { a.s.close() }
