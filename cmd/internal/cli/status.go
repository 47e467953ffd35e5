package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/look"
	"github.com/kkbundle/kkbundle/installer/report"
)

type statusOptions struct {
	site.Flags
	output string
	wait   time.Duration
}

func newStatusCmd(g *globals) *cobra.Command {
	o := statusOptions{Flags: site.Flags{ClusterOptional: true}}
	cmd := &cobra.Command{
		Use:   "status -i INVENTORY [BUNDLE]",
		Short: "Show the nodes, health and certificates of a cluster",
		Long: `Prints the state of hosts and cluster: nodes and their versions, etcd, expiry of certificates, the last run from this
work directory, and each problem with reason and remedy. Changes nothing. With a cluster file, given or in the bundle,
versions are compared with it.

--wait repeats the look until nothing fails and no pod is starting, at most for the given time: use it after hosts
were restarted. Guide: docs/day-two/status.md.`,
		Annotations: exitCodesOf(
			"Exit codes: 0 healthy, possibly with warnings; 23 a check failed or a host is unreachable."),
		Example: `  kkbundle status -i inventory.yaml
  kkbundle status -i inventory.yaml -o json site-1.4.0.kkb
  kkbundle status -i inventory.yaml --wait 10m`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runStatus(cmd.Context(), g, first(args), o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.DurationVar(&o.wait, "wait", 0,
		"repeat the look for at most this time until the cluster is healthy and no pod of it is starting")
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
	if o.wait < 0 {
		return usage.Errorf("--wait %s: want a time above 0, 5m for example", o.wait)
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	status, err := look.Status(ctx, look.StatusOptions{
		Options: s.Options(), AnyCluster: s.AnyCluster, Wait: o.wait,
		Waiting: func(list report.Findings) { g.Note("waiting until the cluster is healthy: %s", list.Summary()) },
	})
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
