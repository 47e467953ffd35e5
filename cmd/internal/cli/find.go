package cli

import (
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/build"
)

func newFindCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:    build.FinderCommand,
		Short:  "Find images in a chart or in YAML, for another kkbundle",
		Hidden: true,
		Args:   takes(),
		RunE: func(*cobra.Command, []string) error {
			return build.RunFinder(g.In, g.Out)
		},
	}
}
