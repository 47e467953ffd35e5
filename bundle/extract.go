package bundle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// ContentOf returns the descriptor of the content of a file or chart item: the one layer of a file, the archive of a
// chart. r.Blob of its digest returns the bytes. Its annotations include AnnotationMode if the artifact has one.
func (c *Catalog) ContentOf(ctx context.Context, it Item) (ocispec.Descriptor, error) {
	fail := func(err error) (ocispec.Descriptor, error) {
		return ocispec.Descriptor{}, fmt.Errorf("content of %s: %w", it, err)
	}
	if it.Kind == KindImage || classOf(it.Descriptor.MediaType) != classManifest {
		return fail(errors.New("only items stored as one artifact have a single content"))
	}
	data, err := c.ReadBlob(ctx, it.Descriptor.Digest, maxManifest)
	if err != nil {
		return fail(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fail(err)
	}
	layers := m.Layers
	if it.Kind == KindChart { // a chart may have its provenance beside the archive
		layers = slices.DeleteFunc(slices.Clone(layers), func(d ocispec.Descriptor) bool { return d.MediaType != MediaTypeChartContent })
	}
	if len(layers) != 1 {
		return fail(fmt.Errorf("the artifact has %d layers with content instead of one", len(layers)))
	}
	layer := layers[0]
	s, err := format.ParseDigest(layer.Digest)
	if err != nil {
		return fail(err)
	}
	if size, ok, err := c.blobs.lookup(ctx, s); err != nil || !ok || size != layer.Size {
		return fail(&DamageError{Blob: layer.Digest, Offset: -1, Reason: "the content is missing, or its size differs from the manifest", Err: err})
	}
	if mode, ok := m.Annotations[AnnotationMode]; ok && layer.Annotations[AnnotationMode] == "" {
		layer.Annotations = maps.Clone(layer.Annotations)
		if layer.Annotations == nil {
			layer.Annotations = make(map[string]string)
		}
		layer.Annotations[AnnotationMode] = mode
	}
	return layer, nil
}

// ExtractLayout writes an OCI image layout into dir: the whole bundle or, with items, only those and the blobs they
// need. It creates the directory if needed and refuses one with an index.json. Every blob is checked. index.json is
// written last, so an interrupted layout is recognizable; calling ExtractLayout again continues it.
func ExtractLayout(ctx context.Context, r *Reader, dir string, items []Item) (err error) {
	x := r.index
	if len(items) > 0 {
		x.Items = items
	}
	index, err := x.Marshal()
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	blobs, err := r.needed(ctx, x.Items)
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
	if err := (&extraction{root: root, copyBlob: r.copyBlob}).write(ctx, blobs, index); err != nil {
		return fmt.Errorf("extract into %s: %w", dir, err)
	}
	return nil
}

// An extraction writes an image layout into a directory.
type extraction struct {
	root     *os.Root
	copyBlob func(context.Context, io.Writer, format.Blob) error
}

// write writes the blobs first, several at a time, and the index last.
func (x *extraction) write(ctx context.Context, blobs []format.Blob, index []byte) error {
	root := x.root
	if err := root.MkdirAll("blobs/sha256", 0o755); err != nil {
		return err
	}
	err := atOnce(ctx, blobs, func(ctx context.Context, b format.Blob) error {
		if err := x.blob(ctx, b); err != nil {
			return fmt.Errorf("blob %s: %w", b.Sum.Digest(), err)
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

// ReadJobs is the number of blobs to read from a bundle at a time. Each takes the memory of a frame and its content.
func ReadJobs() int { return min(runtime.GOMAXPROCS(0), 8) }

// atOnce calls f for every blob, several at a time, until one fails.
func atOnce(ctx context.Context, blobs []format.Blob, f func(context.Context, format.Blob) error) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(ReadJobs())
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

// needed returns every blob that the items need. It fails if one is missing.
func (r *Reader) needed(ctx context.Context, items []Item) ([]format.Blob, error) {
	w := &walk{src: r, report: func(_ format.Sum, _ Item, err error) error { return err }}
	if err := w.run(ctx, items); err != nil {
		return nil, err
	}
	blobs := w.order()
	for i := range blobs {
		blobs[i], _ = r.find(blobs[i].Sum)
	}
	return blobs, nil
}

func (x *extraction) blob(ctx context.Context, b format.Blob) error {
	name := format.BlobPrefix + b.Sum.Hex()
	if have, err := hashFile(x.root, name, b.Size); err != nil || have == b.Sum {
		return err
	}
	return writeRooted(x.root, name, func(w io.Writer) error { return x.copyBlob(ctx, w, b) })
}

// copyBlob writes a whole blob, checked.
func (r *Reader) copyBlob(ctx context.Context, w io.Writer, b format.Blob) error {
	rc := r.stream(ctx, b, 0, true)
	_, err := io.Copy(w, rc)
	return errors.Join(err, rc.Close())
}

// hashFile returns the digest of a regular file of that size left by an earlier, interrupted run; else none.
func hashFile(root *os.Root, name string, size int64) (s format.Sum, err error) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return format.Sum{}, nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() != size {
		return format.Sum{}, err
	}
	f, err := root.Open(name)
	if err != nil {
		return format.Sum{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return format.Sum{}, err
	}
	return format.Sum(h.Sum(nil)), nil
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
