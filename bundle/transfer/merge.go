package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/manifest"
)

// merge joins the chosen items, sorted. Without Prefer, different content under one name is an error that lists all
// such items.
func (c *selector) merge() ([]bundle.Item, error) {
	var merged []bundle.Item
	var conflicts []error
	c.keepManifests()
	c.keepCatalog()
	places := make(map[itemKey]int) // in merged
	for source, items := range c.chosen {
		for i, it := range items {
			at, found := places[keyOf(it)]
			switch {
			case !found || i > 0 && sameKey(items[i-1], it) == 0: // a bundle may have two digests under one name
				places[keyOf(it)] = len(merged)
				merged = append(merged, it)
			case merged[at].Descriptor.Digest == it.Descriptor.Digest:
				merged[at].Absent = both(merged[at].Absent, it.Absent)
				merged[at] = groups.Both(merged[at], c.inGroups(source, it, merged[at]))
			case it.Kind == bundle.KindLock || aboutBundle(it): // documents writes a lock that holds for all
			case c.Prefer == PreferLast:
				merged[at] = groups.Both(c.inGroups(source, it, merged[at]), merged[at])
			case c.Prefer == PreferFirst:
				merged[at] = groups.Both(merged[at], c.inGroups(source, it, merged[at]))
			default:
				conflicts = append(conflicts, c.conflict(merged[at], source, it))
			}
		}
	}
	if len(conflicts) > 0 {
		return nil, fmt.Errorf("the bundles differ under one name; choose with --item, or say with --prefer first or last which one counts:\n  %w",
			errors.Join(conflicts...))
	}
	slices.SortFunc(merged, ByIndex)
	return merged, nil
}

// inGroups returns an item of a source that is there already. An addition has no groups of its own: the item stays in
// those that it has.
func (c *selector) inGroups(source int, it, there bundle.Item) bundle.Item {
	if !c.from[source].addition {
		return it
	}
	return groups.Mark(it, groups.Names(there))
}

// keepManifests renames different manifests: they stay in the result, and none of them looks like the manifest of the
// result.
func (c *selector) keepManifests() {
	different, first := false, digest.Digest("")
	for _, items := range c.chosen {
		if i := documentAt(items, bundle.DocumentManifest); i >= 0 {
			d := items[i].Descriptor.Digest
			different = different || first != "" && first != d
			first = d
		}
	}
	if !different {
		return
	}
	used := map[string]bool{}
	for source, items := range c.chosen {
		i := documentAt(items, bundle.DocumentManifest)
		if i < 0 {
			continue
		}
		x := c.from[source].Index()
		name := strings.TrimSuffix(bundle.FileName(x.Name, x.Version), ".kkb")
		if used[name] {
			name += "-" + c.from[source].Digest().Encoded()[:12]
		}
		used[name] = true
		items[i].Ref = name + "/" + bundle.DocumentManifest
		items[i].Name = items[i].Ref
		slices.SortFunc(items, ByIndex)
	}
}

// keepCatalog leaves out every catalog but that of the bundle whose cluster file counts: names and versions of a
// cluster's items come from the catalog that it was built with. Without the usual cluster file, the order of the
// bundles decides.
func (c *selector) keepCatalog() {
	owner := c.owner(bundle.DocumentCluster)
	if owner < 0 {
		owner = c.owner(bundle.DocumentCatalog)
	}
	if owner < 0 {
		return
	}
	var kept digest.Digest
	if i := documentAt(c.chosen[owner], bundle.DocumentCatalog); i >= 0 {
		kept = c.chosen[owner][i].Descriptor.Digest
	}
	for source, items := range c.chosen {
		i := documentAt(items, bundle.DocumentCatalog)
		if i < 0 || items[i].Descriptor.Digest == kept {
			continue
		}
		c.chosen[source] = slices.Delete(slices.Clone(items), i, i+1)
		c.leftOut = append(c.leftOut, fmt.Sprintf("%s of %s: the cluster file is that of %s", items[i],
			c.from[source].Name, c.from[owner].Name))
	}
}

// owner returns the source whose document of this name counts, -1 if none has it.
func (c *selector) owner(ref string) int {
	found := -1
	for source, items := range c.chosen {
		if documentAt(items, ref) >= 0 && (found < 0 || c.Prefer == PreferLast) {
			found = source
		}
	}
	return found
}

// documentAt returns the position of a document that bundles were built from, -1 if it is missing.
func documentAt(items []bundle.Item, ref string) int {
	return slices.IndexFunc(items, func(it bundle.Item) bool { return it.Kind == bundle.KindManifest && it.Ref == ref })
}

