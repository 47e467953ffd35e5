package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/handover"
	"github.com/kkbundle/kkbundle/internal/plain"
)

type handoverOptions struct {
	site.Flags
	handover.Target
	output string
	undo   bool
}

func newHandoverCmd(g *globals) *cobra.Command {
	var o handoverOptions
	cmd := &cobra.Command{
		Use:   "handover -i INVENTORY --namespace POOL -o FILE [BUNDLE]",
		Short: "Hand a cluster that install made over to Cluster API",
		Long: `Writes the objects by which a management cluster of Cluster API takes a running cluster over as it is: Secrets with its
authorities, a paused Cluster, a KubeadmControlPlane and a MachineDeployment that match what runs, and a Machine and a
KKHost for each node. Nothing is replaced or restarted. FILE has the keys of the cluster, and mode 0600.

Each host gets the mark of its machine (NAMESPACE/CLUSTER/HOST): from then on only that management cluster works on it,
and install, upgrade, nodes, provision and all that replaces authorities, secrets or the endpoint refuse it. --undo
takes the marks away again, while the Cluster is still paused.

The namespace has the KKBundle, and the Secrets of the registry, of the SSH login and, with --host-keys, of the hosts'
keys. Without, the keys that the hosts have are in FILE. Later machines pull from the registry of the cluster file, or
from that of --registry.

Refused, with the place and the remedy, before anything is written: k3s, etcd outside of kubeadm's static pods, the
endpoint type haproxy, Kubernetes before 1.31, an even number of control planes, a registry on a node, a bastion before
one, certificates for more than three years, cri.runtimeClasses that BUNDLE's cluster file lacks, nodes that are not
ready, not in the inventory, of another version, or another machine's. Guide: docs/site/capi.md.`,
		Annotations: exitCodesOf(
			"Exit codes: 0 done; 12 the cluster is in no state for it; 13 a node is unreachable; 17 another run is at it."),
		Example: `  kkbundle handover -i inventory.yaml -c cluster.yaml --namespace site -o prod.yaml
  kubectl create -f prod.yaml   # in the management cluster; it is paused
  kkbundle handover -i inventory.yaml -c cluster.yaml --namespace site --undo`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runHandover(cmd.Context(), g, first(args), o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.StringVar(&o.Namespace, "namespace", "", "the `namespace` of the pool in the management cluster (required)")
	f.StringVarP(&o.output, "output", "o", "", "the `file` for the objects; an existing one is not replaced")
	f.StringVar(&o.Bundle, "bundle", "site", "the `name` of the KKBundle for later machines")
	f.StringVar(&o.Registry, "registry", "", "the registry's `address` for later machines (default that of imageRegistry.type existing)")
	f.StringVar(&o.RegistrySecret, "registry-secret", "registry", "the `name` of the Secret with the registry's login")
	f.StringVar(&o.Login, "login", "login", "the `name` of the Secret with the SSH login of the hosts")
	f.StringVar(&o.HostKeys, "host-keys", "", "the `name` of a Secret with known_hosts (default: written, with the keys that the hosts have)")
	f.BoolVar(&o.undo, "undo", false, "take the marks away from the hosts")
	return cmd
}

func runHandover(ctx context.Context, g *globals, path string, o handoverOptions) (err error) {
	if err := o.Check(); err != nil {
		return usage.Errorf("%w", err)
	}
	files := newFiles{{path: o.output, mode: 0o600}}
	switch {
	case o.undo == (o.output != ""):
		return usage.Errorf("name the file for the objects with -o FILE, or take the marks away with --undo")
	case !o.undo && len(files.taken()) > 0:
		return usage.Errorf("%s exists, and may be the objects of an earlier handover: name another file with -o", plain.Line(o.output))
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	defer p.Close()
	options := s.Options()
	options.Progress = p.Event
	name, nodes := s.Cluster.Metadata.Name, plain.Count(len(s.Inventory.Hosts()), "host")
	if o.undo {
		if _, err := handover.Undo(ctx, options, o.Target); err != nil {
			return err
		}
		g.Note("%s of cluster %s have no mark of a machine; delete its objects in the management cluster before they are unpaused", nodes, name)
		return nil
	}
	if err := handover.Fits(ctx, options, o.Target); err != nil {
		return err
	}
	if _, files[0].data, err = handover.Write(ctx, options, o.Target); err != nil {
		return err
	}
	if err := files.write(); err != nil {
		return err
	}
	if g.JSON {
		err = g.PrintJSON(map[string]any{"version": 1, "file": o.output})
	}
	g.Note("wrote %s, which has the keys of cluster %s; %s have the marks of their machines", plain.Line(o.output), name, nodes)
	g.Note("in the management cluster: kubectl create -f %s; then set spec.paused of the Cluster to false", plain.Line(o.output))
	return err
}
