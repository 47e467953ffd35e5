package document

import (
	"iter"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Resolved returns the target of an alias, or the node itself, which may be nil.
func Resolved(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// Pairs returns the keys and values of a mapping, with the targets of aliases. Other nodes have none.
func Pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(k, v *yaml.Node) bool) {
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], Resolved(n.Content[i+1])) {
				return
			}
		}
	}
}

// ValueOf returns the value of a key of a mapping, nil if the mapping lacks it.
func ValueOf(n *yaml.Node, key string) *yaml.Node {
	for k, v := range Pairs(Resolved(n)) {
		if k.Value == key {
			return v
		}
	}
	return nil
}

// Text returns the text of the value of a key, "" if the mapping lacks it.
func Text(n *yaml.Node, key string) string {
	if v := ValueOf(n, key); v != nil {
		return v.Value
	}
	return ""
}

// Remove removes a key of a mapping.
func Remove(n *yaml.Node, key string) {
	if i := keyIndex(n, key); i >= 0 {
		n.Content = slices.Delete(n.Content, i, i+2)
	}
}

// Set replaces a key of a mapping and its value, or adds them at the end.
func Set(n, key, value *yaml.Node) {
	if i := keyIndex(n, key.Value); i >= 0 {
		n.Content[i], n.Content[i+1] = key, value
		return
	}
	n.Content = append(n.Content, key, value)
}

// keyIndex returns the index of the key in a mapping's Content, -1 if it is missing.
func keyIndex(n *yaml.Node, name string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return i
		}
	}
	return -1
}
