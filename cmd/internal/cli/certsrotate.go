package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/rotate"
)

type certsRotateOptions struct {
	site.Flags
	authorities                   []string
	finish, rollback, dryRun, yes bool
	workloads                     kubeadm.WorkloadChoice
}

func newCertsRotateCmd(g *globals) *cobra.Command {
	var o certsRotateOptions
	cmd := &cobra.Command{
		Use:   "rotate-ca -i INVENTORY [BUNDLE]",
		Short: "Replace the certificate authorities of a running cluster",
		Long: `Replaces the certificate authorities of a cluster of kubeadm, in two commands. The cluster serves all the time.

The first makes new authorities, and every program trusts the old and the new ones, node by node. It replaces the pods
of Kubernetes and of the pod network. Other pods that started before would lose the API server: the command lists them
and stops, unless --restart-workloads restarts their Deployments, StatefulSets and DaemonSets. Then the new
authorities issue the certificates of control planes and kubelets.

The second, with --finish, removes the old authorities: kubeconfigs and certificates that they have issued are refused
from then on. Until then, --rollback returns to the old ones. In between, install, upgrade, nodes and endpoint move
are refused. After an interruption, the same command continues. All nodes must be in the inventory, reachable and
ready. Guide: docs/day-two/certs.md.`,
		Example: `  kkbundle certs rotate-ca -i inventory.yaml --restart-workloads site-1.4.0.kkb
  kkbundle certs rotate-ca -i inventory.yaml --finish site-1.4.0.kkb`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runCertsRotate(cmd.Context(), g, first(args), o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.StringSliceVar(&o.authorities, "ca", nil,
		"only these `authorities`: kubernetes, front-proxy, etcd (default: all of kubeadm's)")
	f.BoolVar(&o.workloads.Restart, "restart-workloads", false,
		"restart workloads whose pods trust the old authority only")
	f.BoolVar(&o.workloads.Leave, "leave-workloads", false,
		"go on although pods trust the old authority only; they lose the API server")
	f.BoolVar(&o.finish, "finish", false, "remove the old authorities")
	f.BoolVar(&o.rollback, "rollback", false, "return to the old authorities, and remove the new ones")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes with reasons, and make none")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.MarkFlagsMutuallyExclusive("finish", "rollback")
	return cmd
}

// parseAuthorities checks the names of authorities.
func parseAuthorities(names []string) ([]kubeadm.Authority, error) {
	var list []kubeadm.Authority
	for _, name := range names {
		a := kubeadm.Authority(strings.TrimSpace(name))
		if !a.IsKnown() {
			return nil, usage.Errorf("--ca %s: name kubernetes, front-proxy or etcd", name)
		}
		list = append(list, a)
	}
	return list, nil
}

func runCertsRotate(ctx context.Context, g *globals, path string, o certsRotateOptions) (err error) {
	options := rotate.AuthorityOptions{Workloads: o.workloads}
	if options.Authorities, err = parseAuthorities(o.authorities); err != nil {
		return err
	}
	switch {
	case o.finish:
		options.Step = rotate.RotationFinish
	case o.rollback:
		options.Step = rotate.RotationRollback
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options.Options = s.Options()
	options.DryRun, options.Progress = o.dryRun, p.Event
	agreed := false
	options.Agree = func(plan []string) error {
		agreed = true
		return g.agree(p, plan, "Do it?", o.yes || o.dryRun)
	}
	var report engine.Report
	report, err = rotate.Authorities(ctx, options)
	p.Close()
	if err != nil {
		return err
	}
	if !agreed {
		g.Note("no authorities are being replaced")
		return nil
	}
	g.NoteOutcome(report, o.dryRun)
	if options.Step == rotate.RotationBegin && !o.dryRun {
		g.Note("the old authorities are still trusted: give people new kubeconfigs, then remove them with --finish")
	}
	return nil
}
