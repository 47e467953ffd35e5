// Package merge merges manifests: a manifest over the files that it includes, and a variant over its manifest. They are
// trees of YAML that keep the places of their files. It is pure.
package merge

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

const (
	includeKey  = "include"
	variantsKey = "variants"
	withoutKey  = "without"
	valuesKey   = "values"
	groupsKey   = "groups"
)

// Keys are the keys that a variant may have, and those below its key without.
type Keys struct{ Variant, Without []string }

// Variant returns the tree of a manifest, root, merged with a variant of it. Neither tree is changed. Problems are
// added to c, and are the error.
func Variant(c *document.Checker, root, variant *yaml.Node, name string, known Keys) (*yaml.Node, error) {
	m := &merge{
		Checker: c, known: known, under: "the manifest", over: "variant " + name, at: document.Join(variantsKey, name),
		mappings: []string{groupsKey},
	}
	var err error
	if m.root, err = m.clone(root); err != nil {
		return nil, err
	}
	over, err := m.clone(variant)
	if err != nil {
		return nil, err
	}
	document.Remove(m.root, variantsKey)
	if over.Tag == "!!null" {
		over = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	m.apply(over)
	m.rename(name)
	return m.root, c.Found.Err()
}

// Files returns the tree of a manifest, the last of the files, over those that it includes: each is merged over those
// before it. None of them is changed; adapt may change the copy of each before it is merged. They may have any key.
func Files(files []*document.Tree, adapt func(i int, root *yaml.Node), known Keys) (*yaml.Node, error) {
	manifest := files[len(files)-1].Root
	m := &merge{
		known: known, under: "the include", mappings: []string{groupsKey, valuesKey, variantsKey},
		root: &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: manifest.Line, Column: manifest.Column},
	}
	var found document.Problems
	for i, t := range files {
		m.Checker, m.over = &document.Checker{Tree: t, Found: found}, cmp.Or(t.Of(t.Root).File, t.File)
		over, err := m.clone(t.Root)
		if err != nil {
			return nil, err
		}
		adapt(i, over)
		m.apply(over)
		found = m.Found
	}
	return m.root, found.Err()
}

// A merge is that of one variant, or of files.
type merge struct {
	*document.Checker
	known       Keys
	under, over string   // for messages: what is merged over what
	at          string   // path of what is merged over the rest
	mappings    []string // keys of mappings that are merged by their own keys
	root        *yaml.Node
	values      int // nodes that were copied
}

// clone copies a node with the content of its aliases: what an anchor is at may be left out.
func (m *merge) clone(n *yaml.Node) (*yaml.Node, error) {
	return m.cloneBelow(n, 0)
}

func (m *merge) cloneBelow(n *yaml.Node, depth int) (*yaml.Node, error) {
	const maxDepth = 100
	n = document.Resolved(n)
	if m.values++; m.values > document.FileLimits().Values || depth > maxDepth {
		m.Add("", "more than %d values, or %d levels; aliases repeat too much", document.FileLimits().Values, maxDepth)
		return nil, m.Found.Err()
	}
	own := *n
	own.Anchor, own.Content = "", make([]*yaml.Node, len(n.Content))
	for i := range n.Content {
		var err error
		if own.Content[i], err = m.cloneBelow(n.Content[i], depth+1); err != nil {
			return nil, err
		}
	}
	m.Tree.Inherit(&own, n)
	return &own, nil
}

func (m *merge) below(key string) string { return document.Join(m.at, key) }

