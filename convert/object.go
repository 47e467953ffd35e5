package convert

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// An object is a YAML mapping in which every key is either read or, by rest, noted as not carried over.
type object struct {
	f     *reader
	node  *yaml.Node
	path  string
	taken []string
}

// object returns a node as a mapping. Another node gives an empty object, and a note unless the node is missing.
func (f *reader) object(n *yaml.Node, at string) *object {
	n, merged := document.Merged(resolve(n))
	f.left -= merged
	if n != nil && n.Kind != yaml.MappingNode {
		if n.Tag != "!!null" {
			f.note(n, "%s is not a mapping and was left out", at)
		}
		n = nil
	}
	return &object{f: f, node: n, path: at}
}

// resolve follows an alias.
func resolve(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// take returns the value of a key, nil if it has none.
func (o *object) take(key string) *yaml.Node {
	o.taken = append(o.taken, key)
	if o.node == nil {
		return nil
	}
	for i := 0; i+1 < len(o.node.Content); i += 2 {
		o.f.left--
		if o.node.Content[i].Value == key {
			return resolve(o.node.Content[i+1])
		}
	}
	return nil
}

// text returns a scalar, "" if there is none. Another value is noted.
func (o *object) text(key string) string {
	n := o.take(key)
	if n == nil {
		return ""
	}
	return o.f.scalar(n, join(o.path, key))
}

// scalar returns the text of a node. Anything else is noted, and gives "".
func (f *reader) scalar(n *yaml.Node, at string) string {
	switch {
	case n.Kind != yaml.ScalarNode:
		f.once(n.Line, "%s was not carried over: it is no text", at)
		return ""
	case n.Tag == "!!null":
		return ""
	}
	return strings.TrimSpace(n.Value)
}

// yes reports whether a key is true.
func (o *object) yes(key string) bool { return o.text(key) == "true" }

// mapping returns the mapping under a key.
func (o *object) mapping(key string) *object { return o.f.object(o.take(key), join(o.path, key)) }

// list returns the entries of a sequence; a single value counts as a sequence of one.
func (o *object) list(key string) []*yaml.Node {
	n := o.take(key)
	if n == nil || n.Tag == "!!null" || o.f.left <= 0 {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return []*yaml.Node{n}
	}
	o.f.left -= len(n.Content)
	if o.f.left < 0 {
		return nil
	}
	all := make([]*yaml.Node, 0, len(n.Content))
	for _, one := range n.Content {
		all = append(all, resolve(one))
	}
	return all
}

// texts returns the scalars of a sequence. Other entries are noted.
func (o *object) texts(key string) []string {
	var all []string
	for _, n := range o.list(key) {
		if text := o.f.scalar(n, join(o.path, key)); text != "" {
			all = append(all, text)
		}
	}
	return all
}

// objects returns the mappings of a sequence.
func (o *object) objects(key string) []*object {
	var all []*object
	for _, n := range o.list(key) {
		all = append(all, o.f.object(n, join(o.path, key)))
	}
	return all
}

// drop reads a key without counterpart. If the key is there, a note explains why nothing is lost, or what to do.
func (o *object) drop(key, why string) {
	n := o.take(key)
	if n == nil || n.Tag == "!!null" || n.Value == "false" || n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		return
	}
	o.f.note(n, "%s was not carried over: %s", join(o.path, key), why)
}

// skip ignores keys that do not affect a bundle's content.
func (o *object) skip(keys ...string) { o.taken = append(o.taken, keys...) }

func (o *object) line() int { return lineOf(o.node) }

// rest notes every unread key.
func (o *object) rest() { o.restBecause("kkbundle has no equivalent, or does not know it") }

// restBecause notes every unread key, with the reason.
func (o *object) restBecause(why string) {
	if o.node == nil {
		return
	}
	for i := 0; i+1 < len(o.node.Content); i += 2 {
		key := o.node.Content[i]
		if !slices.Contains(o.taken, key.Value) {
			o.f.note(key, "%s was not carried over: %s", join(o.path, shorten(key.Value)), why)
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
