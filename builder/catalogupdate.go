package builder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// A CatalogRow is a version in a catalog and what upstream has of it.
type CatalogRow struct {
	catalog.Watch
	fetch.Newer
}

// A CatalogUpdate is what upstream has newer than a catalog.
type CatalogUpdate struct {
	Rows    []CatalogRow
	Changes []catalog.Change
	// Catalog has the changed entries and those of the file that is updated.
	Catalog *catalogfile.Catalog
}

// updateHeader begins each file that UpdateCatalog makes. Files without it are the user's.
const updateHeader = `# Written by kkbundle catalog update, which writes it anew. Name it in the cluster file: catalog: [FILE]. Keep it in version control.
`

// UpdateCatalog asks upstream for the newest patch release of each version in the program's catalog and in own, a
// file of an earlier update; nil for none. components selects some; none selects all. Rows whose upstream fails have
// the error, and so has the result.
func UpdateCatalog(ctx context.Context, own *catalogfile.Catalog, components []string,
	o fetch.Options,
) (*CatalogUpdate, error) {
	var others []*catalogfile.Catalog
	if own != nil {
		others = append(others, own)
	}
	k, err := catalog.Merged(others...)
	if err != nil {
		return nil, err
	}
	watches, err := selected(catalog.Watches(k), components)
	if err != nil {
		return nil, err
	}
	u := &CatalogUpdate{}
	var pins []manifest.Pin
	for _, w := range watches {
		row := CatalogRow{Watch: w, Newer: fetch.Newer{Unknown: "upstream publishes no list of its versions"}}
		if w.Pin.Ref != "" {
			pins = append(pins, w.Pin)
		}
		u.Rows = append(u.Rows, row)
	}
	newer, failed := fetch.Outdated(ctx, pins, o)
	if newer == nil && failed != nil {
		return nil, failed
	}
	for i := range u.Rows {
		if u.Rows[i].Watch.Pin.Ref != "" {
			u.Rows[i].Newer, newer = newer[0], newer[1:]
		}
		if r := u.Rows[i]; r.Patch != "" && r.Err == nil {
			u.Changes = append(u.Changes, catalog.Change{
				Component: r.Component, Since: r.Since, From: r.Version,
				To: r.Patch,
			})
		}
	}
	u.Catalog = catalog.Apply(k, own, u.Changes)
	return u, failed
}

// selected returns the watches of some components.
func selected(watches []catalog.Watch, components []string) ([]catalog.Watch, error) {
	if len(components) == 0 {
		return watches, nil
	}
	var names []string
	for _, w := range watches {
		names = append(names, w.Component)
	}
	names = slices.Compact(names)
	for _, c := range components {
		if !slices.Contains(names, c) {
			return nil, &InputError{fmt.Errorf("--component %s: the catalog has no versions of it; known: %s", c,
				strings.Join(names, ", "))}
		}
	}
	return slices.DeleteFunc(watches, func(w catalog.Watch) bool { return !slices.Contains(components, w.Component) }),
		nil
}

// Marshal returns the file of the update, and checks that it can be read again.
func (u *CatalogUpdate) Marshal() ([]byte, error) {
	data, err := manifest.MarshalCatalog(u.Catalog, updateHeader)
	if err != nil {
		return nil, err
	}
	_, err = manifest.ParseCatalog("the updated catalog", data)
	return data, err
}

// ReadUpdate reads the file of an earlier update. A file of another origin is an error: an update would lose its
// comments.
func ReadUpdate(file string) (*catalogfile.Catalog, error) {
	data, err := ReadFile(file)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(string(data), updateHeader) {
		return nil, &InputError{errors.New(file +
			": not written by kkbundle catalog update; name another file with -o")}
	}
	return manifest.ParseCatalog(file, data)
}