// apply applies the keys of a variant or a file.
func (m *merge) apply(over *yaml.Node) {
	if over.Kind != yaml.MappingNode {
		m.Add(m.at, "want what differs from the manifest, such as {without: {images: [nginx:1.29]}}")
		return
	}
	m.leaveOut(document.ValueOf(over, withoutKey))
	seen := map[string]bool{}
	for i := 0; i+1 < len(over.Content); i += 2 {
		k, v := over.Content[i], over.Content[i+1]
		_, list := identities()[k.Value]
		mapping := slices.Contains(m.mappings, k.Value)
		switch {
		case m.known.Variant != nil && !slices.Contains(m.known.Variant, k.Value):
			m.AddKey(m.below(k.Value), "a variant has no such key; known: %s", strings.Join(m.known.Variant, ", "))
		case seen[k.Value]:
			m.AddKey(m.below(k.Value), "is there twice, also on %s", m.Tree.Of(k))
		case k.Value == withoutKey, k.Value == includeKey:
		case (list || mapping) && v.Tag == "!!null": // all of its entries are comments
		case list && v.Kind == yaml.SequenceNode:
			m.list(k, v)
		case mapping && v.Kind == yaml.MappingNode:
			m.mapping(k, v)
		case k.Value == valuesKey:
			m.giveValues(v)
		default:
			document.Set(m.root, k, v)
		}
		seen[k.Value] = true
	}
}

// rename gives the bundle the name of a variant.
func (m *merge) rename(variant string) {
	if name := document.ValueOf(document.ValueOf(m.root, "metadata"), "name"); name != nil && name.Kind == yaml.ScalarNode {
		name.Value += "-" + variant
	}
}

// list merges a list of items.
func (m *merge) list(key, items *yaml.Node) {
	id := identities()[key.Value]
	base := document.ValueOf(m.root, key.Value)
	if base == nil || base.Kind != yaml.SequenceNode {
		base = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: key.Line, Column: key.Column}
		m.Tree.Inherit(base, key)
		document.Set(m.root, key, base)
	}
	first := map[string]int{}
	have := map[string][]int{}
	for i, one := range base.Content {
		have[id(one)] = append(have[id(one)], i)
	}
	for i, one := range items.Content {
		path := document.Index(m.below(key.Value), i)
		at, twice := document.Earlier(first, id(one), i)
		switch places := have[id(one)]; {
		case twice && len(places) > 0:
			m.Add(path, "%s is there twice in %s, first on %s", document.Shorten(id(one)), m.over,
				m.Place(document.Index(m.below(key.Value), at)))
		case len(places) > 1:
			m.Add(path, "%s has %s several times, on %s and %s; leave them out with without, and name others", m.under,
				document.Shorten(id(one)), m.Tree.Of(base.Content[places[0]]), m.Tree.Of(base.Content[places[1]]))
		case len(places) == 1:
			base.Content[places[0]] = one
		default:
			base.Content = append(base.Content, one)
		}
	}
}

// mapping merges a mapping by its keys.
func (m *merge) mapping(key, entries *yaml.Node) {
	base := document.ValueOf(m.root, key.Value)
	if base == nil || base.Kind != yaml.MappingNode {
		document.Set(m.root, key, entries)
		return
	}
	for k, v := range document.Pairs(entries) {
		document.Set(base, k, v)
	}
}

// giveValues makes the values of the variant the defaults of the table.
func (m *merge) giveValues(given *yaml.Node) {
	at := m.below(valuesKey)
	if given.Kind != yaml.MappingNode {
		m.Add(at, "want a mapping from the names of values to values")
		return
	}
	for k, v := range document.Pairs(given) {
		definition := document.ValueOf(document.ValueOf(m.root, valuesKey), k.Value)
		if definition != nil && definition.Tag == "!!null" { // a name alone is a text
			*definition = yaml.Node{
				Kind: yaml.MappingNode, Tag: "!!map", Line: definition.Line, Column: definition.Column,
			}
		}
		switch {
		case definition == nil:
			m.AddKey(document.Join(at, k.Value), "the manifest has no value of this name; define it under values")
		case v.Kind != yaml.ScalarNode:
			m.Add(document.Join(at, k.Value), "want one value; its definition is under values of the manifest")
		case definition.Kind == yaml.MappingNode:
			document.Remove(definition, "required")
			document.Remove(definition, "example")
			name := *k
			name.Value, name.Tag, name.Style = "default", "!!str", 0
			document.Set(definition, &name, v)
		}
	}
}

