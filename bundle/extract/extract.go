// Package extract takes items out of a bundle: one blob or range, a tree of files, repositories of operating system
// packages.
package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/bundle/transfer"
)

// Find returns the item with this reference or short name. An error lists the candidates.
func Find(items []bundle.Item, name string, wanted transfer.Platforms) (bundle.Item, error) {
	all := transfer.Matching(items, name)
	var found []bundle.Item
	for _, it := range all {
		if p := it.Descriptor.Platform; p == nil || wanted.Has(bundle.PlatformString(p)) {
			found = append(found, it)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0 && len(all) > 0:
		return bundle.Item{}, fmt.Errorf("the bundle has no %s for %s; it has %s", name, wanted, listItems(all))
	case len(found) == 0:
		return bundle.Item{}, transfer.NewNoItemError(items, name)
	}
	return bundle.Item{}, fmt.Errorf("%q can be %s; give the reference or --platform", name, listItems(found))
}

func listItems(items []bundle.Item) string {
	var refs []string
	for _, it := range items {
		refs = append(refs, it.String())
	}
	slices.Sort(refs)
	return strings.Join(refs, " or ")
}

// Select returns the items of the groups that match a pattern, or all of them without patterns, reduced to the wanted
// platforms. Referrers go with their images.
func Select(ctx context.Context, r *bundle.Reader, of groups.Set, patterns []string,
	wanted transfer.Platforms,
) ([]bundle.Item, error) {
	all := of.Items(r.Index().Items)
	items := all
	if len(patterns) > 0 {
		items = nil
		var errs []error
		for _, pattern := range patterns {
			found := transfer.Matching(all, pattern)
			if len(found) == 0 {
				errs = append(errs, transfer.NewNoItemError(all, pattern))
			}
			items = append(items, found...)
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		slices.SortFunc(items, transfer.ByIndex)
		items = slices.CompactFunc(items, func(a, b bundle.Item) bool { return transfer.ByIndex(a, b) == 0 })
	} else if !of.All() {
		items = slices.DeleteFunc(items, func(it bundle.Item) bool { return it.Kind == bundle.KindReferrer })
		referrers, err := r.Referrers(ctx, items)
		if err != nil {
			return nil, err
		}
		items = append(items, referrers...)
	}
	if len(wanted) == 0 {
		return items, nil
	}
	var narrow []bundle.Item
	for _, it := range items {
		one, left, err := r.Narrow(ctx, it, wanted.Has)
		if err != nil {
			return nil, err
		}
		if left {
			narrow = append(narrow, one)
		}
	}
	if len(narrow) == 0 {
		return nil, fmt.Errorf("no selected item has platform %s", wanted)
	}
	return narrow, nil
}

// A Range is a part of a blob.
type Range struct {
	From, To  int64 // both included; To is -1 for the end of the blob
	Unchecked bool  // skip comparing the digest of the whole blob first
}

// Content returns a reader of a blob, or of a range of it, and the number of bytes. Before a range, it reads the
// whole blob, because a part cannot be compared with the digest.
func Content(ctx context.Context, r *bundle.Reader, d ocispec.Descriptor,
	part *Range,
) (_ io.ReadCloser, length int64, err error) {
	if part == nil {
		rc, err := r.Blob(ctx, d.Digest, 0)
		return rc, d.Size, err
	}
	if part.From >= d.Size {
		return nil, 0, fmt.Errorf("range from %d: %s has %d bytes", part.From, d.Digest, d.Size)
	}
	length = d.Size - part.From
	if part.To >= 0 {
		length = min(length, part.To-part.From+1)
	}
	if !part.Unchecked {
		if err := checkWhole(ctx, r, d.Digest); err != nil {
			return nil, 0, err
		}
	}
	rc, err := r.Blob(ctx, d.Digest, part.From)
	if err != nil || length == d.Size-part.From {
		return rc, length, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(rc, length), rc}, length, nil
}

func checkWhole(ctx context.Context, r *bundle.Reader, d digest.Digest) error {
	rc, err := r.Blob(ctx, d, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, rc)
	return errors.Join(err, rc.Close())
}

// FileName returns the name of a file or chart, without directories and not hidden: the names in a bundle are not
// trusted.
func FileName(item bundle.Item) string {
	name := PlainName(item.Name)
	if item.Kind == bundle.KindChart {
		name += "-" + PlainName(item.Version) + ".tgz"
	}
	return name
}

// FileMode returns the mode from the manifest, or 0644.
func FileMode(layer ocispec.Descriptor) fs.FileMode {
	mode, err := strconv.ParseUint(layer.Annotations[bundle.AnnotationMode], 8, 32)
	if err != nil {
		return 0o644
	}
	return fs.FileMode(mode) & fs.ModePerm
}
