package document

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// Merged returns a mapping with the keys that its merge keys (<<) bring, as YAML 1.1 and the tools of other formats
// read them: a key of its own wins, then the first of several mappings. The result is n itself if there is nothing to
// merge. A merge key whose value is no mapping stays. The number of keys that were looked at is returned, too: aliases
// can repeat keys without end, and the caller bounds them.
func Merged(n *yaml.Node) (merged *yaml.Node, keys int) {
	if n == nil || n.Kind != yaml.MappingNode || !slices.ContainsFunc(n.Content, isMerge) {
		return n, 0
	}
	m := merging{has: map[string]bool{}, seen: map[*yaml.Node]bool{}}
	m.add(n)
	c := *n
	c.Content = m.content
	return &c, m.keys
}

func isMerge(key *yaml.Node) bool { return key.Tag == "!!merge" }

// merging collects the keys of a mapping and of those that it merges, each mapping once.
type merging struct {
	has     map[string]bool
	seen    map[*yaml.Node]bool
	content []*yaml.Node
	keys    int
}

func (m *merging) add(n *yaml.Node) {
	if m.seen[n] {
		return
	}
	m.seen[n] = true
	var further []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		m.keys++
		key, value := n.Content[i], n.Content[i+1]
		if mappings := mergedBy(key, value); mappings != nil {
			further = append(further, mappings...)
			continue
		}
		if !m.has[key.Value] {
			m.has[key.Value] = true
			m.content = append(m.content, key, value)
		}
	}
	for _, one := range further {
		m.add(one)
	}
}

// mergedBy returns the mappings that a merge key names, nil for another key and for a value that is no mapping.
func mergedBy(key, value *yaml.Node) []*yaml.Node {
	if !isMerge(key) {
		return nil
	}
	list := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode {
		list = slices.Clone(value.Content)
	}
	for i, one := range list {
		if list[i] = Resolved(one); list[i].Kind != yaml.MappingNode {
			return nil
		}
	}
	return list
}
