package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/plain"
)

type upgradeOptions struct {
	site.Flags
	rulesFlag
	batch              string
	without            []string
	drainTimeout       time.Duration
	disableEviction    bool
	dryRun, force, yes bool
}

func newUpgradeCmd(g *globals) *cobra.Command {
	var o upgradeOptions
	cmd := &cobra.Command{
		Use:   "upgrade -i INVENTORY BUNDLE",
		Short: "Upgrade a cluster to the version of a bundle",
		Long: `Upgrades a cluster to the Kubernetes version and the settings of a bundle, over SSH and without internet.

Reads the versions from the cluster, prints the plan, and asks for confirmation. An unhealthy cluster is an error with the reasons. The
bundle's images go to the registry, etcd and kubeadm's configuration are saved to the work directory, then control planes are upgraded
one by one and workers in batches: drain, upgrade, wait until ready, uncordon. No minor release is skipped: the bundle has the releases
between if its cluster file sets kubernetes.upgradeFrom.

The upgrade stops at the first failed node and prints the state of the nodes; the same command continues. --without leaves workers at their
version, which may be three minor releases older; the exit code is 0, and the last lines name them.
With --json, events are lines on standard error, and the result with the plan is one document on standard output, as for install.`,
		Example: `  kkbundle upgrade -i inventory.yaml --dry-run site-1.5.0.kkb
  kkbundle upgrade -i inventory.yaml --batch 20% site-1.5.0.kkb`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error { return runUpgrade(cmd.Context(), g, args[0], o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	o.rulesFlag.add(f)
	g.addAccept(f)
	addWithout(f, &o.without)
	f.StringVar(&o.batch, "batch", "", "number of workers upgraded at the same time, or a share such as 20% (default a tenth, at least 1)")
	f.DurationVar(&o.drainTimeout, "drain-timeout", installer.DrainTimeout, "time limit for draining a node")
	f.BoolVar(&o.disableEviction, "disable-eviction", false, "delete pods instead of evicting them, ignoring PodDisruptionBudgets")
	f.BoolVar(&o.dryRun, "dry-run", false, "show the plan and the cluster's health, and change nothing")
	f.BoolVar(&o.force, "force", false, "continue if the precheck blocks or the cluster is unhealthy")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func runUpgrade(ctx context.Context, g *globals, path string, o upgradeOptions) (err error) {
	rules, err := o.rulesFlag.read()
	if err != nil {
		return err
	}
	batch, err := installer.ParseBatch(o.batch)
	if err != nil {
		return usage.Errorf("--batch: %w", err)
	}
	g.trust.unrecorded = o.dryRun
	s, err := g.openAcceptedSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	var planned installer.UpgradePlan
	options := installer.UpgradeOptions{
		Options: s.Options(), Batch: batch, DrainTimeout: o.drainTimeout, DisableEviction: o.disableEviction,
		Planned: func(plan installer.UpgradePlan) {
			p.Close()
			planned = plan
			if !g.JSON && !g.Quiet {
				writeUpgrade(g.Err, plan)
			}
		},
	}
	options.Rules, options.Judged, options.Progress = rules, p.Judged, p.Event
	options.DryRun, options.Force, options.Without = o.dryRun, o.force, o.without
	if !o.yes {
		options.Approve = func(plan installer.UpgradePlan) error {
			p.Close()
			return g.Confirm(fmt.Sprintf("Upgrade cluster %s to %s?", plan.Cluster, plan.To))
		}
	}
	report, err := installer.Upgrade(ctx, options)
	p.Close()
	if err != nil {
		if report.Log != "" {
			g.Note("log of all commands: %s", report.Log)
		}
		return err
	}
	if g.JSON {
		return g.PrintJSON(upgradeResult{newInstallResult(report), newUpgradePlan(planned)})
	}
	if o.dryRun {
		g.Note("nothing was changed")
	} else {
		g.Note("%d changed, %d as they should be, in %s", report.Changed, report.Done, report.Duration.Round(100*time.Millisecond))
	}
	return nil
}

// upgradeResult is the JSON output of upgrade.
type upgradeResult struct {
	installResult
	Plan upgradePlan `json:"plan"`
}

type upgradePlan struct {
	Cluster  string        `json:"cluster"`
	From     string        `json:"from"`
	To       string        `json:"to"`
	Steps    []string      `json:"steps"`
	Batch    int           `json:"batch"`
	Settings []string      `json:"settings"`
	Changes  []planChange  `json:"changes"`
	Nodes    []upgradeNode `json:"nodes"`
}

// A planChange is a change of a component beside Kubernetes' version.
type planChange struct {
	Component string   `json:"component"`
	From      string   `json:"from,omitempty"`
	To        string   `json:"to,omitempty"`
	Nodes     []string `json:"nodes"`
}

type upgradeNode struct {
	Name         string `json:"name"`
	ControlPlane bool   `json:"controlPlane"`
	Kubelet      string `json:"kubelet"`
	APIServer    string `json:"apiServer,omitempty"`
	Current      bool   `json:"current"`
	Cordoned     bool   `json:"unschedulable"`
	Left         bool   `json:"left"` // --without
}

func newUpgradePlan(p installer.UpgradePlan) upgradePlan {
	out := upgradePlan{
		Cluster: p.Cluster, From: p.From, To: p.To, Batch: p.Batch,
		Steps: append([]string{}, p.Steps...), Settings: append([]string{}, p.Settings...), Changes: []planChange{}, Nodes: []upgradeNode{},
	}
	for _, c := range p.Changes {
		out.Changes = append(out.Changes, planChange{c.Component, c.From, c.To, append([]string{}, c.Nodes...)})
	}
	for _, n := range p.Nodes {
		out.Nodes = append(out.Nodes, upgradeNode{n.Name, n.ControlPlane, n.Kubelet, n.APIServer, n.Current, n.Cordoned, n.Left})
	}
	return out
}

func writeUpgrade(w io.Writer, p installer.UpgradePlan) {
	if p.Empty() {
		text := "all nodes are at " + p.To
		if left := p.Left(); len(left) > 0 {
			text += ", except " + strings.Join(left, ", ")
		}
		_, _ = fmt.Fprintf(w, "cluster %s: %s\n", plain.Line(p.Cluster), plain.Line(text))
		return
	}
	_, _ = fmt.Fprintf(w, "cluster %s: %s\n", plain.Line(p.Cluster), plain.Line(strings.Join(slices.Compact(append([]string{p.From}, p.Steps...)), " -> ")))
	for _, c := range p.Changes {
		_, _ = fmt.Fprintf(w, "changes: %s\n", plain.Line(c.String()))
	}
	if len(p.Settings) > 0 {
		_, _ = fmt.Fprintf(w, "settings that change: %s\n", strings.Join(p.Settings, ", "))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NODE\tROLE\tAPI SERVER\tKUBELET\tTO DO")
	for _, n := range p.Nodes {
		role, todo := "worker", "upgrade"
		if n.ControlPlane {
			role = "control plane"
		}
		if n.Current {
			todo = "-"
		}
		if n.Left {
			todo = "left as it is"
		}
		if n.Cordoned {
			todo += " (is unschedulable)"
		}
		server := n.APIServer
		server = cmp.Or(server, "-")
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", plain.Line(n.Name), role, plain.Line(server), plain.Line(n.Kubelet), todo)
	}
	_ = table.Flush()
	_, _ = fmt.Fprintf(w, "workers at the same time: %d\n", p.Batch)
}
