package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A shelf is a directory of the manifest with what is there already: files by name, and blobs as an OCI image layout has
// them. What is on it is looked at before anybody is asked, and taken if its digest is right. Nothing outside of the directory
// is read, wherever links lead.
type shelf struct {
	name string // as the manifest has it
	root *os.Root
}

func (d *shelf) close() { _ = d.root.Close() } // only read

func (s *session) openShelves() ([]*shelf, error) {
	var list []*shelf
	for _, src := range s.opts.Sources {
		if src.Directory == "" {
			continue
		}
		root, err := os.OpenRoot(s.path(src.Directory))
		if err != nil {
			for _, d := range list {
				d.close()
			}
			return nil, fmt.Errorf("sources: directory %s: %w", src.Directory, err)
		}
		list = append(list, &shelf{src.Directory, root})
	}
	return list, nil
}

// layoutNames is where an OCI image layout has a blob.
func layoutNames(d digest.Digest) []string {
	return []string{path.Join("blobs", d.Algorithm().String(), d.Encoded())}
}

// fileNames is where a directory may have what is at an address. A last name alone says neither version nor platform, so
// it counts only where the digest decides.
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

// fromShelf brings a blob whose digest is known out of a directory that has it.
func (s *session) fromShelf(ctx context.Context, d *download) (size int64, ok bool, err error) {
	for _, dir := range s.shelves {
		for _, name := range d.names {
			desc, ok, err := s.take(ctx, dir, name, d)
			if errors.Is(err, errMismatch) {
				s.log.InfoContext(ctx, "a file in a directory of sources is another", "directory", dir.name, "file", name, "error", err)
				continue
			}
			if err != nil || ok {
				return desc.Size, ok, err
			}
		}
	}
	return 0, false, nil
}

// unpinnedFromShelf brings a file whose digest nobody knows out of a directory that has it under its whole path.
func (s *session) unpinnedFromShelf(ctx context.Context, d *download) (ocispec.Descriptor, bool, error) {
	for _, dir := range s.shelves {
		for _, name := range d.names {
			desc, ok, err := s.take(ctx, dir, name, d)
			if ok {
				s.log.WarnContext(ctx, "a file was taken from a directory, and nobody publishes its checksum", "file", name, "directory", dir.name, "for", d.name)
			}
			if err != nil || ok {
				return desc, ok, err
			}
		}
	}
	return ocispec.Descriptor{}, false, nil
}

// take puts a file of a directory into the store, if it is there and fits.
func (s *session) take(ctx context.Context, dir *shelf, name string, d *download) (desc ocispec.Descriptor, ok bool, err error) {
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
	desc, err = once(s, key+" "+d.want.String(), func() (ocispec.Descriptor, error) {
		if !d.planned {
			s.count(info.Size(), 0, 0)
		}
		desc, err := s.copyIn(ctx, key, d.want, func(w io.Writer) error {
			_, err := io.Copy(w, readerFunc(func(p []byte) (int, error) {
				if ctx.Err() != nil {
					return 0, context.Cause(ctx)
				}
				return f.Read(p)
			}))
			return err
		})
		if err != nil && !d.planned {
			s.count(-info.Size(), 0, 0)
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
	s.log.WarnContext(ctx, "a file in a directory of sources cannot be read", "directory", dir.name, "file", name, "error", err)
	return desc, false, nil
}

// onShelf reads a small blob that a directory has, and puts it into the store.
func (s *session) onShelf(ctx context.Context, want digest.Digest, limit int64) (data []byte, ok bool, err error) {
	for _, dir := range s.shelves {
		for _, name := range layoutNames(want) {
			f, err := dir.root.Open(name)
			if err != nil {
				continue
			}
			data, err = io.ReadAll(io.LimitReader(f, limit+1))
			if err := errors.Join(err, f.Close()); err != nil || sha256Of(data) != want {
				continue // damaged; upstream has it too
			}
			return data, true, s.put(ctx, data, want)
		}
	}
	return nil, false, nil
}
