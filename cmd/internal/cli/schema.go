package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/manifest"
)

func newSchemaCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:       "schema " + strings.Join(manifest.Kinds(), "|"),
		Short:     "Print the JSON Schema of a file that users write",
		Example:   "  kkbundle schema Bundle > bundle.schema.json",
		ValidArgs: manifest.Kinds(),
		Args:      takes("KIND"),
		RunE: func(_ *cobra.Command, args []string) error {
			b, err := manifest.Schema(args[0])
			if err != nil {
				return &usageError{err}
			}
			_, err = fmt.Fprintln(g.Out, string(b))
			return err
		},
	}
}
