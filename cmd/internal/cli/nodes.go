package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/plain"
)

func newNodesCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "nodes", Short: "Add nodes to a cluster, or delete nodes"}
	cmd.AddCommand(newNodesAddCmd(g), newNodesDeleteCmd(g))
	return cmd
}

type nodesAddOptions struct {
	site.Flags
	rulesFlag
	hooks              string
	dryRun, force, yes bool
}

func newNodesAddCmd(g *globals) *cobra.Command {
	var o nodesAddOptions
	cmd := &cobra.Command{
		Use:   "add -i INVENTORY [HOST...] BUNDLE",
		Short: "Add new hosts of the inventory to a cluster",
		Long: `Makes those hosts of the inventory nodes that are none yet, or of them only the named ones: control planes one by one, workers
side by side. Only the new hosts are checked and changed; the others learn their names, and where workers have a balancer
of their own, it learns of new control planes. Other hosts may be down. Interrupted, it is continued by running it again.`,
		Example: `  kkbundle nodes add -i inventory.yaml site-1.4.0.kkb
  kkbundle nodes add -i inventory.yaml node7 node8 site-1.4.0.kkb`,
		Args: takesSome("[HOST...] BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			return runNodesAdd(cmd.Context(), g, args[last], args[:last], o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	o.rulesFlag.add(f)
	g.addTrust(f)
	f.StringVar(&o.hooks, "hooks", "", "`directory` of scripts to run on the new hosts before and after (pre_install*.sh, post_install*.sh)")
	f.BoolVar(&o.dryRun, "dry-run", false, "look, and say what would be done and why")
	f.BoolVar(&o.force, "force", false, "go on although the precheck blocks, and run hooks again")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	return cmd
}

func runNodesAdd(ctx context.Context, g *globals, bundle string, hosts []string, o nodesAddOptions) (err error) {
	rules, err := o.rulesFlag.read()
	if err != nil {
		return err
	}
	s, err := g.openSite(ctx, o.Flags, bundle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Rules, options.Judged, options.HooksDir = rules, p.Judged, o.hooks
	options.DryRun, options.Force, options.Progress = o.dryRun, o.force, p.Event
	agreed := false
	report, err := installer.AddNodes(ctx, options, hosts, func(plan []string) error {
		agreed = true
		return g.agree(p, plan, "Add them?", o.yes || o.dryRun)
	})
	p.Close()
	if err != nil {
		return err
	}
	if !agreed {
		g.Note("all hosts of the inventory are nodes")
	}
	if o.dryRun {
		p.WouldChange()
	}
	return g.nodesDone(report)
}

type nodesDeleteOptions struct {
	site.Flags
	installer.Deletion
	bundle                string
	withData, dryRun, yes bool
}

func newNodesDeleteCmd(g *globals) *cobra.Command {
	var o nodesDeleteOptions
	cmd := &cobra.Command{
		Use:   "delete -i INVENTORY HOST... [BUNDLE]",
		Short: "Delete nodes from a cluster",
		Long: `Takes nodes out of the cluster, one after the other: the node is cordoned and drained, its member of etcd removed, the node
deleted and the host reset; then the other hosts forget it. The last control plane that works, more than etcd can spare, the host of
the registry and the host whose address is the cluster's endpoint are refused before anything is changed. Interrupted, it
is continued by running it again.

With --unreachable the hosts are gone: only the cluster is told. The last argument is a bundle if there is a file of that
name; without a bundle, name the cluster file with -c.

Afterwards, take the hosts out of the inventory: the next install would make nodes of them again.`,
		Example: `  kkbundle nodes delete -i inventory.yaml node7 site-1.4.0.kkb
  kkbundle nodes delete -i inventory.yaml --unreachable node3 -c cluster.yaml`,
		Args: takesSome("HOST... [BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Hosts = args
			if last := len(args) - 1; isFile(args[last]) {
				o.Hosts, o.bundle = args[:last], args[last]
			}
			if len(o.Hosts) == 0 {
				return usage.Errorf("say which nodes to delete")
			}
			return runNodesDelete(cmd.Context(), g, o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.BoolVar(&o.Unreachable, "unreachable", false, "the hosts are gone for good: only tell the cluster")
	f.DurationVar(&o.DrainTimeout, "drain-timeout", 5*time.Minute, "how long pods may take to leave a node")
	f.BoolVar(&o.DisableEviction, "disable-eviction", false, "delete pods although a PodDisruptionBudget is against it")
	f.BoolVar(&o.withData, "with-data", false, "remove from the hosts what cannot be made again, too")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be done")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	return cmd
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

func runNodesDelete(ctx context.Context, g *globals, o nodesDeleteOptions) (err error) {
	s, err := g.openSite(ctx, o.Flags, o.bundle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options := s.Options()
	options.WithData, options.DryRun, options.Progress = o.withData, o.dryRun, p.Event
	report, err := installer.DeleteNodes(ctx, options, o.Deletion, func(plan []string) error {
		return g.agree(p, plan, "Delete them?", o.yes || o.dryRun)
	})
	p.Close()
	if asError[*host.UnreachableError](err) && !o.Unreachable {
		g.Note("if a host is gone for good, say --unreachable: then only the cluster is told")
	}
	if err != nil || o.dryRun {
		return err
	}
	for _, h := range s.Inventory.Hosts() {
		if slices.Contains(o.Hosts, h.Name) {
			g.Note("take %s out of %s now: the next install would make a node of it again", h.Name, o.InventoryFile)
		}
	}
	return g.nodesDone(report)
}

// agree shows what will be done, and asks unless that was answered already.
func (g *globals) agree(p *terminal.TaskPrinter, plan []string, question string, yes bool) error {
	p.Close()
	for _, line := range plan {
		g.Note("%s", plain.Lines(line))
	}
	if yes {
		return nil
	}
	return g.Confirm(question)
}

func (g *globals) nodesDone(report engine.Report) error {
	if g.JSON {
		return json.NewEncoder(g.Out).Encode(newInstallResult(report))
	}
	g.Note("%d changed, %d as they should be, in %s", report.Changed, report.Done, report.Duration.Round(100*time.Millisecond))
	return nil
}
