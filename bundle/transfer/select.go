package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
)

// A Prefer says which bundle wins if two have different content under one name.
type Prefer string

// The values of Prefer. Without one, such items are an error.
const (
	PreferNone  Prefer = ""
	PreferFirst Prefer = "first"
	PreferLast  Prefer = "last"
)

// ErrNames means that the sources have different names and the Selection has none.
var ErrNames = errors.New("the bundles have different names: name the result with --name, and --version")

// A Selection says which items of other bundles a new bundle has.
type Selection struct {
	Name, Version string    // of the result; the default is that of the sources
	Items         []string  // patterns, see Matching; none is all items
	Groups        []string  // names; items of these and of no group; none is all items
	Platforms     Platforms // empty is all platforms
	Prefer        Prefer
}

// A Source is a bundle to select from.
type Source struct {
	Name string // for messages
	*bundle.Catalog
	addition bool // its documents are left out
}

// A Plan is the content of a new bundle.
type Plan struct {
	Index   bundle.Index
	Locks   []bundle.Document // to be added to Index
	LeftOut []string          // items that cannot come along, with the reason
}

// A selector makes one Plan. It reads no contents but those of locks.
type selector struct {
	Selection
	from    []Source
	leftOut []string
	groups  []groups.Set      // of each source
	chosen  [][]bundle.Item   // of each source, in the order of ByIndex
	locks   []bundle.Document // written anew
}

// Plan selects items of the sources. Everything of one source is that source's own index.
func (s Selection) Plan(ctx context.Context, from []Source) (Plan, error) {
	c := &selector{Selection: s, from: from}
	x, err := c.plan(ctx)
	return Plan{Index: x, Locks: c.locks, LeftOut: c.leftOut}, err
}

// plan returns the index of the result.
func (c *selector) plan(ctx context.Context) (bundle.Index, error) {
	if err := c.checkPlatforms(); err != nil {
		return bundle.Index{}, err
	}
	table, err := c.readGroups()
	if err != nil {
		return bundle.Index{}, err
	}
	if err := c.choose(ctx); err != nil {
		return bundle.Index{}, err
	}
	items, err := c.merge()
	if err != nil {
		return bundle.Index{}, err
	}
	if len(items) == 0 {
		return bundle.Index{}, errors.New("nothing is left to copy")
	}
	x, err := c.head()
	if err != nil {
		return bundle.Index{}, err
	}
	for _, f := range c.from {
		if whole := f.Index(); sameItems(whole.Items, items) && whole.Name == x.Name && whole.Version == x.Version {
			return whole, nil
		}
	}
	if err := table.Put(&x); err != nil {
		return bundle.Index{}, err
	}
	x.Items = items
	x.Items = c.documents(ctx, x)
	x.Annotations[bundle.AnnotationFrom] = strings.Join(c.identities(), ",")
	return x, nil
}

func sameItems(a, b []bundle.Item) bool {
	return slices.EqualFunc(a, b, func(a, b bundle.Item) bool {
		return sameKey(a, b) == 0 && a.Descriptor.Digest == b.Descriptor.Digest && slices.Equal(a.Absent, b.Absent) &&
			slices.Equal(groups.Names(a), groups.Names(b))
	})
}

