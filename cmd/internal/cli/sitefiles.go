package cli

import (
	"errors"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// Formats of show.
const (
	showTable = "table"
	showYAML  = "yaml"
	showJSON  = "json"
)

// showFormat returns -o; --json overrides it.
func (g *globals) showFormat(o string) (string, error) {
	switch {
	case g.JSON:
		return showJSON, nil
	case slices.Contains([]string{showTable, showYAML, showJSON}, o):
		return o, nil
	}
	return "", usage.Errorf("-o %s: want table, yaml or json", o)
}

// printYAML writes one document.
func (g *globals) printYAML(v any) error {
	e := yaml.NewEncoder(g.Out)
	e.SetIndent(2)
	return errors.Join(e.Encode(v), e.Close())
}

// checkResult is the JSON output of inventory check and config check.
type checkResult struct {
	Version int    `json:"version"` // 1
	File    string `json:"file"`
	Hosts   int    `json:"hosts,omitempty"`
}

// noteGaps prints features that install does not support yet.
func (g *globals) noteGaps(err error) {
	if gaps, ok := errors.AsType[document.Problems](err); ok {
		g.NoteProblems(gaps)
	}
}
