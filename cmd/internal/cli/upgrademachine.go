package cli

import (
	"context"
	"errors"
	"path"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/upgrade"
)

type upgradeMachineOptions struct {
	site.Flags
	owner, patches string
	check          bool
}

func newUpgradeMachineCmd(g *globals) *cobra.Command {
	var o upgradeMachineOptions
	cmd := &cobra.Command{
		Use:   "upgrade-machine -i INVENTORY HOST BUNDLE",
		Short: "Upgrade one machine of Cluster API in place",
		Long: `Brings a host that provision has made a node to the bundle's release of Kubernetes in place: kubeadm upgrade node, the
container runtime, then the kubelet. It is for controllers, which drain the node before, and upgrade control planes
before workers; kkbundle upgrade does all of that for clusters of kkbundle install.

A host without the mark of --owner is refused, and so is one that would skip a minor release, a control plane whose
cluster has another version in kubeadm-config, and a worker whose API server is older. The same command again continues.
--check ends before any change: a controller knows before the drain whether the host is reached and not refused.

Guide: docs/site/capkk.md.`,
		Example: `  kkbundle upgrade-machine -i inventory.yaml --owner site/prod/prod-md-0-x7k2p node1 site-1.5.0.kkb`,
		Args:    takes("HOST", "BUNDLE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runUpgradeMachine(cmd.Context(), g, args, o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addAccept(f)
	f.StringVar(&o.owner, "owner", "", "refuse a host that is not this `machine` of Cluster API, NAMESPACE/CLUSTER/MACHINE")
	f.StringVar(&o.patches, "patches", "", "`directory` on the host with kubeadm's patches")
	f.BoolVar(&o.check, "check", false, "only tell whether the host may be upgraded; it stays as it is")
	return cmd
}

func runUpgradeMachine(ctx context.Context, g *globals, args []string, o upgradeMachineOptions) (err error) {
	owner, err := parseOwner(o.owner)
	if err != nil {
		return err
	}
	if o.patches != "" && !path.IsAbs(o.patches) {
		return usage.Errorf("--patches %s: want an absolute path of the host", o.patches)
	}
	s, err := g.openAcceptedSite(ctx, o.Flags, args[1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Progress, options.Owner = p.Event, owner
	var report engine.Report
	if o.check {
		report, err = upgrade.CheckMachine(ctx, options, args[0])
	} else {
		report, err = upgrade.Machine(ctx, options, args[0], o.patches)
	}
	p.Close()
	if err != nil {
		return err
	}
	g.NoteOutcome(report, false)
	return nil
}
