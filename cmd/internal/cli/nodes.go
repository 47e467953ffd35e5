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
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/nodes"
	"github.com/kkbundle/kkbundle/internal/plain"
)

func newNodesCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Add nodes to a cluster, or delete nodes",
		Args:  takes(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNodesAddCmd(g), newNodesDeleteCmd(g))
	return cmd
}

type nodesAddOptions struct {
	site.Flags
	rulesFlag
	hooks              hooksFlag
	dryRun, force, yes bool
}

func newNodesAddCmd(g *globals) *cobra.Command {
	var o nodesAddOptions
	cmd := &cobra.Command{
		Use:   "add -i INVENTORY [HOST...] BUNDLE",
		Short: "Add new hosts of the inventory to a cluster",
		Long: `Adds all new hosts of the inventory to the cluster, or only the named ones: control planes one by one, workers in
parallel. Only new hosts are checked and changed. Other hosts get the new names, and workers with a local load
balancer get new control planes; they may be down. Run the command again to continue after an interruption.`,
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
	g.addAccept(f)
	o.hooks.add(f, "the new hosts")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes with reasons, and make none")
	f.BoolVar(&o.force, "force", false, "continue if the precheck blocks, and run hooks again")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func runNodesAdd(ctx context.Context, g *globals, bundle string, hosts []string, o nodesAddOptions) (err error) {
	rules, err := o.rulesFlag.read()
	if err != nil {
		return err
	}
	if err := o.hooks.check(); err != nil {
		return err
	}
	g.trust.unrecorded = o.dryRun
	s, err := g.openAcceptedSite(ctx, o.Flags, bundle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	options := s.Options()
	options.Rules, options.Judged = rules, p.Judged
	if options.Hooks, err = o.hooks.read(ctx, s.Bundle); err != nil {
		return err
	}
	o.hooks.tell(g, options.Hooks)
	options.DryRun, options.Force, options.Progress = o.dryRun, o.force, p.Event
	agreed := false
	report, err := nodes.Add(ctx, options, hosts, func(plan []string) error {
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
	nodes.Deletion
	bundle                string
	withData, dryRun, yes bool
}

func newNodesDeleteCmd(g *globals) *cobra.Command {
	var o nodesDeleteOptions
	cmd := &cobra.Command{
		Use:   "delete -i INVENTORY HOST... [BUNDLE]",
		Short: "Delete nodes from a cluster",
		Long: `Deletes nodes one by one: cordon and drain the node, remove its etcd member, delete the node, reset the host, and
remove its name from the other hosts. Nodes that the cluster needs are refused before any change. Run the command
again to continue after an interruption.

With --unreachable the hosts are lost: only the cluster changes. The last argument is a bundle if a file has that
name; without a bundle, name the cluster file with -c.

Then remove the hosts from the inventory: the next install would add them again. Guide: docs/day-two/nodes.md.`,
		Example: `  kkbundle nodes delete -i inventory.yaml node7 site-1.4.0.kkb
  kkbundle nodes delete -i inventory.yaml --unreachable node3 -c cluster.yaml`,
		Args: takesSome("HOST... [BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Hosts = args
			if last := len(args) - 1; isFile(args[last]) {
				o.Hosts, o.bundle = args[:last], args[last]
			}
			if len(o.Hosts) == 0 {
				return usage.Errorf("name the nodes to delete")
			}
			return runNodesDelete(cmd.Context(), g, o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	g.addTrust(f)
	f.BoolVar(&o.Unreachable, "unreachable", false, "the hosts are lost: change only the cluster")
	f.DurationVar(&o.DrainTimeout, "drain-timeout", 5*time.Minute, "time limit for draining a node")
	f.BoolVar(&o.DisableEviction, "disable-eviction", false,
		"delete pods instead of evicting them, ignoring PodDisruptionBudgets")
	f.BoolVar(&o.withData, "with-data", false, "also remove data that cannot be restored")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the steps, and change nothing")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
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
	report, err := nodes.Delete(ctx, options, o.Deletion, func(plan []string) error {
		return g.agree(p, plan, "Delete them?", o.yes || o.dryRun)
	})
	p.Close()
	if asError[*host.UnreachableError](err) && !o.Unreachable {
		g.Note("if a host is lost, use --unreachable: then only the cluster changes")
	}
	if err != nil || o.dryRun {
		return err
	}
	for _, h := range s.Inventory.Hosts() {
		if slices.Contains(o.Hosts, h.Name) {
			g.Note("remove %s from %s now: the next install would add it again", h.Name, o.InventoryFile)
		}
	}
	return g.nodesDone(report)
}

// agree prints the plan and asks for confirmation unless yes is set.
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
	g.Note("%d changed, %d as they should be, in %s", report.Changed, report.Done,
		report.Duration.Round(100*time.Millisecond))
	return nil
}
