package cli

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck/render"
	"github.com/kkbundle/kkbundle/manifest"
)

func newSchemaCmd(g *globals) *cobra.Command {
	documents := map[string]func() []byte{"facts": node.FactsSchema, "precheck-report": render.Schema}
	kinds := append(manifest.Kinds(), slices.Sorted(maps.Keys(documents))...)
	cmd := &cobra.Command{
		Use:   "schema " + strings.Join(kinds, "|") + "|MANIFEST|BUNDLE",
		Short: "Print the JSON Schema of a file format",
		Long: "Prints the JSON Schema of a kind of file. Of a manifest or a bundle, prints that of a file with its values, for\n" +
			"--values. Guide: docs/build/values.md.",
		Example:   "  kkbundle schema Bundle > bundle.schema.json\n  kkbundle schema manifest.yaml > values.schema.json",
		ValidArgs: kinds,
		Args:      takes("KIND"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema := documents[args[0]]; schema != nil {
				_, err := g.Out.Write(schema())
				return err
			}
			if !slices.Contains(kinds, args[0]) && exists(args[0]) {
				t, err := g.tableOf(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				schema, err := t.Schema("values of " + filepath.Base(args[0]))
				if err != nil {
					return err
				}
				_, err = g.Out.Write(schema)
				return err
			}
			b, err := manifest.Schema(args[0])
			if err != nil {
				return &usage.Error{Err: err}
			}
			_, err = fmt.Fprintln(g.Out, string(b))
			return err
		},
	}
	g.addTrust(cmd.Flags())
	return cmd
}
