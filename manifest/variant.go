package manifest

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// A Variant says how one of several bundles of a manifest differs from it. Its settings replace those of the manifest,
// an item with the identity of one of the manifest replaces that, other items are added, and Without leaves items out.
type Variant struct {
	Platforms      []string       `yaml:"platforms,omitempty" doc:"The platforms, instead of the manifest's."`
	PlatformPolicy PlatformPolicy `yaml:"platformPolicy,omitempty" enum:"strict,warn" doc:"Instead of the manifest's."`
	Referrers      ReferrerPolicy `yaml:"referrers,omitempty" enum:"all,signatures,none" doc:"Instead of the manifest's."`
	Indexes        IndexPolicy    `yaml:"indexes,omitempty" enum:"pinned,complete,selected" doc:"Instead of the manifest's."`
	Cluster        string         `yaml:"cluster,omitempty" local:"machine" doc:"Instead of the manifest's."`
	Clusters       []string       `yaml:"clusters,omitempty" local:"machine" doc:"Further cluster files."`
	// Values are those of the manifest's table.
	Values        map[string]document.Scalar `yaml:"values,omitempty" doc:"Values of the manifest's table, as their defaults in this variant."`
	Images        []Image                    `yaml:"images,omitempty" doc:"Images to add, or to replace by name with tag."`
	Charts        []Chart                    `yaml:"charts,omitempty" doc:"Charts to add, or to replace by name; without a name by url or path."`
	Manifests     []YAML                     `yaml:"manifests,omitempty" doc:"YAML to add, or to replace by path."`
	Files         []File                     `yaml:"files,omitempty" doc:"Files to add, or to replace by name."`
	Deploy        []Addon                    `yaml:"deploy,omitempty" doc:"Entries to add at the end, or to replace by namespace and release."`
	Packages      []PackageSet               `yaml:"packages,omitempty" doc:"Packages to add, or to replace by distribution."`
	Groups        map[string]Group           `yaml:"groups,omitempty" doc:"Groups to add, or to replace by name."`
	Sources       []sources.Source           `yaml:"sources,omitempty" doc:"Sources to add, or to replace by host or directory."`
	Overrides     []Override                 `yaml:"overrides,omitempty" doc:"Overrides to add, or to replace by url, or by host and path."`
	Trust         ImageTrust                 `yaml:"trust,omitempty" doc:"Instead of the manifest's."`
	Zone          string                     `yaml:"zone,omitempty" doc:"Instead of the manifest's."`
	Kubernetes    Target                     `yaml:"kubernetes,omitempty" doc:"Instead of the manifest's."`
	ImageRules    []ImageRule                `yaml:"imageRules,omitempty" doc:"Rules to add, or to replace by kind and apiVersion."`
	ExcludeImages []string                   `yaml:"excludeImages,omitempty" doc:"Patterns to add."`
	Without       Without                    `yaml:"without,omitempty" doc:"What the variant leaves out."`
}

// Without names items of a manifest that a variant leaves out.
type Without struct {
	Images    []string `yaml:"images,omitempty" doc:"References."`
	Charts    []string `yaml:"charts,omitempty" doc:"Names; url or path of a chart without a name."`
	Manifests []string `yaml:"manifests,omitempty" doc:"Patterns, as the manifest writes them."`
	Files     []string `yaml:"files,omitempty" doc:"Names."`
	Deploy    []string `yaml:"deploy,omitempty" doc:"NAMESPACE/RELEASE; RELEASE alone is in namespace default."`
	Packages  []string `yaml:"packages,omitempty" doc:"Distributions."`
	Groups    []string `yaml:"groups,omitempty" doc:"Names."`
	Clusters  []string `yaml:"clusters,omitempty" doc:"Paths of cluster files, also of that under cluster."`
	Sources   []string `yaml:"sources,omitempty" doc:"Hosts or directories."`
}

const (
	variantsKey = "variants"
	withoutKey  = "without"
)

// VariantNames returns the names of a manifest's variants, in its order; none without variants. The error is Problems.
func VariantNames(file string, data []byte) ([]string, error) {
	src, err := document.Parse(file, data, formatOf(KindBundle).Limits)
	if err != nil {
		return nil, err
	}
	var names []string
	for key := range pairs(variantsOf(src)) {
		names = append(names, key.Value)
	}
	return names, nil
}

// variantsOf returns the variants of a manifest, nil without any.
func variantsOf(src *document.Tree) *yaml.Node {
	if !isBundle(src) {
		return nil
	}
	return target(src.Node(variantsKey))
}

// target returns the node that an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// pairs returns the keys and values of a mapping.
func pairs(n *yaml.Node) func(yield func(k, v *yaml.Node) bool) {
	return func(yield func(k, v *yaml.Node) bool) {
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], target(n.Content[i+1])) {
				return
			}
		}
	}
}

// valueOf returns the value of a key, nil if the mapping lacks it.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	for k, v := range pairs(target(n)) {
		if k.Value == key {
			return v
		}
	}
	return nil
}

func textOf(n *yaml.Node, key string) string {
	if v := valueOf(n, key); v != nil {
		return v.Value
	}
	return ""
}

