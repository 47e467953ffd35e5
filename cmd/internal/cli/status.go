package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/health"
)

type statusOptions struct {
	site.Flags
	output string
}

func newStatusCmd(g *globals) *cobra.Command {
	o := statusOptions{Flags: site.Flags{ClusterOptional: true}}
	cmd := &cobra.Command{
		Use:   "status -i INVENTORY [BUNDLE]",
		Short: "Show the nodes, health and certificates of a cluster",
		Long: `Prints the state of hosts and cluster: nodes and their versions, etcd, expiry of certificates, the last run from this work directory, and
each problem with reason and remedy. Changes nothing.

With a cluster file, given or in the bundle, versions are compared with it.

Exit codes: 0 healthy, possibly with warnings; 23 a check failed or a host is unreachable.`,
		Example: `  kkbundle status -i inventory.yaml
  kkbundle status -i inventory.yaml -o json site-1.4.0.kkb`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runStatus(cmd.Context(), g, first(args), o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.StringVarP(&o.output, "output", "o", showTable, "table or json")
	return cmd
}

func runStatus(ctx context.Context, g *globals, path string, o statusOptions) (err error) {
	if g.JSON {
		o.output = showJSON
	}
	if o.output != showTable && o.output != showJSON {
		return usage.Errorf("-o %s: want table or json", o.output)
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	status, err := installer.Status(ctx, installer.StatusOptions{Options: s.Options(), AnyCluster: s.AnyCluster})
	if err != nil {
		return err
	}
	write := status.WriteTable
	if o.output == showJSON {
		write = status.WriteJSON
	}
	if err := write(g.Out); err != nil {
		return err
	}
	if !status.Healthy {
		return &health.UnhealthyError{Findings: status.Findings, Shown: o.output == showTable}
	}
	return nil
}
