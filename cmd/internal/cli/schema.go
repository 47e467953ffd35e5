package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/manifest"
)

func newSchemaCmd(g *globals) *cobra.Command {
	const facts = "facts"
	kinds := append(manifest.Kinds(), facts)
	return &cobra.Command{
		Use:       "schema " + strings.Join(kinds, "|"),
		Short:     "Print the JSON Schema of a file that users write, or of what precheck records of hosts (facts)",
		Example:   "  kkbundle schema Bundle > bundle.schema.json",
		ValidArgs: kinds,
		Args:      takes("KIND"),
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == facts {
				_, err := g.Out.Write(node.FactsSchema())
				return err
			}
			b, err := manifest.Schema(args[0])
			if err != nil {
				return &usageError{err}
			}
			_, err = fmt.Fprintln(g.Out, string(b))
			return err
		},
	}
}
