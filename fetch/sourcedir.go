package fetch

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

	"github.com/kkbundle/kkbundle/manifest"
)

// A sourceDir is a directory of the manifest with existing content: files by name, and blobs as in an OCI image layout.
// It is searched before the network, and a file counts if its digest is right. Nothing outside of the directory is
// read, wherever links lead.
type sourceDir struct {
	name string // in the manifest's spelling
	root *os.Root
}

// sourceDirs brings content of directories into the cache.
type sourceDirs struct {
	list  []*sourceDir
	cache *cache
	log   *slog.Logger
}

func openDirs(from []manifest.Source, base baseDir, into *cache, log *slog.Logger) (*sourceDirs, error) {
	dirs := &sourceDirs{cache: into, log: log}
	for _, src := range from {
		if src.Directory == "" {
			continue
		}
		root, err := os.OpenRoot(base.path(src.Directory))
		if err != nil {
			dirs.close()
			return nil, fmt.Errorf("sources: directory %s: %w", src.Directory, err)
		}
		dirs.list = append(dirs.list, &sourceDir{src.Directory, root})
	}
	return dirs, nil
}

func (l *sourceDirs) close() {
	for _, d := range l.list {
		_ = d.root.Close() // only read
	}
}

// layoutNames returns the paths of a blob in an OCI image layout.
func layoutNames(d digest.Digest) []string {
	return []string{path.Join("blobs", d.Algorithm().String(), d.Encoded())}
}

// fileNames returns possible paths in a directory for the file at an address. A last name alone has neither version nor
// platform, so it counts only if a digest decides.
func fileNames(address string, want digest.Digest) []string {
	u, err := url.Parse(address)
	if err != nil {
		return nil
	}
	below := strings.TrimPrefix(path.Clean("/"+u.Path), "/")
	names := []string{path.Join(strings.ReplaceAll(u.Host, ":", "_"), below), below}
	if want != "" {
		names = append(names, path.Base(below))
		names = append(names, layoutNames(want)...)
	}
	return slices.Compact(names)
}

// find brings a file from a directory that has it; one of unknown digest must be there under its whole path.
func (l *sourceDirs) find(ctx context.Context, d *download) (ocispec.Descriptor, bool, error) {
	for _, dir := range l.list {
		for _, name := range d.names {
			desc, ok, err := l.take(ctx, dir, name, d)
			switch {
			case errors.Is(err, errMismatch):
				l.log.InfoContext(ctx, "a file in a directory of sources has other content", "directory", dir.name,
					"file", name, "error", err)
				continue
			case ok && d.want == "":
				l.log.WarnContext(ctx, "a file comes from a directory, without a published checksum", "file", name,
					"directory", dir.name, "for", d.name)
			}
			if err != nil || ok {
				return desc, ok, err
			}
		}
	}
	return ocispec.Descriptor{}, false, nil
}

// have reports whether a directory has a file under one of a download's names.
func (l *sourceDirs) have(d *download) bool {
	return slices.ContainsFunc(l.list, func(dir *sourceDir) bool {
		return slices.ContainsFunc(d.names, func(name string) bool {
			info, err := dir.root.Stat(name)
			return err == nil && info.Mode().IsRegular()
		})
	})
}

// take stores a file of a directory, if it exists and matches.
func (l *sourceDirs) take(ctx context.Context, dir *sourceDir, name string,
	d *download,
) (desc ocispec.Descriptor, ok bool, err error) {
	f, err := dir.root.Open(name)
	if err != nil {
		return desc, false, nil //nolint:nilerr // it is not there, or not for us
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || d.size >= 0 && info.Size() != d.size {
		return desc, false, nil //nolint:nilerr // it is something else
	}
	key := "directory " + dir.root.Name() + "/" + name
	desc, err = once(&l.cache.flights, key+" "+d.want.String(), func() (ocispec.Descriptor, error) {
		if !d.planned {
			l.cache.count(info.Size(), 0, 0)
		}
		desc, err := l.cache.copyIn(ctx, key, d.want, func(w io.Writer) error {
			_, err := io.Copy(w, stopping(ctx, f))
			return err
		})
		if err != nil && !d.planned {
			l.cache.count(-info.Size(), 0, 0)
		}
		return desc, err
	})
	var store *storeError
	switch {
	case err == nil:
		return desc, true, nil
	case errors.Is(err, errMismatch), errors.As(err, &store), context.Cause(ctx) != nil:
		return desc, false, err
	}
	l.log.WarnContext(ctx, "a file in a directory of sources cannot be read", "directory", dir.name, "file", name,
		"error", err)
	return desc, false, nil
}

// blob reads a small blob from a directory, and stores it.
func (l *sourceDirs) blob(ctx context.Context, want digest.Digest, limit int64) (data []byte, ok bool, err error) {
	for _, dir := range l.list {
		for _, name := range layoutNames(want) {
			f, err := dir.root.Open(name)
			if err != nil {
				continue
			}
			data, err = io.ReadAll(io.LimitReader(f, limit+1))
			if err := errors.Join(err, f.Close()); err != nil || sha256Of(data) != want {
				continue // damaged; upstream has it too
			}
			return data, true, l.cache.put(ctx, data, want)
		}
	}
	return nil, false, nil
}
