package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/plain"
)

// Directories of a tree.
const (
	treeFiles     = "files"
	treeCharts    = "charts"
	treeDocuments = "documents"
	treeImages    = "images"
)

// several extracts everything, or what --item names.
func (e *extraction) several(ctx context.Context) error {
	items, err := e.chosen(ctx)
	if err != nil {
		return err
	}
	format := e.format
	if format == "" {
		format = formatOCI
		if len(e.items) > 0 {
			format = formatTree
		}
	}
	switch format {
	case formatOCIArchive:
		x := e.r.Index()
		name := strings.TrimSuffix(bundle.FileName(x.Name, x.Version), ".kkb")
		return e.archive(treeName(name)+".tar", len(items), func(w io.Writer) error { return e.r.WriteOCIArchive(ctx, w, items) })
	case formatTree:
		return e.tree(ctx, items)
	}
	return e.layout(ctx, items)
}

// chosen returns the items that --item and --platform choose.
func (e *extraction) chosen(ctx context.Context) ([]bundle.Item, error) {
	all := e.r.Index().Items
	items := all
	if len(e.items) > 0 {
		items = nil
		var errs []error
		for _, pattern := range e.items {
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
	}
	if len(e.wanted) == 0 {
		return items, nil
	}
	var narrow []bundle.Item
	for _, it := range items {
		one, left, err := e.r.Narrow(ctx, it, e.wanted.Has)
		if err != nil {
			return nil, err
		}
		if left {
			narrow = append(narrow, one)
		}
	}
	if len(narrow) == 0 {
		return nil, fmt.Errorf("nothing of it is there for %s", e.wanted)
	}
	return narrow, nil
}

// tree writes files, charts and documents as files, and images and what belongs to them as one layout.
func (e *extraction) tree(ctx context.Context, items []bundle.Item) error {
	if e.output == "-" {
		return &usageError{errors.New("a tree is a directory and cannot go to standard output: name one with -o")}
	}
	var files, images []bundle.Item
	for _, it := range items {
		if it.Kind == bundle.KindImage || it.Kind == bundle.KindReferrer {
			images = append(images, it)
		} else {
			files = append(files, it)
		}
	}
	if err := e.writeTree(ctx, files, e.writeContent); err != nil {
		return err
	}
	if err := e.repositories(ctx, files); err != nil {
		return err
	}
	if len(images) > 0 {
		if err := bundle.ExtractLayout(ctx, e.r, filepath.Join(e.output, treeImages), images); err != nil {
			return err
		}
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: len(items)}, "%s", plain.Count(len(items), "item"))
}

// A treeWrite writes what a tree has of an item, and returns the mode of its file.
type treeWrite func(ctx context.Context, it bundle.Item, create func(fs.FileMode) (io.Writer, error)) error

// writeTree writes a file for each item, each whole or not at all, and none outside the output directory, whatever the
// items are called.
func (e *extraction) writeTree(ctx context.Context, items []bundle.Item, write treeWrite) (err error) {
	if err := os.MkdirAll(e.output, 0o755); err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	root, err := os.OpenRoot(e.output)
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for i, name := range treePaths(items) {
		if err := writeInto(ctx, root, name, items[i], write); err != nil {
			return fmt.Errorf("extract %s to %s: %w", items[i], filepath.Join(e.output, name), err)
		}
	}
	return nil
}

