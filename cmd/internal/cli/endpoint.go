package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/installer/rotate"
)

func newEndpointCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "endpoint",
		Short: "Move the API server's address of a running cluster",
		Args:  takes(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEndpointMoveCmd(g))
	return cmd
}

type endpointMoveOptions struct {
	site.Flags
	rulesFlag
	dryRun, force, yes bool
}

func newEndpointMoveCmd(g *globals) *cobra.Command {
	var o endpointMoveOptions
	cmd := &cobra.Command{
		Use:   "move -i INVENTORY BUNDLE",
		Short: "Move a cluster to the control plane endpoint of the cluster file",
		Long: `Moves a running cluster to another controlPlaneEndpoint, such as from the address of its only control plane to
haproxy or kube-vip, so that control planes can be added. Give the cluster file with the new endpoint (in the bundle
or with -c); the bundle has the images.

The old endpoint serves until every client uses the new one; pods run on, kubelets restart one after the other. All
nodes must be reachable and ready. After an interruption, the same command continues. Guide:
docs/site/control-planes.md.`,
		Example: "  kkbundle endpoint move -i inventory.yaml -c cluster.yaml site-1.5.0.kkb",
		Args:    takes("BUNDLE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runEndpointMove(cmd.Context(), g, args[0], o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	o.rulesFlag.add(f)
	g.addAccept(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes with reasons, and make none")
	f.BoolVar(&o.force, "force", false, "continue if the precheck blocks")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func runEndpointMove(ctx context.Context, g *globals, path string, o endpointMoveOptions) (err error) {
	rules, err := o.rulesFlag.read()
	if err != nil {
		return err
	}
	g.trust.unrecorded = o.dryRun
	s, err := g.openAcceptedSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Rules, options.Judged = rules, p.Judged
	options.DryRun, options.Force, options.Progress = o.dryRun, o.force, p.Event
	agreed := false
	report, err := rotate.MoveEndpoint(ctx, options, func(plan []string) error {
		agreed = true
		return g.agree(p, plan, "Move it?", o.yes || o.dryRun)
	})
	p.Close()
	if err != nil {
		return err
	}
	if !agreed {
		g.Note("the cluster has this endpoint")
	}
	if o.dryRun {
		p.WouldChange()
	}
	return g.nodesDone(report)
}
