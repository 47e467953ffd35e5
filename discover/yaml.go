package discover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
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

var errTooManyValues = fmt.Errorf(
	"%w: a document has more than %d values, repeated ones included, or is nested more than %d deep", ErrTooLarge,
	maxValues, maxNesting)

// number is a non-string scalar as written: versions such as 1.10 keep their zeros.
type number string

// parse reads a document, which may hold several: other line breaks than those of SplitObjects begin one in YAML. It
// returns none for an empty one.
func parse(doc document.ObjectText) ([]any, error) {
	if len(doc.Text) > maxDocument || separators(doc.Text) > maxValues {
		return nil, fmt.Errorf("%w: a document has more than %d bytes or %d values", ErrTooLarge, maxDocument,
			maxValues)
	}
	c := converter{left: maxValues}
	if doc.JSON {
		v, err := c.json(doc.Text)
		return []any{v}, err
	}
	var all []any
	decoder := yaml.NewDecoder(bytes.NewReader(doc.Text))
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if node.Kind != yaml.DocumentNode || len(node.Content) != 1 {
			continue
		}
		v, err := c.value(node.Content[0], 0)
		if err != nil {
			return all, err
		}
		if v != nil {
			all = append(all, v)
		}
	}
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
		return nil, errTooManyValues
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

// json reads a JSON object. JSON is not quite YAML: its texts may have pairs of escapes for one character, and tabs
// may indent it.
func (c *converter) json(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, err
	}
	return c.plain(v, 0)
}

// plain converts what encoding/json reads.
func (c *converter) plain(v any, depth int) (any, error) {
	if c.left--; c.left < 0 || depth > maxNesting {
		return nil, errTooManyValues
	}
	var err error
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			if v[key], err = c.plain(v[key], depth+1); err != nil {
				return nil, err
			}
		}
		return v, nil
	case []any:
		for i := range v {
			if v[i], err = c.plain(v[i], depth+1); err != nil {
				return nil, err
			}
		}
		return v, nil
	case json.Number:
		return number(v), nil
	case bool:
		return number(strconv.FormatBool(v)), nil
	}
	return v, nil
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
