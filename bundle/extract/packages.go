package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// packagePath is where a tree has a package of an operating system: each distribution's are in one directory.
func packagePath(it bundle.Item) (string, bool) {
	if it.Kind != bundle.KindFile || !manifest.IsPackageRef(it.Ref) {
		return "", false
	}
	parts := strings.Split(it.Ref, "/")
	for i, p := range parts {
		parts[i] = treeName(p)
	}
	return path.Join(parts...), true
}

// repositories makes repositories for apt and dnf of the directories that have packages.
func (e *extraction) repositories(ctx context.Context, items []bundle.Item) (err error) {
	files := map[string]map[string]bool{} // by directory
	for _, it := range items {
		if p, ok := packagePath(it); ok {
			dir, name := path.Split(p)
			if files[dir] == nil {
				files[dir] = map[string]bool{}
			}
			files[dir][name] = true
		}
	}
	if len(files) == 0 {
		return nil
	}
	s, err := serve.New(ctx, serve.Options{Bundles: []string{e.bundle}, Logger: e.logger(), Open: e.openBundle})
	if err != nil {
		return err
	}
	defer s.Close()
	root, err := os.OpenRoot(e.output)
	if err != nil {
		return fmt.Errorf("extract: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		lists, err := s.Repository(ctx, dir, func(file string) bool { return files[dir][file] })
		if err != nil {
			return fmt.Errorf("extract %s: %w", dir, err)
		}
		for _, name := range slices.Sorted(maps.Keys(lists)) {
			if err := writeInto(ctx, root, dir+name, bundle.Item{}, plainWrite(lists[name])); err != nil {
				return fmt.Errorf("extract %s: %w", dir+name, err)
			}
		}
	}
	return nil
}

// plainWrite writes what is no item.
func plainWrite(content io.WriterTo) treeWrite {
	return func(_ context.Context, _ bundle.Item, create func(fs.FileMode) (io.Writer, error)) error {
		w, err := create(0o644)
		if err == nil {
			_, err = content.WriteTo(w)
		}
		return err
	}
}
