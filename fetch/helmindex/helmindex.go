// Package helmindex reads the versions of one chart out of the index of a Helm repository, which nobody has to trust:
// its memory does not depend on the other charts.
package helmindex

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

const (
	maxKey = 300 // bytes of a key in an error
	// maxWhole bounds an index in YAML, or one chart's part of it, to parse as a whole.
	maxWhole = 8 << 20
	// maxNodes bounds the nodes of YAML to parse, some 300 bytes of memory each.
	maxNodes = 1 << 19
)

// A Version is an entry of a Helm repository's index.
type Version struct {
	Version string   `json:"version"`
	URLs    []string `json:"urls"`
	Digest  string   `json:"digest"`
}

// Parse returns the entries of one chart.
func Parse(index []byte, chart string) ([]Version, error) {
	if trimmed := bytes.TrimSpace(index); len(trimmed) > 0 && trimmed[0] == '{' {
		versions, err := parseJSON(trimmed, chart)
		if err != nil {
			return nil, fmt.Errorf("not an index of charts: %w", err)
		}
		return versions, nil
	}
	if part, ok := section(index, chart); ok && len(part) <= maxWhole && nodes(part) <= maxNodes {
		if entries, err := parseYAML(part); err == nil {
			return yamlVersions(entries, chart)
		}
	}
	if len(index) > maxWhole {
		return nil, fmt.Errorf("chart %s was not found in an index of %d bytes, or has more than %d bytes there", chart,
			len(index), maxWhole)
	}
	if n := nodes(index); n > maxNodes {
		return nil, fmt.Errorf("chart %s was not found in an index of about %d values, or has more than %d there",
			chart, n, maxNodes)
	}
	doc, err := parseYAML(index)
	if err != nil {
		return nil, fmt.Errorf("not an index of charts: %w", err)
	}
	entries, err := yamlField(doc, "entries")
	if err == nil && entries == nil {
		err = errors.New("it has no entries")
	}
	if err != nil {
		return nil, fmt.Errorf("not an index of charts: %w", err)
	}
	return yamlVersions(entries, chart)
}

// section cuts the lines of one chart out of an index in Helm's layout, so that an index of thousands of charts
// need not be parsed. It returns false for another layout.
func section(index []byte, chart string) ([]byte, bool) {
	inEntries, start, indent, offset := false, -1, 0, 0
	for line := range bytes.Lines(index) {
		begin := offset
		offset += len(line)
		text := bytes.TrimRight(line, " \t\r\n")
		spaces := len(text) - len(bytes.TrimLeft(text, " "))
		switch {
		case len(text) == 0 || text[spaces] == '#':
		case start >= 0:
			if spaces < indent || spaces == indent && text[spaces] != '-' {
				return index[start:begin], true
			}
		case !inEntries:
			inEntries = string(text) == "entries:"
		case spaces == 0 && text[0] != '-':
			return nil, false // end of the entries
		case indent == 0 || spaces == indent:
			indent = spaces
			if key, ok := bytes.CutSuffix(text[spaces:], []byte(":")); ok && strings.Trim(string(key), `"'`) == chart &&
				indent > 0 {
				start = begin
			}
		}
	}
	if start >= 0 {
		return index[start:], true
	}
	return nil, false
}