// aboutBundle reports whether an item describes its bundle as a whole: a closure or an SBOM.
func aboutBundle(it bundle.Item) bool {
	return it.Kind == bundle.KindClosure || it.Kind == bundle.KindSBOM
}

// both returns the digests that are in both lists: absent is what no source has.
func both(a, b []digest.Digest) []digest.Digest {
	var out []digest.Digest
	for _, d := range a {
		if slices.Contains(b, d) {
			out = append(out, d)
		}
	}
	return out
}

func (c *selector) conflict(have bundle.Item, source int, it bundle.Item) error {
	other := ""
	for i, items := range c.chosen[:source] {
		if _, ok := slices.BinarySearchFunc(items, have, ByIndex); ok {
			other = c.from[i].Name
		}
	}
	return fmt.Errorf("%s: %s in %s, %s in %s", it, short(have.Descriptor.Digest), other,
		short(it.Descriptor.Digest), c.from[source].Name)
}

// documents leaves out closures and SBOMs, which describe a source and not the result. Locks are written anew.
func (c *selector) documents(ctx context.Context, x bundle.Index) []bundle.Item {
	lock := false
	out := slices.DeleteFunc(slices.Clone(x.Items), func(it bundle.Item) bool {
		if it.Kind == bundle.KindLock {
			lock = true
			return true
		}
		if aboutBundle(it) {
			c.leftOut = append(c.leftOut, it.String()+": it describes a source and not the result")
			return true
		}
		return false
	})
	if !lock {
		return out
	}
	data, err := c.lock(ctx, manifest.Metadata{Name: x.Name, Version: x.Version}, out)
	if err != nil {
		c.leftOut = append(c.leftOut, "lock "+bundle.DocumentLock+": "+err.Error())
		return out
	}
	c.locks = append(c.locks, bundle.Document{Kind: bundle.KindLock, Ref: bundle.DocumentLock, Data: data})
	return out
}

// lock returns the lock of the items. Its fingerprint is that of no manifest, so build reports what the lock lacks
// instead of building less than a manifest names.
func (c *selector) lock(ctx context.Context, m manifest.Metadata, items []bundle.Item) ([]byte, error) {
	var locks []map[itemKey][]manifest.Pin
	for _, f := range c.from {
		data, err := f.Document(ctx, bundle.KindLock, bundle.DocumentLock)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		l, err := manifest.ParseLock(f.Name+": "+bundle.DocumentLock, data)
		if err != nil {
			return nil, err
		}
		locks = append(locks, pinsByRef(l))
	}
	out := manifest.Lock{
		Metadata: m,
		Manifest: digest.FromString("copied from " + strings.Join(c.identities(), ",")).String(),
	}
	for _, it := range items {
		pin, ok := c.pin(locks, it)
		if ok {
			out.Items = append(out.Items, pin)
			continue
		}
		switch it.Kind {
		case bundle.KindImage, bundle.KindChart, bundle.KindFile, bundle.KindTool, bundle.KindGit:
			return nil, fmt.Errorf("no source's lock has %s", it)
		}
	}
	return out.Marshal()
}

// pinsByRef returns the pins of a lock by kind and reference.
func pinsByRef(l *manifest.Lock) map[itemKey][]manifest.Pin {
	pins := make(map[itemKey][]manifest.Pin, len(l.Items))
	for _, p := range l.Items {
		k := itemKey{kind: p.Kind, ref: p.Ref}
		pins[k] = append(pins[k], p)
	}
	return pins
}

// pin finds an item in the locks of its sources.
func (c *selector) pin(locks []map[itemKey][]manifest.Pin, it bundle.Item) (pin manifest.Pin, found bool) {
	for i, pins := range locks {
		if _, ok := slices.BinarySearchFunc(c.chosen[i], it, ByIndex); !ok {
			continue
		}
		for _, p := range pins[itemKey{kind: it.Kind, ref: it.Ref}] {
			if p.Platform != "" && p.Platform != bundle.PlatformString(it.Descriptor.Platform) {
				continue
			}
			unwanted := func(p string) bool { return !c.Platforms.Has(p) }
			p.Platforms = slices.DeleteFunc(slices.Clone(p.Platforms), unwanted)
			p.Lacks = slices.DeleteFunc(slices.Clone(p.Lacks), unwanted)
			p.Complete = p.Complete && len(it.Absent) == 0
			if found {
				p.Platforms = append(p.Platforms, pin.Platforms...)
				slices.Sort(p.Platforms)
				p.Platforms = slices.Compact(p.Platforms)
			}
			pin, found = p, true
		}
	}
	return pin, found
}

// short returns the beginning of a digest, which tells digests apart.
func short(d digest.Digest) string {
	const keep = len("sha256:") + 12
	return d.String()[:min(len(d), keep)]
}
