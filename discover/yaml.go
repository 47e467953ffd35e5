package discover

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of one parse. The largest CRDs have a few hundred KiB and 50,000 values.
const (
	maxDocument = 16 << 20 // bytes
	maxValues   = 500_000  // of a document, including repeats through aliases
	maxObjects  = 20_000   // of a source
	maxNesting  = 200
)

// ErrTooLarge means YAML is larger, deeper or more repetitive than Kubernetes accepts.
var ErrTooLarge = errors.New("larger than allowed")

// number is a non-string scalar as written: versions such as 1.10 keep their zeros.
type number string

// documents splits a stream of YAML at lines that begin with three hyphens, like Helm, so that one unreadable document
// does not hide the next.
func documents(data []byte) [][]byte {
	var docs [][]byte
	from := 0
	for at := 0; at < len(data); {
		end := bytes.IndexByte(data[at:], '\n')
		next := len(data)
		if end >= 0 {
			next = at + end + 1
		}
		if line := data[at:next]; bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || strings.ContainsRune(" \t\r\n", rune(line[3]))) {
			docs = append(docs, data[from:at])
			from = at
		}
		at = next
	}
	return append(docs, data[from:])
}

// parse reads one document. It returns nil for an empty one.
func parse(doc []byte) (any, error) {
	if len(doc) > maxDocument || separators(doc) > maxValues {
		return nil, fmt.Errorf("%w: a document has more than %d bytes or %d values", ErrTooLarge, maxDocument, maxValues)
	}
	var node yaml.Node
	if err := yaml.Unmarshal(doc, &node); err != nil {
		return nil, err
	}
	if node.Kind != yaml.DocumentNode || len(node.Content) != 1 {
		return nil, nil
	}
	c := converter{left: maxValues}
	return c.value(node.Content[0], 0)
}

// separators counts the characters that begin values, so that a few megabytes of commas do not become gigabytes of
// nodes.
func separators(doc []byte) int {
	n := 0
	for i, b := range doc {
		switch b {
		case ',', '[', '{', ':', '\n':
			n++
		case '-', '?':
			if i+1 < len(doc) && doc[i+1] == ' ' {
				n++
			}
		}
	}
	return n / 2 // a key and its value share a line
}

// converter turns nodes into Go values and counts them, including repeats through aliases.
type converter struct{ left int }

func (c *converter) value(n *yaml.Node, depth int) (any, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if c.left--; c.left < 0 || depth > maxNesting {
		return nil, fmt.Errorf("%w: a document has more than %d values, repeated ones included, or is nested more than %d deep", ErrTooLarge, maxValues, maxNesting)
	}
	switch n.Kind {
	case yaml.MappingNode:
		return c.mapping(n, depth)
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, one := range n.Content {
			v, err := c.value(one, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	switch n.Tag {
	case "!!null":
		return nil, nil
	case "!!str", "!!timestamp":
		return n.Value, nil
	}
	return number(n.Value), nil
}

// mapping merges the mappings named by << below the mapping's own keys, as in YAML 1.1.
func (c *converter) mapping(n *yaml.Node, depth int) (any, error) {
	m := make(map[string]any, len(n.Content)/2)
	var own []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		value, err := c.value(v, depth+1)
		if err != nil {
			return nil, err
		}
		if k.Tag == "!!merge" {
			below(m, value, own)
			continue
		}
		m[k.Value] = value
		own = append(own, k.Value)
	}
	return m, nil
}

func below(m map[string]any, value any, own []string) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	for i := len(list) - 1; i >= 0; i-- {
		from, _ := list[i].(map[string]any)
		for k, v := range from {
			if !slices.Contains(own, k) {
				m[k] = v
			}
		}
	}
}
