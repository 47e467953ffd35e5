package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
)

type resetOptions struct {
	site.Flags
	limit                  []string
	withData, foreign, yes bool
	dryRun                 bool
}

func newResetCmd(g *globals) *cobra.Command {
	var o resetOptions
	cmd := &cobra.Command{
		Use:   "reset -i INVENTORY [BUNDLE]",
		Short: "Remove the cluster and everything installed on the hosts",
		Long: `Removes the cluster and everything that install put on the hosts, and restores what it changed. What cannot be made again,
such as the registry's images, stays unless --with-data. A host that was never or only partly installed is no error.

With --limit only these hosts are reset, and the rest of the cluster is not told: to take nodes out of a cluster that goes
on, use kkbundle nodes delete.`,
		Example: `  kkbundle reset -i inventory.yaml site-1.4.0.kkb
  kkbundle reset -i inventory.yaml --foreign --limit node3 site-1.4.0.kkb`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runReset(cmd.Context(), g, first(args), o)
		},
	}
	o.Flags.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	cmd.Flags().BoolVar(&o.withData, "with-data", false, "remove what cannot be made again, too: the registry's images, volumes, backups of etcd")
	cmd.Flags().StringSliceVar(&o.limit, "limit", nil, "only these `hosts`")
	cmd.Flags().BoolVar(&o.foreign, "foreign", false, "take a cluster of kubeadm, k3s or RKE2 that kkbundle has not made off the hosts of --limit, too, with its data")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "look, and say what would be removed and why")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	return cmd
}

func runReset(ctx context.Context, g *globals, path string, o resetOptions) (err error) {
	if o.foreign && len(o.limit) == 0 {
		return usage.Errorf("--foreign wants the hosts by name, with --limit")
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if !o.yes && !o.dryRun {
		question := fmt.Sprintf("Remove cluster %s from %d hosts?", s.Cluster.Metadata.Name, len(s.Inventory.Hosts()))
		if len(o.limit) > 0 {
			question = fmt.Sprintf("Remove what is there of cluster %s from %s?", s.Cluster.Metadata.Name, strings.Join(o.limit, ", "))
		}
		if o.foreign {
			question = fmt.Sprintf("Remove whatever cluster there is, with its data, from %s?", strings.Join(o.limit, ", "))
		}
		if err := g.Confirm(question); err != nil {
			return err
		}
	}
	p := g.NewTaskPrinter()
	options := s.Options()
	options.WithData, options.Foreign, options.Limit = o.withData, o.foreign, o.limit
	options.DryRun, options.Progress = o.dryRun, p.Event
	err = installer.Reset(ctx, options)
	p.Close()
	if err == nil && p.Changed == 0 {
		g.Note("there is nothing of kkbundle's to remove")
	} else if err == nil && !o.dryRun {
		g.Note("%s is removed; what cannot be made again stays unless --with-data", s.Cluster.Metadata.Name)
	}
	return err
}
