package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/adopt"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

type adoptOptions struct {
	site.Flags
	host, dir string
	yes, undo bool
}

func newAdoptCmd(g *globals) *cobra.Command {
	o := adoptOptions{Flags: site.Flags{ClusterOptional: true}}
	cmd := &cobra.Command{
		Use:   "adopt -o DIR [-i INVENTORY | --host CONTROL_PLANE] [--yes | --undo]",
		Short: "Take over a cluster that another tool made with kubeadm",
		Long: `Describes a running cluster that kubeadm made, by hand, by KubeKey or by Kubespray: writes cluster.yaml and
inventory.yaml, and prints a report of what fits kkbundle, what an install or upgrade with these files would change,
and what kkbundle cannot look after, with the way round. Nothing is changed on hosts or in the cluster.

--yes then makes the hosts nodes of kkbundle. It copies what an upgrade will replace, records the cluster on each node,
and changes nothing that runs. Files that are in DIR already, corrected by you, are used as they are, if they say what
the cluster is. After that, status, certs, etcd, nodes add and upgrade work with these files; the first upgrade, also
at the same release, moves the nodes to kkbundle's programs one by one.

--undo gives the cluster back as long as kkbundle has replaced nothing on its nodes: the record and the copies are
removed. Nodes that kkbundle has added are deleted before.

--host names one control plane as [user@]host[:port]; the other nodes are those of the cluster, with the same login.
With -i, the inventory's hosts have the names of their nodes, and keep their logins. Every node must answer.

Refused, with the place and the remedy: a cluster in the middle of an upgrade, ended certificates, kubelets beyond the
version skew, an even number of etcd members, an unknown layout. Guide: docs/day-two/adopt.md.`,
		Annotations: exitCodesOf(
			"Exit codes: 0 done; 12 the cluster is in no state for it; 13 a node is unreachable; 17 another run is at it."),
		Example: `  kkbundle adopt --host root@10.0.0.11 -o site     # describe
  kkbundle adopt -o site --yes                     # take it over as the files in site say
  kkbundle status -i site/inventory.yaml -c site/cluster.yaml
  kkbundle adopt -o site --undo                    # give it back`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runAdopt(cmd.Context(), g, o) },
	}
	f := cmd.Flags()
	o.Flags.AddHosts(f)
	f.StringVar(&o.host, "host", "", "one control plane, as `[user@]host[:port]`, instead of an inventory")
	f.StringVarP(&o.dir, "output", "o", "", "the `directory` of cluster.yaml and inventory.yaml; created if missing (required)")
	f.BoolVarP(&o.yes, "yes", "y", false, "take the cluster over; with --undo: do not ask")
	f.BoolVar(&o.undo, "undo", false, "give an adopted cluster back")
	return cmd
}

func runAdopt(ctx context.Context, g *globals, o adoptOptions) error {
	if o.dir == "" {
		return usage.Errorf("name the directory of the cluster's files with -o DIR")
	}
	// The settings of other programs may have secrets that adopt does not know as such.
	const mode = 0o600
	files := newFiles{
		{path: filepath.Join(o.dir, adopt.ClusterFile), mode: mode},
		{path: filepath.Join(o.dir, adopt.InventoryFile), mode: mode},
	}
	named := o.host != "" || o.InventoryFile != ""
	switch taken := files.taken(); {
	case o.undo && named:
		return usage.Errorf("--undo takes the cluster's files from -o DIR, without -i and --host")
	case o.undo && len(taken) < len(files):
		return usage.Errorf("%s has no %s and %s: name the directory of the adoption with -o", plain.Line(o.dir),
			adopt.ClusterFile, adopt.InventoryFile)
	case o.undo:
		return giveBack(ctx, g, o, files)
	case o.yes && len(taken) == len(files) && !named:
		return takeOver(ctx, g, o, files)
	case len(taken) > 0 && o.yes:
		return usage.Errorf("%s exists: to take the cluster over as the files in %s say, which are %s and %s, leave out -i and --host",
			plain.Line(taken[0]), plain.Line(o.dir), adopt.ClusterFile, adopt.InventoryFile)
	case len(taken) > 0:
		return usage.Errorf("%s exists: name another directory with -o, or take the cluster over as it says with --yes",
			plain.Line(taken[0]))
	case (o.host == "") == (o.InventoryFile == ""):
		return usage.Errorf("name the hosts with -i INVENTORY, or one control plane with --host, and not both")
	}
	if err := writeDescription(ctx, g, o, files); err != nil || !o.yes {
		return err
	}
	return takeOver(ctx, g, o, files)
}

// writeDescription describes the cluster and writes its files.
func writeDescription(ctx context.Context, g *globals, o adoptOptions, files newFiles) (err error) {
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
	d, err := describe(ctx, g, s.Options(), o.host != "")
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
	g.Note("wrote %s and %s", plain.Line(files[0].path), plain.Line(files[1].path))
	if !o.yes {
		g.Note("nothing was changed on the hosts; kkbundle adopt -o %s --yes takes the cluster over", plain.Line(o.dir))
	}
	return nil
}

// takeOver looks at the cluster of the files, and makes its hosts nodes of kkbundle.
func takeOver(ctx context.Context, g *globals, o adoptOptions, files newFiles) error {
	return onAdopted(ctx, g, o, files, func(s *site.Site, progress func(task.Event)) error {
		options := s.Options()
		d, err := describe(ctx, g, options, false)
		if err != nil {
			return err
		}
		options.Progress = progress
		if _, err = adopt.Take(ctx, options, d.Cluster); err != nil {
			return err
		}
		g.Note("%s of cluster %s taken over; kkbundle adopt -o %s --undo gives them back",
			plain.Count(len(d.Inventory.HostSpecs), "node"), s.Cluster.Metadata.Name, plain.Line(o.dir))
		return nil
	})
}

// giveBack undoes the adoption of the files' cluster.
func giveBack(ctx context.Context, g *globals, o adoptOptions, files newFiles) error {
	return onAdopted(ctx, g, o, files, func(s *site.Site, progress func(task.Event)) error {
		name := s.Cluster.Metadata.Name
		if !o.yes {
			question := fmt.Sprintf("Give cluster %s with %s back?", name, plain.Count(len(s.Inventory.Hosts()), "node"))
			if err := g.Confirm(question); err != nil {
				return err
			}
		}
		options := s.Options()
		options.Progress = progress
		if _, err := adopt.Undo(ctx, options); err != nil {
			return err
		}
		g.Note("cluster %s is given back; %s stays", name, plain.Line(o.dir))
		return nil
	})
}

// onAdopted opens the site of the files and does something that reports its progress.
func onAdopted(ctx context.Context, g *globals, o adoptOptions, files newFiles,
	do func(s *site.Site, progress func(task.Event)) error,
) (err error) {
	o.ClusterFile, o.InventoryFile, o.Given = files[0].path, files[1].path, nil
	s, err := g.openSite(ctx, o.Flags, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	defer p.Close()
	return do(s, p.Event)
}

// describe reads the cluster and describes it. With find, the inventory has one control plane, and the cluster's nodes
// are read in its place.
func describe(ctx context.Context, g *globals, o engine.Options, find bool) (_ *adopt.Description, err error) {
	// A look needs a directory, and leaves nothing in it.
	if o.WorkDir, err = os.MkdirTemp("", "kkbundle-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.WorkDir)) }()
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
