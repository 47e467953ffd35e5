package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
	"github.com/kkbundle/kkbundle/manifest"
)

// Keeper returns a function that reports whether the lock files or bundles use a blob. An unreadable file is an
// error: its blobs would be removed. open opens a bundle.
func Keeper(ctx context.Context, dir cache.Dir, files []string,
	open func(path string) (*bundle.Reader, error),
) (func(digest.Digest) bool, error) {
	kept := map[digest.Digest]bool{}
	var roots []digest.Digest
	var errs []error
	for _, file := range files {
		err := func() error {
			isBundle, err := hasBundleMagic(file)
			if err != nil {
				return err
			}
			if isBundle {
				return keepBundle(file, open, kept)
			}
			data, err := ReadLock(file)
			if err != nil {
				return err
			}
			l, err := manifest.ParseLock(file, data)
			if err != nil {
				return err
			}
			for _, pin := range l.Items {
				roots = append(roots, pin.Digest)
				if pin.Provenance != "" {
					roots = append(roots, pin.Provenance)
				}
			}
			return nil
		}()
		if err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	used, err := bundle.Uses(ctx, dir, roots)
	return func(d digest.Digest) bool { return kept[d] || used[d] }, err
}

// hasBundleMagic reports whether a file begins with a zstd frame, as bundles do, or as an age file, as encrypted
// bundles do.
func hasBundleMagic(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, &InputError{Err: fmt.Errorf("--keep: %w", err)}
	}
	defer f.Close()
	magic := make([]byte, 4)
	if _, err := io.ReadFull(f, magic); err != nil {
		return false, &InputError{Err: fmt.Errorf("--keep %s: neither a lock file nor a bundle", file)}
	}
	zstd := []byte{0x28, 0xb5, 0x2f, 0xfd} // RFC 8878, 3.1.1
	return bytes.Equal(magic, zstd) || string(magic) == "age-", nil
}

func keepBundle(file string, open func(path string) (*bundle.Reader, error), kept map[digest.Digest]bool) error {
	r, err := open(file)
	if err != nil {
		return err
	}
	for _, b := range r.Blobs() {
		kept[b.Digest] = true
	}
	return r.Close()
}
