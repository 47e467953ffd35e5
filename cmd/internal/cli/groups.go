package cli

import (
	"context"
	"slices"
	"strconv"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// groupFlag selects items by their groups.
type groupFlag struct{ names []string }

func (o *groupFlag) add(f *pflag.FlagSet, verb string) {
	f.StringSliceVar(&o.names, "group", nil,
		verb+" only the items of these `groups`, and those without a group (repeated; default all)")
}

// of returns the items of a bundle that the flag selects.
func (o *groupFlag) of(x bundle.Index) (groups.Set, error) {
	t, err := groups.Of(x)
	if err != nil || len(o.names) == 0 {
		return groups.Set{}, err
	}
	set, err := t.Select(o.names)
	if err != nil {
		return set, usage.Errorf("--group: %w", err)
	}
	return set, nil
}

// inspectedGroup is a group in the JSON output of inspect.
type inspectedGroup struct {
	groups.Group
	Items int `json:"items"`
	// Size is the bytes of the blobs of its items, each once. Blobs of items without a group, or of other groups, count,
	// too.
	Size int64 `json:"size"`
}

// A needer is a bundle here or in a registry.
type needer interface {
	Index() bundle.Index
	Referrers(ctx context.Context, items []bundle.Item) ([]bundle.Item, error)
	Needs(ctx context.Context, items []bundle.Item, visit func(bundle.Item, ocispec.Descriptor)) error
}

// inspectGroups returns the groups of a bundle with their sizes.
func inspectGroups(ctx context.Context, r needer) (list []inspectedGroup, err error) {
	table, err := groups.Of(r.Index())
	if err != nil {
		return nil, err
	}
	for _, g := range table {
		items := slices.DeleteFunc(slices.Clone(r.Index().Items),
			func(it bundle.Item) bool { return !slices.Contains(groups.Names(it), g.Name) })
		one := inspectedGroup{Group: g, Items: len(items)}
		referrers, err := r.Referrers(ctx, items)
		if err != nil {
			return nil, err
		}
		seen := map[digest.Digest]bool{}
		err = r.Needs(ctx, append(items, referrers...), func(_ bundle.Item, blob ocispec.Descriptor) {
			if !seen[blob.Digest] {
				seen[blob.Digest] = true
				one.Size += blob.Size
			}
		})
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

// printGroups prints the groups of a bundle, if it has any.
func (g *globals) printGroups(list []inspectedGroup) error {
	if len(list) == 0 {
		return nil
	}
	var rows [][]string
	for _, one := range list {
		state := "on"
		switch {
		case one.Absent:
			state = "left out"
		case one.Optional:
			state = "off"
		}
		rows = append(rows, []string{one.Name, state, strconv.Itoa(one.Items), plain.Size(one.Size), one.Description})
	}
	return g.PrintTable([]string{"GROUP", "DEFAULT", "ITEMS", "SIZE", "DESCRIPTION"}, rows)
}