// identities returns the identities of the sources, sorted, each once.
func (c *selector) identities() []string {
	var all []string
	for _, f := range c.from {
		all = append(all, f.Digest().String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// head returns the index without items. Values that all sources share are kept.
func (c *selector) head() (bundle.Index, error) {
	x := bundle.Index{Name: c.Name, Version: c.Version, Annotations: map[string]string{}}
	first := c.from[0].Index()
	same := func(of func(bundle.Index) string) bool {
		return !slices.ContainsFunc(c.from, func(f Source) bool { return of(f.Index()) != of(first) })
	}
	if x.Name == "" {
		if !same(func(x bundle.Index) string { return x.Name }) {
			return x, ErrNames
		}
		x.Name = first.Name
	}
	if x.Version == "" && same(func(x bundle.Index) string { return x.Version }) {
		x.Version = first.Version
	}
	for k, v := range first.Annotations {
		if k != bundle.AnnotationFrom && same(func(x bundle.Index) string { return x.Annotations[k] }) {
			x.Annotations[k] = v
		}
	}
	for _, f := range c.from {
		for _, p := range f.Index().Platforms {
			if c.Platforms.Has(p) {
				x.Platforms = append(x.Platforms, p)
			}
		}
	}
	slices.Sort(x.Platforms)
	x.Platforms = slices.Compact(x.Platforms)
	return x, nil
}

// checkPlatforms returns an error for a platform that no source has. Named items have their own errors.
func (c *selector) checkPlatforms() error {
	if len(c.Platforms) == 0 || len(c.Items) > 0 {
		return nil
	}
	var have Platforms
	var names []string
	for _, f := range c.from {
		names = append(names, f.Name)
		have = append(have, f.Index().Platforms...)
		for _, it := range f.Index().Items {
			if it.Descriptor.Platform != nil {
				have = append(have, bundle.PlatformString(it.Descriptor.Platform))
			}
		}
	}
	slices.Sort(have)
	have = slices.Compact(have)
	var errs []error
	for _, p := range c.Platforms {
		if len(have) > 0 && !have.Has(p) {
			errs = append(errs, fmt.Errorf("%s: no content for %s; the platforms are %s", strings.Join(names, ", "), p,
				have))
		}
	}
	return errors.Join(errs...)
}

// readGroups selects the groups in each source, and returns the table of the result. A name that no source has is an
// error.
func (c *selector) readGroups() (groups.Table, error) {
	var tables []groups.Table
	for _, f := range c.from {
		t, err := groups.Of(f.Index())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		tables = append(tables, t)
	}
	all := groups.Join(tables...)
	if _, err := all.Select(c.Groups); err != nil {
		return nil, err
	}
	for i, t := range tables {
		if len(c.Groups) == 0 {
			c.groups = append(c.groups, groups.Set{})
			continue
		}
		own := slices.DeleteFunc(slices.Clone(c.Groups), func(name string) bool { return !t.Has(name) })
		set, err := t.Select(own)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.from[i].Name, err)
		}
		c.groups, tables[i] = append(c.groups, set), t.Without(set)
	}
	return groups.Join(tables...), nil
}

// choose fills in chosen.
func (c *selector) choose(ctx context.Context) error {
	hits, kept := make([]int, len(c.Items)), make([]int, len(c.Items))
	var all []bundle.Item
	for source, f := range c.from {
		items := c.groups[source].Items(f.Index().Items)
		if f.addition {
			items = slices.DeleteFunc(slices.Clone(items),
				func(it bundle.Item) bool { return it.Kind == bundle.KindManifest || aboutBundle(it) })
		}
		all = append(all, items...)
		var chosen []bundle.Item
		if len(c.Items) == 0 {
			for _, it := range items {
				if it.Kind == bundle.KindReferrer && len(c.Platforms)+len(c.Groups) > 0 {
					continue // comes with its subject
				}
				if _, err := c.take(ctx, f, it, &chosen); err != nil {
					return err
				}
			}
		}
		for i, pattern := range c.Items {
			for _, it := range Matching(items, pattern) {
				hits[i]++
				ok, err := c.take(ctx, f, it, &chosen)
				if err != nil {
					return err
				}
				if ok {
					kept[i]++
				}
			}
		}
		referrers, err := f.Referrers(ctx, chosen)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		chosen = append(chosen, referrers...)
		slices.SortFunc(chosen, ByIndex)
		chosen = slices.CompactFunc(chosen, func(a, b bundle.Item) bool { return ByIndex(a, b) == 0 })
		c.chosen = append(c.chosen, chosen)
	}
	var errs []error
	for i, pattern := range c.Items {
		switch {
		case hits[i] == 0:
			errs = append(errs, NewNoItemError(all, pattern))
		case kept[i] == 0:
			errs = append(errs, fmt.Errorf("%s is not there for %s", pattern, c.Platforms))
		}
	}
	return errors.Join(errs...)
}

// take adds an item, reduced to the platforms.
func (c *selector) take(ctx context.Context, f Source, it bundle.Item, chosen *[]bundle.Item) (bool, error) {
	if len(c.Platforms) == 0 {
		*chosen = append(*chosen, it)
		return true, nil
	}
	narrow, left, err := f.Narrow(ctx, it, c.Platforms.Has)
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.Name, err)
	}
	switch {
	case left:
		*chosen = append(*chosen, narrow)
	case it.Kind == bundle.KindImage && len(c.Items) == 0:
		c.leftOut = append(c.leftOut, fmt.Sprintf("%s of %s: it is not there for %s", it, f.Name, c.Platforms))
	}
	return left, nil
}

// An itemKey is an item's name: contents of two bundles under one name conflict.
type itemKey struct{ kind, ref, platform string }

func keyOf(it bundle.Item) itemKey {
	return itemKey{it.Kind, it.Ref, bundle.PlatformString(it.Descriptor.Platform)}
}

// sameKey compares kind, reference and platform.
func sameKey(a, b bundle.Item) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Ref, b.Ref),
		cmp.Compare(bundle.PlatformString(a.Descriptor.Platform), bundle.PlatformString(b.Descriptor.Platform)),
	)
}

// ByIndex orders items as index.json does.
func ByIndex(a, b bundle.Item) int {
	return cmp.Or(sameKey(a, b), cmp.Compare(a.Descriptor.Digest, b.Descriptor.Digest))
}
