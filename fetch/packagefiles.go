package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packagesets"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// networkFiles reads repositories on servers. Lists go through the store, so that they are fetched once.
type networkFiles struct{ web *webFiles }

// Get implements packages.Files.
func (n networkFiles) Get(ctx context.Context, address string, limit int64) ([]byte, error) {
	data, err := n.web.page(ctx, address, limit)
	return data, missing(err)
}

// missing marks the error for a file that a server does not have: object stores answer 403 for it.
func missing(err error) error {
	if upstream.Lacking(err, http.StatusNotFound, http.StatusGone, http.StatusForbidden) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// Open implements packages.Files.
func (n networkFiles) Open(ctx context.Context, address string, size int64, sum packages.Sum) (io.ReadCloser, error) {
	var stored digest.Digest
	var err error
	if sha256, ok := sum.SHA256(); ok {
		stored, err = n.bring(ctx, address, size, digest.NewDigestFromEncoded(digest.SHA256, sha256))
	} else {
		stored, err = n.bringBySum(ctx, address, size, sum)
	}
	if errors.Is(err, upstream.ErrMismatch) {
		err = fmt.Errorf("%w: the mirror is being updated or is damaged; try again later, or use another mirror", err)
	}
	if err != nil {
		return nil, missing(err)
	}
	return n.stored(ctx, stored)
}

// bring fetches a file into the store.
func (n networkFiles) bring(ctx context.Context, address string, size int64,
	want digest.Digest,
) (digest.Digest, error) {
	d, err := n.web.urlDownload(address, want, size)
	if err != nil {
		return "", err
	}
	return want, n.web.loader.Fetch(ctx, d)
}

// bringBySum fetches a file of which only a SHA512 is known.
func (n networkFiles) bringBySum(ctx context.Context, address string, size int64,
	sum packages.Sum,
) (digest.Digest, error) {
	d, err := n.web.urlDownload(address, "", size)
	if err != nil {
		return "", err
	}
	d.Remember = n.web.loader.Records != nil
	desc, err := upstream.Once(&n.web.loader.Cache.Flights, "file "+address, func() (ocispec.Descriptor, error) {
		if desc, ok, err := n.web.loader.Dirs.Find(ctx, d); err != nil || ok {
			return desc, err
		}
		return d.Run(ctx)
	})
	if err != nil {
		return "", err
	}
	rc, err := n.stored(ctx, desc.Digest)
	if err != nil {
		return "", err
	}
	err = errors.Join(sum.Check(upstream.Stopping(ctx, rc)), rc.Close())
	if errors.Is(err, packages.ErrSum) {
		err = fmt.Errorf("%s: %w: %w", address, upstream.ErrMismatch, err)
	}
	return desc.Digest, err
}

func (n networkFiles) stored(ctx context.Context, d digest.Digest) (io.ReadCloser, error) {
	rc, err := n.web.loader.Cache.Store.Open(ctx, d)
	if err != nil {
		return nil, &upstream.StoreError{Cause: err}
	}
	return rc, nil
}

// packageFetch copies a pinned package out of a disk image.
func (l *localFiles) packageFetch(pin manifest.Pin, image, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := upstream.Once(&l.cache.Flights, "image "+image+"/"+name, func() (ocispec.Descriptor, error) {
			d, err := packagesets.OpenImage(ctx, l.dir, image, "")
			if err != nil {
				return ocispec.Descriptor{}, err
			}
			defer d.Close()
			f, err := d.Image.Open(name)
			if err != nil {
				return ocispec.Descriptor{}, fmt.Errorf("%s: %w", image, err)
			}
			desc, err := l.cache.CopyIn(ctx, "image "+image+"/"+name, pin.Digest, func(w io.Writer) error {
				_, err := io.Copy(w, upstream.Stopping(ctx, f))
				return err
			})
			if errors.Is(err, upstream.ErrMismatch) {
				err = fmt.Errorf("%s: %s: %w; the image changed since the lock was written: write a new lock with kkbundle lock", image, name, err)
			}
			return desc, err
		})
		return err
	}
}