// remove removes a key of a mapping.
func remove(n *yaml.Node, key string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			n.Content = slices.Delete(n.Content, i, i+2)
			return
		}
	}
}

// set replaces the value of a key, or adds it.
func set(n, key, value *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key.Value {
			n.Content[i], n.Content[i+1] = key, value
			return
		}
	}
	n.Content = append(n.Content, key, value)
}

// identities returns how items of a list are told apart, by the key of the list.
func identities() map[string]func(*yaml.Node) string {
	return map[string]func(*yaml.Node) string{
		"images": func(n *yaml.Node) string {
			text := cmp.Or(textOf(n, "name"), n.Value)
			name, err := scalar.ImageName(text)
			if err != nil {
				return text
			}
			if base, _, pinned := strings.Cut(name, "@"); pinned && strings.LastIndexByte(base, ':') > strings.LastIndexByte(base, '/') {
				return base
			}
			return name
		},
		"charts": func(n *yaml.Node) string {
			return cmp.Or(textOf(n, "name"), textOf(n, "url"), textOf(n, "path"))
		},
		"manifests": func(n *yaml.Node) string { return cmp.Or(textOf(n, "path"), n.Value) },
		"files":     func(n *yaml.Node) string { return textOf(n, "name") },
		"deploy": func(n *yaml.Node) string {
			return orDefault(textOf(n, "namespace"), "default") + "/" + cmp.Or(textOf(n, "release"), textOf(n, "chart"))
		},
		"packages":      func(n *yaml.Node) string { return textOf(n, "distribution") },
		"clusters":      func(n *yaml.Node) string { return n.Value },
		"sources":       func(n *yaml.Node) string { return cmp.Or(textOf(n, "host"), textOf(n, "directory")) },
		"overrides":     func(n *yaml.Node) string { return cmp.Or(textOf(n, "url"), textOf(n, "host")+" "+textOf(n, "path")) },
		"imageRules":    func(n *yaml.Node) string { return textOf(n, "kind") + " " + textOf(n, "apiVersion") },
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

// chooseVariant replaces the tree of a manifest by that of a variant, "" for the first. The tree keeps the places of
// the file. It returns the chosen name, "" for a manifest without variants.
func chooseVariant(src *document.Tree, name string) (string, error) {
	all := variantsOf(src)
	if all == nil {
		if name != "" {
			return "", &VariantError{Name: name}
		}
		return "", nil
	}
	c := checkerOf(src)
	var names []string
	if all.Kind != yaml.MappingNode || len(all.Content) == 0 {
		c.Add(variantsKey, "want a mapping from names to what differs, such as slim: {without: {images: [nginx:1.29]}}")
	}
	for k := range pairs(all) {
		if !document.IsName(k.Value, false) {
			c.AddKey(document.Join(variantsKey, k.Value), "%q is not a name; use lower case letters, digits and hyphens",
				document.Shorten(k.Value))
		}
		names = append(names, k.Value)
	}
	if err := c.Found.Err(); err != nil {
		return "", err
	}
	if name == "" {
		name = names[0]
	}
	chosen := valueOf(all, name)
	if chosen == nil {
		return "", &VariantError{Name: name, Known: names}
	}
	m := &variantMerge{checker: c, name: name, at: document.Join(variantsKey, name)}
	root, err := m.clone(target(src.Root))
	if err != nil {
		return "", err
	}
	if m.variant, err = m.clone(chosen); err != nil {
		return "", err
	}
	m.root = root
	remove(root, variantsKey)
	m.merge()
	if err := c.Found.Err(); err != nil {
		return "", err
	}
	src.Root = root
	return name, nil
}

// A VariantError means that a manifest lacks a variant.
type VariantError struct {
	Name  string
	Known []string
}

// Error lists the variants that there are.
func (e *VariantError) Error() string {
	if len(e.Known) == 0 {
		return "there is no variant " + document.Shorten(e.Name) + ": the manifest has no variants"
	}
	return "the manifest has no variant " + document.Shorten(e.Name) + "; its variants are " + strings.Join(e.Known, ", ")
}

// A variantMerge merges a variant into the tree of its manifest.
type variantMerge struct {
	*checker
	name, at      string
	root, variant *yaml.Node
	values        int // nodes that were copied
}

// clone copies a node with the content of its aliases: what an anchor is at may be left out.
func (m *variantMerge) clone(n *yaml.Node) (*yaml.Node, error) {
	return m.cloneBelow(n, 0)
}

func (m *variantMerge) cloneBelow(n *yaml.Node, depth int) (*yaml.Node, error) {
	const maxDepth = 100
	n = target(n)
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
	return &own, nil
}

func (m *variantMerge) below(key string) string { return document.Join(m.at, key) }

// merge applies the keys of the variant.
func (m *variantMerge) merge() {
	if m.variant.Tag == "!!null" {
		m.variant = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	if m.variant.Kind != yaml.MappingNode {
		m.Add(m.at, "want what differs from the manifest, such as {without: {images: [nginx:1.29]}}")
		return
	}
	var known []string
	for _, f := range document.Fields(reflect.TypeFor[Variant]()) {
		known = append(known, f.Name)
	}
	m.leaveOut(valueOf(m.variant, withoutKey))
	for i := 0; i+1 < len(m.variant.Content); i += 2 {
		k, v := m.variant.Content[i], m.variant.Content[i+1]
		_, list := identities()[k.Value]
		switch {
		case !slices.Contains(known, k.Value):
			m.AddKey(m.below(k.Value), "a variant has no such key; known: %s", strings.Join(known, ", "))
		case k.Value == withoutKey:
		case k.Value == valuesKey:
			m.giveValues(v)
		case list && v.Kind == yaml.SequenceNode:
			m.list(k, v)
		case k.Value == "groups" && v.Kind == yaml.MappingNode:
			m.mapping(k, v)
		default:
			set(m.root, k, v)
		}
	}
	m.rename()
}

// rename gives the bundle the name of the variant.
func (m *variantMerge) rename() {
	if name := valueOf(valueOf(m.root, "metadata"), "name"); name != nil && name.Kind == yaml.ScalarNode {
		name.Value += "-" + m.name
	}
}

// list merges a list of items.
func (m *variantMerge) list(key, items *yaml.Node) {
	id := identities()[key.Value]
	base := valueOf(m.root, key.Value)
	if base == nil || base.Kind != yaml.SequenceNode {
		base = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: key.Line, Column: key.Column}
		set(m.root, key, base)
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
		case twice:
			m.Add(path, "%s is there twice in variant %s, first on %s", document.Shorten(id(one)), m.name,
				m.Place(document.Index(m.below(key.Value), at)))
		case len(places) > 1:
			m.Add(path, "the manifest has %s several times, on lines %d and %d; leave them out with without, and name others",
				document.Shorten(id(one)), base.Content[places[0]].Line, base.Content[places[1]].Line)
		case len(places) == 1:
			base.Content[places[0]] = one
		default:
			base.Content = append(base.Content, one)
		}
	}
}

// mapping merges a mapping by its keys.
func (m *variantMerge) mapping(key, entries *yaml.Node) {
	base := valueOf(m.root, key.Value)
	if base == nil || base.Kind != yaml.MappingNode {
		set(m.root, key, entries)
		return
	}
	for k, v := range pairs(entries) {
		set(base, k, v)
	}
}

// giveValues makes the values of the variant the defaults of the table.
func (m *variantMerge) giveValues(given *yaml.Node) {
	at := m.below(valuesKey)
	if given.Kind != yaml.MappingNode {
		m.Add(at, "want a mapping from the names of values to values")
		return
	}
	for k, v := range pairs(given) {
		definition := valueOf(valueOf(m.root, valuesKey), k.Value)
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
			remove(definition, "required")
			remove(definition, "example")
			name := *k
			name.Value, name.Tag, name.Style = "default", "!!str", 0
			set(definition, &name, v)
		}
	}
}

