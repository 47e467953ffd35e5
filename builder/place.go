package builder

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// placeItems adds the place in the manifest to the errors of items that it lists.
func (p *Project) placeItems(err error) {
	failed, ok := errors.AsType[*fetch.Errors](err)
	if !ok || p.text != nil { // nobody sees the lines of a manifest in memory
		return
	}
	for _, item := range failed.Failed {
		path := p.entryOf(item)
		if path == "" {
			continue
		}
		found, ok := errors.AsType[document.Problems](p.Manifest.Problem(path, ""))
		if ok && found[0].Line > 0 {
			item.Place = fmt.Sprintf("%s:%d", found[0].File, found[0].Line)
		}
	}
}

// entryOf returns the path of the entry of the manifest that an item is, "" if it lists none.
func (p *Project) entryOf(item *fetch.ItemError) string {
	list, at := "", -1
	switch item.Kind {
	case manifest.ItemImage:
		list, at = "images", slices.IndexFunc(p.Manifest.Images, func(i manifest.Image) bool {
			ref, err := i.Ref()
			return err == nil && (ref == item.Ref || i.Name == item.Ref)
		})
	case manifest.ItemChart:
		list, at = "charts", slices.IndexFunc(p.Manifest.Charts, func(c manifest.Chart) bool {
			if c.Path != "" {
				return c.Path == item.Ref
			}
			version := item.Ref[strings.LastIndexByte(item.Ref, ':')+1:]
			return manifest.ChartRef(c, c.Name, cmp.Or(c.Version, "latest")) == item.Ref ||
				c.Fits(manifest.Pin{Kind: item.Kind, Ref: item.Ref, Name: c.Name, Version: version})
		})
	case manifest.ItemTool:
		return "self"
	case manifest.ItemFile:
		if d, ok := manifest.PackageDistribution(item.Ref); ok {
			list, at = "packages", slices.IndexFunc(p.Manifest.Packages, func(s manifest.PackageSet) bool {
				return s.Distribution == d
			})
			break
		}
		list, at = "files", slices.IndexFunc(p.Manifest.Files, func(f manifest.File) bool {
			return manifest.FileURL(f, item.Platform) == item.Ref
		})
	case manifest.ItemGit:
		list, at = "git", slices.IndexFunc(p.Manifest.Git, func(r manifest.GitRepository) bool {
			return r.Ref() == item.Ref
		})
	}
	if at < 0 {
		return ""
	}
	return document.Index(list, at)
}
