package cli

import (
	"fmt"
	"maps"
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
	return &cobra.Command{
		Use:       "schema " + strings.Join(kinds, "|"),
		Short:     "Print the JSON Schema of a file format",
		Example:   "  kkbundle schema Bundle > bundle.schema.json",
		ValidArgs: kinds,
		Args:      takes("KIND"),
		RunE: func(_ *cobra.Command, args []string) error {
			if schema := documents[args[0]]; schema != nil {
				_, err := g.Out.Write(schema())
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
}