// leaveOut removes what without names.
func (m *variantMerge) leaveOut(without *yaml.Node) {
	if without == nil {
		return
	}
	at := m.below(withoutKey)
	if without.Kind != yaml.MappingNode {
		m.Add(at, "want lists of items, such as {images: [nginx:1.29]}")
		return
	}
	var known []string
	for _, f := range document.Fields(reflect.TypeFor[Without]()) {
		known = append(known, f.Name)
	}
	for k, v := range pairs(without) {
		path := document.Join(at, k.Value)
		if !slices.Contains(known, k.Value) {
			m.AddKey(path, "nothing of this kind can be left out; known: %s", strings.Join(known, ", "))
			continue
		}
		if v.Kind != yaml.SequenceNode {
			m.Add(path, "want a list")
			continue
		}
		for i, one := range v.Content {
			if !m.leaveOutOne(k.Value, one.Value) {
				m.Add(document.Index(path, i), "the manifest has no %s under %s, so variant %s cannot leave it out",
					document.Shorten(one.Value), k.Value, m.name)
			}
		}
	}
}

// leaveOutOne removes the items that a text names, and reports whether there were any.
func (m *variantMerge) leaveOutOne(list, text string) bool {
	base := valueOf(m.root, list)
	switch {
	case list == "clusters" && textOf(m.root, "cluster") == text:
		remove(m.root, "cluster")
		return true
	case list == "groups":
		if valueOf(base, text) == nil {
			return false
		}
		remove(base, text)
		return true
	case base == nil:
		return false
	}
	n, id := len(base.Content), identities()[list]
	base.Content = slices.DeleteFunc(base.Content, func(one *yaml.Node) bool { return id(one) == named(list, text) })
	return len(base.Content) < n
}

// variantText returns the manifest of a variant as text, for its bundle: a manifest without variants.
func variantText(src *document.Tree, name string) ([]byte, error) {
	text, err := yaml.Marshal(src.Root)
	if err != nil {
		return nil, fmt.Errorf("variant %s: %w", name, err)
	}
	return append([]byte("# Variant "+name+" of a manifest, merged by kkbundle.\n"), text...), nil
}
