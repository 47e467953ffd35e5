package extract

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sync/errgroup"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/ocilayout"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// Directories of a tree.
const (
	treeFiles     = "files"
	treeCharts    = "charts"
	treeDocuments = "documents"
	treeImages    = "images"
)

// Tree writes files, charts and documents as files below dir, Git repositories as bare repositories, and images with
// their referrers as one OCI layout.
func Tree(ctx context.Context, r *bundle.Reader, dir string, items []bundle.Item) error {
	var files, images []bundle.Item
	for _, it := range items {
		if it.Kind == bundle.KindImage || it.Kind == bundle.KindReferrer {
			images = append(images, it)
		} else {
			files = append(files, it)
		}
	}
	if err := Files(ctx, r, dir, files); err != nil || len(images) == 0 {
		return err
	}
	return ocilayout.Extract(ctx, r, filepath.Join(dir, treeImages), images)
}

// Files writes each item to a file below dir, several at a time, images as archives for docker load. A file is
// written whole or not at all, and never outside dir: names in a bundle are not trusted.
func Files(ctx context.Context, r *bundle.Reader, dir string, items []bundle.Item) (err error) {
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	paths, same := treePaths(items), map[string][]int{} // items of equal content may have one path
	for i, name := range paths {
		same[strings.ToLower(name)] = append(same[strings.ToLower(name)], i)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(bundle.ReadJobs())
	for _, key := range slices.Sorted(maps.Keys(same)) {
		if groupCtx.Err() != nil {
			break
		}
		group.Go(func() error {
			for _, i := range same[key] {
				if err := writeItem(groupCtx, r, root, paths[i], items[i]); err != nil {
					return fmt.Errorf("extract %s to %s: %w", items[i], filepath.Join(dir, paths[i]), err)
				}
			}
			return nil
		})
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

func openRoot(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("extract: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("extract: %w", err)
	}
	return root, nil
}

func writeItem(ctx context.Context, r *bundle.Reader, root *os.Root, name string, it bundle.Item) error {
	if it.Kind == bundle.KindImage {
		return writeFile(root, name, 0o644, func(w io.Writer) error { return ocilayout.DockerArchive(ctx, w, r, it) })
	}
	if it.Kind == bundle.KindGit {
		return writeGit(ctx, r, root, name, it)
	}
	layer, err := r.ContentOf(ctx, it)
	if err != nil {
		return err
	}
	return writeFile(root, name, FileMode(layer), func(w io.Writer) error {
		rc, err := r.Blob(ctx, layer.Digest, 0)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, rc)
		return errors.Join(err, rc.Close())
	})
}

func writeFile(root *os.Root, name string, mode fs.FileMode, write func(io.Writer) error) error {
	dir, base := path.Split(name)
	temp := dir + "." + base + ".part" // a constant name: the next run replaces the file of a killed run
	if err := root.MkdirAll(path.Clean(dir), 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return errors.New("a file that is not regular is in the way: remove it")
	}
	if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = f.Chmod(mode); err == nil {
		err = write(f)
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

// treePaths returns the path of each item: kind, platform and name. If two paths are equal on a case-insensitive file
// system, it appends their versions, then their digests.
func treePaths(items []bundle.Item) []string {
	paths := make([]string, len(items))
	for i, it := range items {
		paths[i] = treePath(it, "")
	}
	for _, more := range []func(bundle.Item) string{
		func(it bundle.Item) string { return "-" + PlainName(it.Version) },
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
	dir, name := treeDocuments, PlainName(it.Ref)
	if p, ok := packagePath(it); ok {
		return p
	}
	if hook, ok := strings.CutPrefix(it.Ref, bundle.DocumentHooks); ok && it.Kind == bundle.KindManifest {
		// with its directory, which is a group of hosts
		group := path.Dir(path.Clean("/" + hook))
		return path.Join(dir, path.Clean("/"+bundle.DocumentHooks), PlainName(group), PlainName(hook)+suffix)
	}
	switch it.Kind {
	case bundle.KindFile, bundle.KindTool:
		dir, name = treeFiles, PlainName(it.Name)
		if p := bundle.PlatformString(it.Descriptor.Platform); p != "" {
			dir = path.Join(dir, PlainName(strings.ReplaceAll(p, "/", "-")))
		}
	case bundle.KindChart:
		return path.Join(treeCharts, PlainName(it.Name+"-"+it.Version)+suffix+".tgz")
	case bundle.KindGit:
		return path.Join(treeGit, PlainName(it.Name)+suffix+".git")
	case bundle.KindImage:
		return path.Join(treeImages, imageFileName(it.Ref)+suffix+".tar")
	}
	return path.Join(dir, name+suffix)
}

// imageFileName returns a reference without its digest as a file name.
func imageFileName(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	return PlainName(strings.NewReplacer("/", "_", ":", "-").Replace(name))
}

// PlainName returns text as a file name that is safe on every file system. Text from a bundle is not trusted.
func PlainName(text string) string {
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
	const longest = 200 // bytes; file systems allow 255
	return strings.ToValidUTF8(name[:min(len(name), longest)], "")
}

// packagePath returns the path of an operating system package in a tree: one directory for each distribution.
func packagePath(it bundle.Item) (string, bool) {
	if it.Kind != bundle.KindFile || !manifest.IsPackageRef(it.Ref) {
		return "", false
	}
	parts := strings.Split(it.Ref, "/")
	for i, p := range parts {
		parts[i] = PlainName(p)
	}
	return path.Join(parts...), true
}

// HasPackages reports whether any of the items is an operating system package.
func HasPackages(items []bundle.Item) bool {
	return slices.ContainsFunc(items, func(it bundle.Item) bool { _, ok := packagePath(it); return ok })
}

// Repositories makes repositories for apt and dnf of the packages that Tree wrote below dir. s serves the same bundle.
func Repositories(ctx context.Context, s *serve.Server, dir string, items []bundle.Item) (err error) {
	files := map[string]map[string]bool{} // by directory
	for _, it := range items {
		if p, ok := packagePath(it); ok {
			in, name := path.Split(p)
			if files[in] == nil {
				files[in] = map[string]bool{}
			}
			files[in][name] = true
		}
	}
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, in := range slices.Sorted(maps.Keys(files)) {
		lists, err := s.Repository(ctx, in, func(file string) bool { return files[in][file] })
		if err != nil {
			return fmt.Errorf("extract %s: %w", in, err)
		}
		for _, name := range slices.Sorted(maps.Keys(lists)) {
			err := writeFile(root, in+name, 0o644,
				func(w io.Writer) error { _, err := lists[name].WriteTo(w); return err })
			if err != nil {
				return fmt.Errorf("extract %s: %w", in+name, err)
			}
		}
	}
	return nil
}
