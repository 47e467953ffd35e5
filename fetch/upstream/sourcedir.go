package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/manifest/sources"
)

// A sourceDir is a directory of the manifest with existing content: files by name, and blobs as in an OCI image layout.
// It is searched before the network, and a file counts if its digest is right. Nothing outside of the directory is
// read, wherever links lead.
type sourceDir struct {
	name string // in the manifest's spelling
	root *os.Root
}

// SourceDirs brings content of directories into the cache.
type SourceDirs struct {
	list  []*sourceDir
	cache *Cache
	log   *slog.Logger
}

// OpenDirs opens the directories among the sources. Relative ones are below base.
func OpenDirs(from []sources.Source, base BaseDir, into *Cache, log *slog.Logger) (*SourceDirs, error) {
	dirs := &SourceDirs{cache: into, log: log}
	for _, src := range from {
		if src.Directory == "" {
			continue
		}
		root, err := os.OpenRoot(base.Path(src.Directory))
		if err != nil {
			dirs.Close()
			return nil, fmt.Errorf("sources: directory %s: %w", src.Directory, err)
		}
		dirs.list = append(dirs.list, &sourceDir{src.Directory, root})
	}
	return dirs, nil
}

// Close closes the directories.
func (l *SourceDirs) Close() {
	for _, d := range l.list {
		_ = d.root.Close() // only read
	}
}

// LayoutNames returns the paths of a blob in an OCI image layout.
func LayoutNames(d digest.Digest) []string {
	return []string{path.Join("blobs", d.Algorithm().String(), d.Encoded())}
}

// FileNames returns possible paths in a directory for the file at an address. A last name alone has neither version nor
// platform, so it counts only if a digest decides.
func FileNames(address string, want digest.Digest) []string {
	u, err := url.Parse(address)
	if err != nil {
		return nil
	}
	below := strings.TrimPrefix(path.Clean("/"+u.Path), "/")
	names := []string{path.Join(strings.ReplaceAll(u.Host, ":", "_"), below), below}
	if want != "" {
		names = append(names, path.Base(below))
		names = append(names, LayoutNames(want)...)
	}
	return slices.Compact(names)
}

// Find brings a file from a directory that has it; one of unknown digest must be there under its whole path.
func (l *SourceDirs) Find(ctx context.Context, d *Download) (ocispec.Descriptor, bool, error) {
	for _, dir := range l.list {
		for _, name := range d.Names {
			desc, ok, err := l.take(ctx, dir, name, d)
			switch {
			case errors.Is(err, ErrMismatch):
				l.log.InfoContext(ctx, "a file in a directory of sources has other content", "directory", dir.name,
					"file", name, "error", err)
				continue
			case ok && d.Want == "":
				l.log.WarnContext(ctx, "a file comes from a directory, without a published checksum", "file", name,
					"directory", dir.name, "for", d.What)
			}
			if err != nil || ok {
				return desc, ok, err
			}
		}
	}
	return ocispec.Descriptor{}, false, nil
}

// Have reports whether a directory has a file under one of a download's names.
func (l *SourceDirs) Have(d *Download) bool {
	return slices.ContainsFunc(l.list, func(dir *sourceDir) bool {
		return slices.ContainsFunc(d.Names, func(name string) bool {
			info, err := dir.root.Stat(name)
			return err == nil && info.Mode().IsRegular()
		})
	})
}

// take stores a file of a directory, if it exists and matches.
func (l *SourceDirs) take(ctx context.Context, dir *sourceDir, name string,
	d *Download,
) (desc ocispec.Descriptor, ok bool, err error) {
	f, err := dir.root.Open(name)
	if err != nil {
		return desc, false, nil //nolint:nilerr // it is not there, or not for us
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || d.Size >= 0 && info.Size() != d.Size {
		return desc, false, nil //nolint:nilerr // it is something else
	}
	key := "directory " + dir.root.Name() + "/" + name
	desc, err = Once(&l.cache.Flights, key+" "+d.Want.String(), func() (ocispec.Descriptor, error) {
		if !d.Planned {
			l.cache.Count(info.Size(), 0, 0)
		}
		desc, err := l.cache.CopyIn(ctx, key, d.Want, func(w io.Writer) error {
			_, err := io.Copy(w, Stopping(ctx, f))
			return err
		})
		if err != nil && !d.Planned {
			l.cache.Count(-info.Size(), 0, 0)
		}
		return desc, err
	})
	var store *StoreError
	switch {
	case err == nil:
		return desc, true, nil
	case errors.Is(err, ErrMismatch), errors.As(err, &store), context.Cause(ctx) != nil:
		return desc, false, err
	}
	l.log.WarnContext(ctx, "a file in a directory of sources cannot be read", "directory", dir.name, "file", name,
		"error", err)
	return desc, false, nil
}

// Blob reads a small blob from a directory, and stores it.
func (l *SourceDirs) Blob(ctx context.Context, want digest.Digest, limit int64) (data []byte, ok bool, err error) {
	for _, dir := range l.list {
		for _, name := range LayoutNames(want) {
			f, err := dir.root.Open(name)
			if err != nil {
				continue
			}
			data, err = io.ReadAll(io.LimitReader(f, limit+1))
			if err := errors.Join(err, f.Close()); err != nil || SHA256Of(data) != want {
				continue // damaged; upstream has it too
			}
			return data, true, l.cache.Put(ctx, data, want)
		}
	}
	return nil, false, nil
}
