package helmindex

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// nodes estimates the nodes that a parser makes of YAML. A colon separates a key from its value.
func nodes(text []byte) int { return capped.Values(text) + bytes.Count(text, []byte(":")) }

// parseYAML returns the nodes of a document. The decoder into Go values is not used: it compares all keys of an
// object with each other and reports each pair of equal ones, so that a megabyte of equal keys takes gigabytes.
func parseYAML(text []byte) (*yaml.Node, error) {
	if !utf8.Valid(text) { // the estimate of nodes reads UTF-8
		return nil, errors.New("it is not UTF-8")
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("it is empty")
	}
	return doc.Content[0], nil
}

// yamlField returns the value of a key, nil if the object does not have it.
func yamlField(object *yaml.Node, key string) (value *yaml.Node, err error) {
	if object = target(object); object.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want an object", object.Line)
	}
	for i := 0; i+1 < len(object.Content); i += 2 {
		k := object.Content[i]
		if k.Kind != yaml.ScalarNode || k.Value != key {
			continue
		}
		if value != nil {
			return nil, fmt.Errorf("line %d: key %s occurs twice", k.Line,
				plain.Clip(strings.TrimSpace(plain.Line(key)), maxKey))
		}
		value = target(object.Content[i+1])
	}
	if value != nil && value.Tag == "!!null" {
		return nil, nil
	}
	return value, nil
}

// target returns the node that an alias names.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// yamlVersions returns the versions of one chart among the entries of an index.
func yamlVersions(entries *yaml.Node, chart string) ([]Version, error) {
	list, err := yamlField(entries, chart)
	if err != nil || list == nil {
		return nil, err
	}
	if list.Kind != yaml.SequenceNode || len(list.Content) > maxChartVersions {
		return nil, fmt.Errorf("line %d: want a list of at most %d versions", list.Line, maxChartVersions)
	}
	var versions []Version
	for _, n := range list.Content {
		if target(n).Tag == "!!null" { // Helm passes over empty entries
			continue
		}
		v, err := yamlVersion(n)
		if err != nil {
			return nil, err
		}
		versions = append(versions, v)
	}
	return versions, nil
}

func yamlVersion(n *yaml.Node) (v Version, err error) {
	for key, into := range map[string]*string{"version": &v.Version, "digest": &v.Digest} {
		value, err := yamlField(n, key)
		if err != nil {
			return v, err
		}
		if value != nil && value.Kind != yaml.ScalarNode {
			return v, fmt.Errorf("line %d: %s is not a text", value.Line, key)
		}
		if value != nil {
			*into = value.Value
		}
	}
	urls, err := yamlField(n, "urls")
	if err != nil || urls == nil {
		return v, err
	}
	if urls.Kind != yaml.SequenceNode {
		return v, fmt.Errorf("line %d: urls is not a list", urls.Line)
	}
	if len(urls.Content) > 0 { // the first one is used
		first := target(urls.Content[0])
		if first.Kind != yaml.ScalarNode {
			return v, fmt.Errorf("line %d: an address is not a text", first.Line)
		}
		v.URLs = []string{first.Value}
	}
	return v, nil
}
