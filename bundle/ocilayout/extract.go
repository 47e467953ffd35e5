// Package ocilayout writes items of a bundle as OCI image layouts, in directories and in archives that container
// runtimes load.
package ocilayout

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/format"
)

// Extract writes an OCI image layout into dir: the whole bundle or, with items, only those and the blobs they
// need. It creates the directory if needed and refuses one with an index.json. Every blob is checked. index.json is
// written last, so an interrupted layout is recognizable; calling Extract again continues it.
func Extract(ctx context.Context, r *bundle.Reader, dir string, items []bundle.Item) (err error) {
	x := r.Index()
	if len(items) > 0 {
		x.Items = items
	}
	index, err := x.Marshal()
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	blobs, err := r.Needed(ctx, x.Items)
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if _, err := root.Lstat(format.IndexName); err == nil {
		return fmt.Errorf("extract: %s already holds a layout: remove it or name another directory", dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("extract: %w", err)
	}
	if err := (&extraction{root: root, copyBlob: copyBlob(r)}).write(ctx, blobs, index); err != nil {
		return fmt.Errorf("extract into %s: %w", dir, err)
	}
	return nil
}

// An extraction writes an image layout into a directory.
type extraction struct {
	root     *os.Root
	copyBlob func(context.Context, io.Writer, ocispec.Descriptor) error
}

// write writes the blobs first, several at a time, and the index last.
func (x *extraction) write(ctx context.Context, blobs []ocispec.Descriptor, index []byte) error {
	root := x.root
	if err := root.MkdirAll("blobs/sha256", 0o755); err != nil {
		return err
	}
	err := atOnce(ctx, blobs, func(ctx context.Context, b ocispec.Descriptor) error {
		if err := x.blob(ctx, b); err != nil {
			return fmt.Errorf("blob %s: %w", b.Digest, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := syncRooted(root, "blobs/sha256"); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{format.LayoutName, []byte(format.LayoutContent)}, {format.IndexName, index}} {
		write := func(w io.Writer) error { _, err := w.Write(f.data); return err }
		if err := writeRooted(root, f.name, write); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return syncRooted(root, ".")
}

// atOnce calls f for every blob, several at a time, until one fails.
func atOnce(ctx context.Context, blobs []ocispec.Descriptor, f func(context.Context, ocispec.Descriptor) error) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(bundle.ReadJobs())
	for _, b := range blobs {
		if groupCtx.Err() != nil {
			break
		}
		group.Go(func() error { return f(groupCtx, b) })
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

// syncRooted makes renames in a directory durable.
func syncRooted(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (x *extraction) blob(ctx context.Context, b ocispec.Descriptor) error {
	name := format.BlobPrefix + b.Digest.Encoded()
	if have, err := hashFile(x.root, name, b.Size); err != nil || have == b.Digest {
		return err
	}
	return writeRooted(x.root, name, func(w io.Writer) error { return x.copyBlob(ctx, w, b) })
}

// copyBlob returns a function that writes a whole blob, checked.
func copyBlob(r *bundle.Reader) func(context.Context, io.Writer, ocispec.Descriptor) error {
	return func(ctx context.Context, w io.Writer, b ocispec.Descriptor) error {
		rc, err := r.Blob(ctx, b.Digest, 0)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, rc)
		return errors.Join(err, rc.Close())
	}
}

// hashFile returns the digest of a regular file of that size left by an earlier, interrupted run; else none.
func hashFile(root *os.Root, name string, size int64) (d digest.Digest, err error) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() != size {
		return "", err
	}
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return digest.NewDigest(digest.SHA256, h), nil
}

// writeRooted writes a file whole or not at all.
func writeRooted(root *os.Root, name string, write func(io.Writer) error) error {
	temp := name + ".part" // a fixed name, so that the next run replaces a killed run's file
	if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temp))
	}
	return nil
}
