package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/reset"
)

type resetOptions struct {
	site.Flags
	limit                  []string
	owner                  string
	withData, foreign, yes bool
	dryRun                 bool
}

func newResetCmd(g *globals) *cobra.Command {
	var o resetOptions
	cmd := &cobra.Command{
		Use:   "reset -i INVENTORY [BUNDLE]",
		Short: "Remove the cluster and everything installed on the hosts",
		Long: `Removes the cluster and everything that install added to the hosts, and restores changed settings. Data that cannot
be restored, such as the registry's images, stays unless --with-data. A host without an installation, or with a part
of one, is no error.

With --limit, only these hosts are reset, and the cluster is not informed: to remove nodes from a running cluster, use
kkbundle nodes delete.`,
		Example: `  kkbundle reset -i inventory.yaml site-1.4.0.kkb
  kkbundle reset -i inventory.yaml --foreign --limit node3 site-1.4.0.kkb`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runReset(cmd.Context(), g, first(args), o) },
	}
	o.Flags.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().BoolVar(&o.withData, "with-data", false, "also remove the registry's images, volumes and etcd backups")
	cmd.Flags().StringSliceVar(&o.limit, "limit", nil, "only these `hosts`")
	cmd.Flags().BoolVar(&o.foreign, "foreign", false,
		"also remove a cluster of kubeadm, k3s or RKE2 not installed by kkbundle, with its data, from the hosts of --limit")
	cmd.Flags().StringVar(&o.owner, "owner", "",
		"only if the host of --limit is this `machine` of Cluster API, NAMESPACE/CLUSTER/MACHINE, or is clean")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the removals with reasons, and make none")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func runReset(ctx context.Context, g *globals, path string, o resetOptions) (err error) {
	if o.foreign && len(o.limit) == 0 {
		return usage.Errorf("--foreign needs the names of the hosts, with --limit")
	}
	owner, err := parseOwner(o.owner)
	switch {
	case err != nil:
		return err
	case owner != "" && (len(o.limit) != 1 || o.foreign):
		return usage.Errorf("--owner needs --limit with one host, and excludes --foreign")
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if !o.yes && !o.dryRun {
		question := fmt.Sprintf("Remove cluster %s from %d hosts?", s.Cluster.Metadata.Name, len(s.Inventory.Hosts()))
		if len(o.limit) > 0 {
			question = fmt.Sprintf("Remove cluster %s from %s?", s.Cluster.Metadata.Name, strings.Join(o.limit, ", "))
		}
		if o.foreign {
			question = fmt.Sprintf("Remove any cluster, with its data, from %s?", strings.Join(o.limit, ", "))
		}
		if err := g.Confirm(question); err != nil {
			return err
		}
	}
	p := g.NewTaskPrinter()
	options := s.Options()
	options.WithData, options.Foreign, options.Limit, options.Owner = o.withData, o.foreign, o.limit, owner
	options.DryRun, options.Progress = o.dryRun, p.Event
	err = reset.Reset(ctx, options)
	p.Close()
	if err == nil && p.Changed == 0 {
		g.Note("nothing to remove")
	} else if err == nil && !o.dryRun {
		g.Note("%s is removed; data that cannot be restored stays unless --with-data", s.Cluster.Metadata.Name)
	}
	return err
}
