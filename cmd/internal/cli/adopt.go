package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/adopt"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

type adoptOptions struct {
	site.Flags
	host, dir string
}

func newAdoptCmd(g *globals) *cobra.Command {
	o := adoptOptions{Flags: site.Flags{ClusterOptional: true}}
	cmd := &cobra.Command{
		Use:   "adopt {-i INVENTORY | --host CONTROL_PLANE} -o DIR",
		Short: "Describe a cluster that another tool made with kubeadm",
		Long: `Writes cluster.yaml and inventory.yaml for a running cluster that kubeadm made, by hand, by KubeKey or by Kubespray, and
prints a report: what fits kkbundle, what an install or upgrade with these files would change, and what kkbundle
cannot look after, with the way round. Nothing is changed on hosts or in the cluster; the helper is removed again.

Taking a cluster over is not there yet: this version reads only. Its nodes do not become kkbundle's, and install,
upgrade and nodes refuse them. The files serve to plan, to build a bundle, and to see what would happen.

--host names one control plane as [user@]host[:port]; the other nodes are those of the cluster, with the same login.
With -i, the inventory's hosts have the names of their nodes, and keep their logins. Every node must answer.

Refused, with the place and the remedy: a cluster in the middle of an upgrade, ended certificates, kubelets beyond the
version skew, an even number of etcd members, an unknown layout. Guide: docs/day-two/adopt.md.`,
		Annotations: exitCodesOf("Exit codes: 0 described; 12 the cluster is in no state for it; 13 a node is unreachable."),
		Example: `  kkbundle adopt --host root@10.0.0.11 -o site
  kkbundle adopt -i inventory.yaml -o site
  kkbundle adopt -i inventory.yaml -o site --json > report.json`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runAdopt(cmd.Context(), g, o) },
	}
	f := cmd.Flags()
	o.Flags.AddHosts(f)
	f.StringVar(&o.host, "host", "", "one control plane, as `[user@]host[:port]`, instead of an inventory")
	f.StringVarP(&o.dir, "output", "o", "", "the `directory` to write to; created if missing (required)")
	return cmd
}

func runAdopt(ctx context.Context, g *globals, o adoptOptions) (err error) {
	switch {
	case (o.host == "") == (o.InventoryFile == ""):
		return usage.Errorf("name the hosts with -i INVENTORY, or one control plane with --host, and not both")
	case o.dir == "":
		return usage.Errorf("name the directory to write to with -o DIR")
	}
	// The settings of other programs may have secrets that adopt does not know as such.
	const mode = 0o600
	files := newFiles{
		{path: filepath.Join(o.dir, adopt.ClusterFile), mode: mode},
		{path: filepath.Join(o.dir, adopt.InventoryFile), mode: mode},
	}
	if taken := files.taken(); len(taken) > 0 {
		return usage.Errorf("%s exists: name another directory with -o", plain.Line(taken[0]))
	}
	if o.host != "" {
		if o.Given, err = adopt.Start(o.host); err != nil {
			return usage.Errorf("--host %s: %w", plain.Line(o.host), err)
		}
	}
	s, err := g.openSite(ctx, o.Flags, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	options := s.Options()
	// A look needs a directory, and leaves nothing in it.
	if options.WorkDir, err = os.MkdirTemp("", "kkbundle-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(options.WorkDir)) }()
	d, err := describe(ctx, g, options, o.host != "")
	if err != nil {
		return err
	}
	d.Report.Files = files.paths()
	if err := fillAdopted(files, d); err != nil {
		return err
	}
	if err := files.write(); err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(d.Report)
	}
	if err := d.Report.WriteText(g.Out); err != nil {
		return err
	}
	g.Note("wrote %s and %s; nothing was changed on the hosts", plain.Line(files[0].path), plain.Line(files[1].path))
	return nil
}

// describe reads the cluster and describes it. With find, the inventory has one control plane, and the cluster's nodes
// are read in its place.
func describe(ctx context.Context, g *globals, o engine.Options, find bool) (*adopt.Description, error) {
	e, err := adopt.Look(ctx, o)
	if err == nil && find {
		o.Inventory, err = adopt.Extend(o.Inventory, e)
		if err != nil {
			return nil, &builder.InputError{Err: err}
		}
		g.Note("the cluster has %s", plain.Count(len(o.Inventory.HostSpecs), "node"))
		e, err = adopt.Look(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	return adopt.Describe(e, o.Inventory)
}

// fillAdopted sets the content of the cluster file and of the inventory, which can be read back.
func fillAdopted(files newFiles, d *adopt.Description) (err error) {
	const comment = "Written by kkbundle adopt from a running cluster. Not copied: logins, keys, variables of pods."
	for i, v := range []any{d.Cluster, d.Inventory} {
		if files[i].data, err = commentedYAML(comment, v); err != nil {
			return err
		}
	}
	_, err = manifest.ParseInventory(files[1].path, files[1].data)
	return err
}
