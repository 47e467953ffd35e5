package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

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
			err := writeFile(root, in+name, 0o644, func(w io.Writer) error { _, err := lists[name].WriteTo(w); return err })
			if err != nil {
				return fmt.Errorf("extract %s: %w", in+name, err)
			}
		}
	}
	return nil
}
