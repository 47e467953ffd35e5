package cli

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/disk"
	"github.com/kkbundle/kkbundle/manifest"
)

//go:embed starters
var starters embed.FS

// newInitCmd returns a command that writes a template.
func newInitCmd(g *globals, name, what string) *cobra.Command {
	return &cobra.Command{
		Use:     "init [FILE]",
		Short:   "Write " + what + " as a starting point",
		Long:    "Writes " + what + " with the most common keys and comments, to edit: " + name + " by default. An existing file is never replaced.",
		Example: "  kkbundle " + parentOf(name) + " init",
		Args:    takes("[FILE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			file := slices.Concat(args, []string{name})[0]
			data, err := starters.ReadFile("starters/" + name)
			if err != nil {
				return err
			}
			if exists(file) {
				return fmt.Errorf("%s exists and is not replaced: name another file", file)
			}
			if err := disk.WriteFile(file, 0o644, bytes.NewReader(data)); err != nil {
				return err
			}
			g.Note("wrote %s; change it, then: kkbundle %s check %s", file, parentOf(name), file)
			return nil
		},
	}
}

func parentOf(starter string) string {
	if starter == bundle.DocumentCluster {
		return "config"
	}
	return "inventory"
}

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
	if gaps, ok := errors.AsType[manifest.Problems](err); ok {
		g.NoteProblems(gaps)
	}
}
