package builder

import (
	"context"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/parts"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/proof/provenance"
)

// provenance returns the statement of how the bundle was built.
func (b *builder) provenance(ctx context.Context, sum bundle.Summary) ([]byte, error) {
	files, err := b.outputFiles(ctx, sum)
	if err != nil {
		return nil, err
	}
	p := provenance.Build{
		Name: b.Manifest.Metadata.Name, Version: b.Manifest.Metadata.Version, Platforms: b.Manifest.Platforms,
		Identity: sum.Digest, Files: files, Pins: b.lock.Items, Encoder: b.cache.Encoder(), Program: b.Program,
		Locked: b.wasLocked, Started: b.started, Finished: time.Now(),
	}
	documents, err := b.documents(b.lock)
	if err != nil {
		return nil, err
	}
	lock, err := b.lock.Marshal()
	if err != nil {
		return nil, err
	}
	documents = append(documents, bundle.Document{Kind: bundle.KindLock, Ref: bundle.DocumentLock, Data: lock})
	for i, d := range documents {
		f := provenance.File{Name: d.Ref, Digest: digest.FromBytes(d.Data)}
		if i == 0 {
			p.Manifest = f // Load puts it first
			continue
		}
		p.Inputs = append(p.Inputs, f)
	}
	return provenance.New(p)
}

// outputFiles returns the files of the bundle, by their base names.
func (b *builder) outputFiles(ctx context.Context, sum bundle.Summary) ([]provenance.File, error) {
	paths := []string{b.Output}
	if sum.Parts > 0 {
		paths = nil
		for n := range sum.Parts {
			paths = append(paths, parts.Name(b.Output, n+1))
		}
	}
	m := b.begin(PhaseHash)
	defer m.end()
	var done int64
	files := make([]provenance.File, 0, len(paths))
	for _, path := range paths {
		d, err := disk.Digest(ctx, path, func(n int) {
			done += int64(n)
			m.set(done, sum.Size)
		})
		if err != nil {
			return nil, err
		}
		files = append(files, provenance.File{Name: filepath.Base(path), Digest: d})
	}
	return files, nil
}
