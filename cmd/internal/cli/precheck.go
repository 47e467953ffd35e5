package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/installer"
)

func newPrecheckCmd(g *globals) *cobra.Command {
	var o siteFlags
	cmd := &cobra.Command{
		Use:   "precheck -i INVENTORY [BUNDLE]",
		Short: "Tell what would make an install fail, and change nothing",
		Long: `Looks at every host and tells in one report what would make an install fail, why, and how to mend it. Nothing on the hosts is
changed: the helper that looks is removed again.`,
		Example: "  kkbundle precheck -i inventory.yaml site-1.4.0.kkb",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := ""
			if len(args) == 1 {
				path = args[0]
			}
			return runPrecheck(cmd.Context(), g, path, o)
		},
	}
	o.add(cmd.Flags())
	g.addTrust(cmd.Flags())
	return cmd
}

func runPrecheck(ctx context.Context, g *globals, path string, o siteFlags) (err error) {
	s, err := openSite(ctx, g, o, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	report, err := installer.Precheck(ctx, s.options())
	if err != nil {
		return err
	}
	if g.json {
		err = report.WriteJSON(g.Out)
	} else {
		err = report.WriteTable(g.Out)
	}
	return errors.Join(err, report.Err())
}
