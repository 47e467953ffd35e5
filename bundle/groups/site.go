package groups

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

// Words say of groups, by name, whether they are on.
type Words map[string]bool

// The words of a person, and of records.
const (
	wordOn  = "on"
	wordOff = "off"
)

// ParseWords reads NAME, NAME=on and NAME=off. The later one of a name wins.
func ParseWords(texts []string) (Words, error) {
	words := Words{}
	for _, text := range texts {
		name, word, hasWord := strings.Cut(text, "=")
		if name == "" || hasWord && word != wordOn && word != wordOff {
			return nil, fmt.Errorf("%q: want NAME, NAME=on or NAME=off", text)
		}
		words[name] = word != wordOff
	}
	return words, nil
}

// Texts returns the words as records have them.
func (w Words) Texts() map[string]string {
	texts := make(map[string]string, len(w))
	for name, on := range w {
		texts[name] = wordOff
		if on {
			texts[name] = wordOn
		}
	}
	return texts
}

// Table returns a table of the groups that have a word.
func (w Words) Table() (t Table) {
	for _, name := range slices.Sorted(maps.Keys(w)) {
		t = append(t, Group{Name: name})
	}
	return t
}

// WordsOf reads the words of a record.
func WordsOf(texts map[string]string) (Words, error) {
	var list []string
	for name, word := range texts {
		list = append(list, name+"="+word)
	}
	return ParseWords(list)
}

// A Set is the groups that are on. The zero value has every item.
type Set struct {
	table Table
	on    Words
}

// Switch returns the groups of a site: those that it was given now, else as before, else all that are not optional.
// Words of before for groups that this bundle lacks are kept: a later one may have them again.
// The error joins an *UnknownError for each given name that the bundle lacks.
func (t Table) Switch(before, given Words) (Set, error) {
	if err := t.known(slices.Sorted(maps.Keys(given))); err != nil {
		return Set{}, err
	}
	s := Set{table: t, on: Words{}}
	maps.Copy(s.on, before) // also words for groups of other bundles
	for _, g := range t {
		s.on[g.Name] = !g.Optional
		for _, words := range []Words{before, given} {
			if on, ok := words[g.Name]; ok {
				s.on[g.Name] = on
			}
		}
	}
	return s, nil
}

// On reports whether a group is on, and the bundle has its items.
func (s Set) On(name string) bool {
	return s.on[name] && s.table.Has(name)
}

// All reports whether the set has every item.
func (s Set) All() bool { return s.table == nil }

// Has reports whether a selection of these groups has an item: one without a group always.
func (s Set) Has(it bundle.Item) bool {
	return s.All() || len(Names(it)) == 0 || slices.ContainsFunc(Names(it), s.On)
}

// Items returns the items of the selection.
func (s Set) Items(list []bundle.Item) []bundle.Item {
	if s.All() {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(it bundle.Item) bool { return !s.Has(it) })
}

// Words returns a word for each group, for the site's record.
func (s Set) Words() Words { return maps.Clone(s.on) }

// Entries returns the entries of deploy, or of a cluster file's addons, that are installed while these groups are on:
// those whose own group is on, if they name one, and whose chart is selected. items are those of the bundle, and
// carried the charts of its manifest, which a copy may have left out. Entries with a chart that is in no group, or
// nowhere, stay.
func (s Set) Entries(list []manifest.Addon, items []bundle.Item, carried []manifest.Chart) []manifest.Addon {
	if s.All() {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(a manifest.Addon) bool {
		if a.Group != "" && !s.On(a.Group) {
			return true
		}
		return a.Chart != "" && s.isOff(a.Chart, items, carried)
	})
}

// isOff reports whether a chart is only in groups that are off.
func (s Set) isOff(chart string, items []bundle.Item, carried []manifest.Chart) bool {
	off := false
	for _, it := range items {
		if it.Kind == bundle.KindChart && it.Name == chart {
			if s.Has(it) {
				return false
			}
			off = true
		}
	}
	return off || slices.ContainsFunc(carried, func(c manifest.Chart) bool {
		return c.Name == chart && c.Group != "" && !s.On(c.Group)
	})
}

// Table returns the groups of the bundle.
func (s Set) Table() Table { return s.table }

// Names returns the names of the groups.
func (t Table) Names() []string {
	var names []string
	for _, g := range t {
		names = append(names, g.Name)
	}
	return names
}