func writeInto(ctx context.Context, root *os.Root, name string, it bundle.Item, write treeWrite) error {
	dir, base := path.Split(name)
	temp := dir + "." + base + ".part" // the same each time: a killed run's goes with the next
	if err := root.MkdirAll(path.Clean(dir), 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return errors.New("what is there is not a regular file: remove it")
	}
	if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var f *os.File
	err := write(ctx, it, func(mode fs.FileMode) (w io.Writer, err error) {
		f, err = root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			err = f.Chmod(mode)
		}
		return f, err
	})
	if f == nil {
		return err
	}
	if err == nil {
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

// writeContent writes the one content of a file, chart or document.
func (e *extraction) writeContent(ctx context.Context, it bundle.Item, create func(fs.FileMode) (io.Writer, error)) error {
	layer, err := e.r.ContentOf(ctx, it)
	if err != nil {
		return err
	}
	w, err := create(fileMode(layer))
	if err != nil {
		return err
	}
	rc, err := e.r.Blob(ctx, layer.Digest, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, rc)
	return errors.Join(err, rc.Close())
}

// treePaths returns where each item goes: kind, platform and name. Where two would be one file, and be it on a disk that
// takes upper for lower case, their versions or digests tell them apart.
func treePaths(items []bundle.Item) []string {
	paths := make([]string, len(items))
	for i, it := range items {
		paths[i] = treePath(it, "")
	}
	for _, more := range []func(bundle.Item) string{
		func(it bundle.Item) string { return "-" + treeName(it.Version) },
		func(it bundle.Item) string { return "-" + it.Descriptor.Digest.Encoded()[:12] },
	} {
		taken := map[string]int{}
		for _, p := range paths {
			taken[strings.ToLower(p)]++
		}
		for i, it := range items {
			if taken[strings.ToLower(paths[i])] > 1 {
				paths[i] = treePath(it, more(it))
			}
		}
	}
	return paths
}

func treePath(it bundle.Item, suffix string) string {
	dir, name := treeDocuments, treeName(it.Ref)
	if p, ok := packagePath(it); ok {
		return p
	}
	switch it.Kind {
	case bundle.KindFile, bundle.KindTool:
		dir, name = treeFiles, treeName(it.Name)
		if p := bundle.PlatformString(it.Descriptor.Platform); p != "" {
			dir = path.Join(dir, treeName(strings.ReplaceAll(p, "/", "-")))
		}
	case bundle.KindChart:
		return path.Join(treeCharts, treeName(it.Name+"-"+it.Version)+suffix+".tgz")
	case bundle.KindImage:
		return path.Join(treeImages, imageFileName(it.Ref)+suffix+".tar")
	}
	return path.Join(dir, name+suffix)
}

// imageFileName is a reference without a digest, as a file name.
func imageFileName(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	return treeName(strings.NewReplacer("/", "_", ":", "-").Replace(name))
}

// treeName makes a plain file name of text that is not trusted to be one.
func treeName(text string) string {
	name := path.Base(path.Clean("/" + text))
	name = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || strings.ContainsRune(`/\:*?"<>|`, r) {
			return '_'
		}
		return r
	}, name)
	if name = strings.TrimLeft(name, "."); name == "" || name == "_" {
		return "unnamed"
	}
	const longest = 200 // bytes, of the 255 that file systems take
	return strings.ToValidUTF8(name[:min(len(name), longest)], "")
}

// forHost extracts what one host needs: files, and images as archives for one platform.
func (e *extraction) forHost(ctx context.Context) (err error) {
	if e.output == "" || e.output == "-" {
		return &usageError{errors.New("name a directory with -o")}
	}
	s := &site{bundle: e.r, g: e.globals}
	inv, err := e.readInventory(e.inventory)
	if err != nil {
		return err
	}
	h, err := hostNamed(inv, e.host)
	if err != nil {
		return err
	}
	if err := s.readCluster(ctx, e.cluster); err != nil {
		return err
	}
	platform, err := e.hostPlatform()
	if err != nil {
		return err
	}
	items, err := e.needs(ctx, s.cluster, h.Roles, platform)
	if err != nil {
		return err
	}
	err = e.writeTree(ctx, items, func(ctx context.Context, it bundle.Item, create func(fs.FileMode) (io.Writer, error)) error {
		if it.Kind != bundle.KindImage {
			return e.writeContent(ctx, it, create)
		}
		w, err := create(0o644)
		if err != nil {
			return err
		}
		return e.r.WriteDockerArchive(ctx, w, it)
	})
	if err != nil {
		return err
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: len(items)}, "%s for %s (%s)", plain.Count(len(items), "item"), h.Name, platform)
}

// hostPlatform is what --platform says, or the bundle's only one.
func (e *extraction) hostPlatform() (string, error) {
	if len(e.wanted) > 0 {
		return e.wanted[0], nil
	}
	if p := e.r.Index().Platforms; len(p) == 1 {
		return p[0], nil
	}
	return "", &usageError{fmt.Errorf("say with --platform which one %s has: the bundle is for %s", e.host, strings.Join(e.r.Index().Platforms, ", "))}
}

// needs finds what hosts with these roles need. All that is missing is in the error.
func (e *extraction) needs(ctx context.Context, c *manifest.Cluster, roles []manifest.Role, platform string) ([]bundle.Item, error) {
	var items []bundle.Item
	var errs []error
	for _, need := range installer.NeedsOf(c, roles) {
		refs, err := catalog.Refs(c, need, platform)
		errs = append(errs, err)
		for _, ref := range refs {
			it, err := e.needed(ctx, need, ref, platform)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			items = append(items, it)
		}
	}
	return items, errors.Join(errs...)
}

// needed finds one item, for one platform of an image.
func (e *extraction) needed(ctx context.Context, need manifest.Need, ref, platform string) (bundle.Item, error) {
	it, ok := e.r.Find(need.Kind, ref, platform)
	if !ok {
		return bundle.Item{}, &task.MissingError{Kind: need.Kind, Name: need.Name, Ref: ref, Platform: platform}
	}
	if it.Kind == bundle.KindImage {
		return e.r.ForPlatform(ctx, it, transfer.Platforms{platform}.Has)
	}
	return it, nil
}

func hostNamed(inv *manifest.Inventory, name string) (manifest.Host, error) {
	var names []string
	for _, h := range inv.Hosts() {
		if h.Name == name {
			return h, nil
		}
		names = append(names, h.Name)
	}
	return manifest.Host{}, &usageError{fmt.Errorf("--for %s: the inventory has %s", name, strings.Join(names, ", "))}
}
