package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/extract"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/plain"
)

// forHost extracts the items of one host: files, and images as archives for one platform.
func (e *extraction) forHost(ctx context.Context) (err error) {
	if e.output == "" || e.output == "-" {
		return usage.Errorf("name a directory with -o")
	}
	s, err := e.openSite(ctx, site.Flags{InventoryFile: e.inventory, ClusterFile: e.cluster}, e.bundle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	e.r = s.Bundle
	h, err := hostNamed(s.Inventory, e.host)
	if err != nil {
		return err
	}
	platform, err := e.hostPlatform()
	if err != nil {
		return err
	}
	items, err := e.needs(ctx, s.Cluster, h.Roles, platform)
	if err != nil {
		return err
	}
	if err := extract.Files(ctx, e.r, e.output, items); err != nil {
		return err
	}
	return e.done(extractResult{Version: 1, Path: e.output, Items: len(items)}, "%s for %s (%s)", plain.Count(len(items), "item"), h.Name, platform)
}

// hostPlatform returns --platform, or the only platform of the bundle.
func (e *extraction) hostPlatform() (string, error) {
	if len(e.wanted) > 0 {
		return e.wanted[0], nil
	}
	if p := e.r.Index().Platforms; len(p) == 1 {
		return p[0], nil
	}
	return "", usage.Errorf("give the platform of %s with --platform: the bundle is for %s", e.host, strings.Join(e.r.Index().Platforms, ", "))
}

// needs returns the items for hosts with these roles. The error lists all missing items.
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

// needed returns one item; of an image only the platform.
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
	return manifest.Host{}, usage.Errorf("--for %s: the inventory has %s", name, strings.Join(names, ", "))
}
