// Package groups reads and writes the groups of a bundle, and selects items by them.
//
// The table of groups is an annotation of index.json, and the groups of an item are one of the item. So a selection
// reads no content, and works for a bundle from a pipe.
package groups

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

const (
	maxGroups = 1000
	maxTable  = 1 << 20 // bytes
	maxValues = 5 * maxGroups
)

// A Group is a named part of a bundle.
type Group struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Optional groups are off until a site switches them on.
	Optional bool `json:"optional,omitempty"`
	// Absent means that a copy left the items of the group out.
	Absent bool `json:"absent,omitempty"`
}

// A Table has the groups of a bundle by name. It is nil for a bundle without groups.
type Table []Group

// Of returns the table of a bundle. The error is a *TableError for a table that Put would not write, and for an item
// with a group that the table lacks.
func Of(x bundle.Index) (Table, error) {
	text, ok := x.Annotations[bundle.AnnotationGroups]
	var t Table
	if ok {
		if len(text) > maxTable {
			return nil, &TableError{fmt.Errorf("%s has %d bytes; at most %d are read", bundle.AnnotationGroups, len(text), maxTable)}
		}
		if err := capped.JSON([]byte(text), maxValues, &t); err != nil {
			return nil, &TableError{fmt.Errorf("%s: %w", bundle.AnnotationGroups, err)}
		}
		if err := t.check(); err != nil {
			return nil, &TableError{fmt.Errorf("%s: %w", bundle.AnnotationGroups, err)}
		}
	}
	for _, it := range x.Items {
		for _, name := range Names(it) {
			if _, ok := t.find(name); !ok {
				return nil, &TableError{fmt.Errorf("%s has the group %q, which the bundle does not name", it, document.Shorten(name))}
			}
		}
	}
	return t, nil
}

// check refuses a table that is not sorted, and names that an item's annotation cannot have.
func (t Table) check() error {
	if len(t) > maxGroups {
		return fmt.Errorf("%d groups; at most %d are read", len(t), maxGroups)
	}
	for i, g := range t {
		if !document.IsName(g.Name, false) {
			return fmt.Errorf("%q is not the name of a group", document.Shorten(g.Name))
		}
		if i > 0 && t[i-1].Name >= g.Name {
			return fmt.Errorf("group %s is there twice, or not in its place", g.Name)
		}
	}
	return nil
}

// A TableError means that the groups of a bundle cannot be read.
type TableError struct{ Err error }

// Error names the annotation or the item.
func (e *TableError) Error() string { return "groups of the bundle: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *TableError) Unwrap() error { return e.Err }

// Put writes the table into an index. An empty one leaves the index as it is.
func (t Table) Put(x *bundle.Index) error {
	if len(t) == 0 {
		return nil
	}
	if err := t.check(); err != nil {
		return &TableError{err}
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	x.Annotations = maps.Clone(x.Annotations)
	if x.Annotations == nil {
		x.Annotations = map[string]string{}
	}
	x.Annotations[bundle.AnnotationGroups] = string(text)
	return nil
}

// Has reports whether the bundle has the items of a group.
func (t Table) Has(name string) bool {
	g, ok := t.find(name)
	return ok && !g.Absent
}

func (t Table) find(name string) (Group, bool) {
	i := slices.IndexFunc(t, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return Group{}, false
	}
	return t[i], true
}

// Names returns the groups that an item belongs to; none for an item of every selection.
func Names(it bundle.Item) []string {
	text := it.Descriptor.Annotations[bundle.AnnotationGroups]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// Mark returns the item as one of these groups, of every selection without names.
func Mark(it bundle.Item, names []string) bundle.Item {
	if len(names) == 0 && len(Names(it)) == 0 {
		return it
	}
	it.Descriptor.Annotations = maps.Clone(it.Descriptor.Annotations)
	if len(names) == 0 {
		delete(it.Descriptor.Annotations, bundle.AnnotationGroups)
		return it
	}
	if it.Descriptor.Annotations == nil {
		it.Descriptor.Annotations = map[string]string{}
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	it.Descriptor.Annotations[bundle.AnnotationGroups] = strings.Join(names, ",")
	return it
}

// Both returns the item for a bundle that has it from two: it belongs to the groups of both.
func Both(a, b bundle.Item) bundle.Item {
	if len(Names(a)) == 0 || len(Names(b)) == 0 {
		return Mark(a, nil)
	}
	return Mark(a, slices.Concat(Names(a), Names(b)))
}

// Join returns the table of a bundle that has items of several. Groups of one name are one group; the earlier table
// describes it.
func Join(tables ...Table) Table {
	var out Table
	for _, t := range tables {
		for _, g := range t {
			i := slices.IndexFunc(out, func(o Group) bool { return o.Name == g.Name })
			if i < 0 {
				out = append(out, g)
			} else {
				out[i].Absent = out[i].Absent && g.Absent
			}
		}
	}
	slices.SortFunc(out, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// An UnknownError means that a bundle lacks a group that somebody named.
type UnknownError struct {
	Name  string
	Table Table
}

// Error lists the groups that there are.
func (e *UnknownError) Error() string {
	g, known := e.Table.find(e.Name)
	var names []string
	for _, g := range e.Table {
		if !g.Absent {
			names = append(names, g.Name)
		}
	}
	text := manifest.NoGroup(e.Name, names)
	if known && g.Absent {
		text = "the items of group " + e.Name + " were left out when the bundle was copied" + strings.TrimPrefix(text, "there is no group "+e.Name)
	}
	return text
}

// known returns an error for each name without items in the bundle.
func (t Table) known(names []string) error {
	var errs []error
	for _, name := range names {
		if !t.Has(name) {
			errs = append(errs, &UnknownError{name, t})
		}
	}
	return errors.Join(errs...)
}

// Select returns the set of exactly these groups. The error joins an *UnknownError for each name that the bundle
// lacks.
func (t Table) Select(names []string) (Set, error) {
	if err := t.known(names); err != nil {
		return Set{}, err
	}
	s := Set{table: t, on: Words{}}
	for _, g := range t {
		s.on[g.Name] = slices.Contains(names, g.Name)
	}
	return s, nil
}

// Without returns the table of a copy that has the items of a set only.
func (t Table) Without(s Set) Table {
	t = slices.Clone(t)
	for i := range t {
		t[i].Absent = t[i].Absent || !s.On(t[i].Name)
	}
	return t
}