// leaveOut removes what without names.
func (m *merge) leaveOut(without *yaml.Node) {
	if without == nil {
		return
	}
	at := m.below(withoutKey)
	if without.Kind != yaml.MappingNode {
		m.Add(at, "want lists of items, such as {images: [nginx:1.29]}")
		return
	}
	for k, v := range document.Pairs(without) {
		path := document.Join(at, k.Value)
		if !slices.Contains(m.known.Without, k.Value) {
			m.AddKey(path, "nothing of this kind can be left out; known: %s", strings.Join(m.known.Without, ", "))
			continue
		}
		if v.Kind != yaml.SequenceNode {
			m.Add(path, "want a list")
			continue
		}
		for i, one := range v.Content {
			if !m.leaveOutOne(k.Value, one.Value) {
				m.Add(document.Index(path, i), "%s has no %s under %s, so %s cannot leave it out", m.under,
					document.Shorten(one.Value), k.Value, m.over)
			}
		}
	}
}

// leaveOutOne removes the items that a text names, and reports whether there were any.
func (m *merge) leaveOutOne(list, text string) bool {
	base := document.ValueOf(m.root, list)
	switch {
	case list == "clusters" && document.Text(m.root, "cluster") == text:
		document.Remove(m.root, "cluster")
		return true
	case list == groupsKey:
		if document.ValueOf(base, text) == nil {
			return false
		}
		document.Remove(base, text)
		return true
	case base == nil:
		return false
	}
	n, id := len(base.Content), identities()[list]
	base.Content = slices.DeleteFunc(base.Content, func(one *yaml.Node) bool { return id(one) == named(list, text) })
	return len(base.Content) < n
}

// identities returns how items of a list are told apart, by the key of the list.
func identities() map[string]func(*yaml.Node) string {
	return map[string]func(*yaml.Node) string{
		"images": func(n *yaml.Node) string {
			text := cmp.Or(document.Text(n, "name"), n.Value)
			name, err := scalar.ImageName(text)
			if err != nil {
				return text
			}
			base, _, pinned := strings.Cut(name, "@")
			if pinned && strings.LastIndexByte(base, ':') > strings.LastIndexByte(base, '/') {
				return base
			}
			return name
		},
		"charts": func(n *yaml.Node) string {
			return cmp.Or(document.Text(n, "name"), document.Text(n, "url"), document.Text(n, "path"))
		},
		"manifests": func(n *yaml.Node) string { return cmp.Or(document.Text(n, "path"), n.Value) },
		"files":     func(n *yaml.Node) string { return document.Text(n, "name") },
		"git": func(n *yaml.Node) string {
			address := strings.TrimRight(cmp.Or(document.Text(n, "url"), n.Value), "/")
			last := address[strings.LastIndexByte(address, '/')+1:]
			return cmp.Or(document.Text(n, "name"), strings.TrimSuffix(last, ".git"))
		},
		"deploy": func(n *yaml.Node) string {
			return cmp.Or(document.Text(n, "namespace"), "default") + "/" +
				cmp.Or(document.Text(n, "release"), document.Text(n, "chart"))
		},
		"packages": func(n *yaml.Node) string { return document.Text(n, "distribution") },
		"clusters": func(n *yaml.Node) string { return n.Value },
		"sources":  func(n *yaml.Node) string { return cmp.Or(document.Text(n, "host"), document.Text(n, "directory")) },
		"overrides": func(n *yaml.Node) string {
			return cmp.Or(document.Text(n, "url"), document.Text(n, "host")+" "+document.Text(n, "path"))
		},
		"imageRules":    func(n *yaml.Node) string { return document.Text(n, "kind") + " " + document.Text(n, "apiVersion") },
		"excludeImages": func(n *yaml.Node) string { return n.Value },
	}
}

// named returns the identity of an item that a text under without names.
func named(list, text string) string {
	switch {
	case list == "images":
		return identities()[list](&yaml.Node{Kind: yaml.ScalarNode, Value: text})
	case list == "deploy" && !strings.Contains(text, "/"):
		return "default/" + text
	}
	return text
}
