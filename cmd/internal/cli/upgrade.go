package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/upgrade"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
)

type upgradeOptions struct {
	site.Flags
	rulesFlag
	batch, nodes       string
	canary, check      string
	window             usage.Span
	without            []string
	drainTimeout       time.Duration
	disableEviction    bool
	dryRun, force, yes bool
	rollback, forget   bool
	stage              bool
	plan               bool
}

func newUpgradeCmd(g *globals) *cobra.Command {
	var o upgradeOptions
	cmd := &cobra.Command{
		Use:   "upgrade -i INVENTORY BUNDLE",
		Short: "Upgrade a cluster to the version of a bundle",
		Long: `Upgrades a cluster to the Kubernetes version and the settings of a bundle, over SSH and without internet. Begin with
--plan: it changes nothing.

What happens: the plan is printed and confirmed. An unhealthy cluster is an error with the reasons. The bundle's
images go to the registry; etcd and kubeadm's configuration are saved to the work directory. Then control planes are
upgraded one by one and workers in batches: drain, upgrade, wait until ready, uncordon. No minor release is skipped:
the bundle has the releases between if its cluster file sets kubernetes.upgradeFrom.

  --plan              what each step replaces, the programs of each node, what the registry lacks, removed APIs,
                      webhooks that can stop a drain, the expected time, and the cluster's health
  --stage             ahead of the upgrade: images and charts to the site's registry, images to the nodes' containerd,
                      and programs to the hosts, beside those in use. Nothing that runs is changed; the upgrade then
                      finds them there. Programs are kept for a week. --plan says what is not staged
  --canary NODE       the first control plane or a worker before all others; the run ends after it (exit code 25), or
                      goes on if --check passes. A worker comes after the control planes
  --check COMMAND     after each batch, on this machine, by sh; KKBUNDLE_NODES has the names of the batch. The upgrade
                      stops if it fails
  --nodes SELECTOR    these workers only, after the control planes: names, or a label selector (exit code 25)
  --window 2h         nodes begin as long as the time allows, judged by the last upgrade from this work directory and
                      by the nodes of this run; control planes of a step are completed (exit code 25)
  --without           leaves workers at their version, at most three minor releases older; the exit code is 0
  --rollback          with the bundle before: back to its release, from any point of a failed upgrade and after a
                      complete one. etcd keeps its data. With the bundle of the upgrade itself: back to an
                      intermediate release, if the upgrade stopped after it
  --forget-rollback   removes the copies that a rollback needs; status names their size

The first node that fails stops the upgrade; the same command continues. Exit code 25 means that nodes are left as the
flags say: the same command goes on after --window, one without --canary or with other --nodes after these. A rollback is refused over more than one
minor release, if etcd's data have moved to a later minor release, and if there are objects of types that the release
before lacks.

With --json, events are lines on standard error, and the result with the plan is one document on standard output.
Guide: docs/day-two/upgrade.md.`,
		Example: `  kkbundle upgrade -i inventory.yaml --dry-run site-1.5.0.kkb
  kkbundle upgrade -i inventory.yaml --stage site-1.5.0.kkb
  kkbundle upgrade -i inventory.yaml --batch 20% site-1.5.0.kkb
  kkbundle upgrade -i inventory.yaml --canary node1 site-1.5.0.kkb
  kkbundle upgrade -i inventory.yaml --window 2h --nodes topology.kubernetes.io/zone=a site-1.5.0.kkb
  kkbundle upgrade -i inventory.yaml --rollback site-1.4.0.kkb`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error { return runUpgrade(cmd.Context(), g, args[0], o) },
	}
	o.addFlags(g, cmd)
	return cmd
}

func (o *upgradeOptions) addFlags(g *globals, cmd *cobra.Command) {
	f := cmd.Flags()
	o.Flags.Add(f)
	o.Groups.Add(f)
	o.rulesFlag.add(f)
	g.addAccept(f)
	addWithout(f, &o.without)
	o.Rate.AddFor(f, toAllHosts)
	f.StringVar(&o.batch, "batch", "",
		"number of workers of one zone upgraded at the same time, or a share such as 20% (default a tenth, at least 1)")
	f.DurationVar(&o.drainTimeout, "drain-timeout", kube.DrainTimeout, "time limit for draining a node")
	f.BoolVar(&o.disableEviction, "disable-eviction", false,
		"delete pods instead of evicting them, ignoring PodDisruptionBudgets")
	f.BoolVar(&o.dryRun, "dry-run", false, "show the plan and the cluster's health, and change nothing")
	f.BoolVar(&o.force, "force", false, "continue if the precheck blocks or the cluster is unhealthy")
	f.BoolVar(&o.plan, "plan", false,
		"as --dry-run, and rehearse: components, programs, removed APIs, webhooks, and the expected time")
	f.BoolVar(&o.rollback, "rollback", false,
		"go back to the release and settings before the last upgrade, with the bundle of that time")
	f.BoolVar(&o.forget, "forget-rollback", false, "remove the copies that a rollback needs, and do nothing else")
	f.BoolVar(&o.stage, "stage", false, "bring what the upgrade needs to the registry and the hosts, and do nothing else")
	cmd.MarkFlagsMutuallyExclusive("rollback", "forget-rollback", "plan", "stage")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	o.addPauses(cmd)
}

// addPauses adds the flags after which an upgrade is not complete.
func (o *upgradeOptions) addPauses(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.nodes, "nodes", "", "upgrade only the workers of this `selector`: names with commas, or labels")
	f.StringVar(&o.canary, "canary", "", "upgrade this `node` before the others, and end after it without --check")
	f.StringVar(&o.check, "check", "", "`command` to run here after each batch; the upgrade stops if it fails")
	f.Var(&o.window, "window", "begin no node that this `time`, such as 2h, is too short for")
	for _, name := range []string{"nodes", "canary", "check", "window"} {
		for _, other := range []string{"rollback", "forget-rollback", "stage"} {
			cmd.MarkFlagsMutuallyExclusive(name, other)
		}
	}
	cmd.MarkFlagsMutuallyExclusive("canary", "window")
	cmd.MarkFlagsMutuallyExclusive("canary", "nodes")
}

// pauses sets the options of the flags.
func (o *upgradeOptions) pauses(to *upgrade.Options) (err error) {
	if to.Batch, err = upgrade.ParseBatch(o.batch); err != nil {
		return usage.Errorf("--batch: %w", err)
	}
	if to.Nodes, err = upgrade.ParseSelection(o.nodes); err != nil {
		return usage.Errorf("--nodes: %w", err)
	}
	to.Canary, to.Window = o.canary, time.Duration(o.window)
	if o.check != "" {
		to.Check = func(ctx context.Context, nodes []string) error { return runCheck(ctx, o.check, nodes) }
	}
	return nil
}

// checkedNodes is the variable with the names of the nodes that --check is about.
const checkedNodes = "KKBUNDLE_NODES"

// runCheck runs the command of --check on this machine.
func runCheck(ctx context.Context, command string, nodes []string) error {
	const most = 4 << 10
	said := &capped.Tail{Most: most}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), checkedNodes+"="+strings.Join(nodes, " "))
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, time.Second
	// A command that passed may have left a process behind that holds its output.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("--check after %s: %w: %s", strings.Join(nodes, ", "), err,
			cmp.Or(plain.Lines(strings.TrimSpace(said.String())), "it said nothing"))
	}
	return nil
}

func runUpgrade(ctx context.Context, g *globals, path string, o upgradeOptions) (err error) {
	o.dryRun = o.dryRun || o.plan
	rules, err := o.rulesFlag.read()
	if err != nil {
		return err
	}
	var options upgrade.Options
	if err := o.pauses(&options); err != nil {
		return err
	}
	o.Secrets = true
	g.trust.unrecorded = o.dryRun || o.stage // the running cluster's bundle stays acceptable
	s, err := g.openAcceptedSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := g.NewTaskPrinter()
	var planned upgrade.Plan
	options.Options, options.DrainTimeout, options.DisableEviction = s.Options(), o.drainTimeout, o.disableEviction
	options.Planned = func(plan upgrade.Plan) {
		p.Close()
		planned = plan
		if !g.JSON && !g.Quiet {
			writeUpgrade(g.Err, plan)
			o.writePauses(g.Err, plan)
		}
	}
	if !o.stage { // the running cluster stays as the last run made it
		if err := s.Remember(&options.Inputs); err != nil {
			return err
		}
	}
	if !g.JSON {
		options.Saved = func(dir string) { g.Note("saved before the first change: %s", dir) }
	}
	options.Rules, options.Judged, options.Progress = rules, p.Judged, p.Event
	options.DryRun, options.Force, options.Without = o.dryRun, o.force, o.without
	var rehearsed *upgrade.Rehearsal
	if o.plan {
		options.Rehearsed = func(r *upgrade.Rehearsal) {
			rehearsed = r
			if !g.JSON && !g.Quiet {
				writeRehearsal(g.Err, r)
			}
		}
	}
	if !o.yes {
		options.Approve = func(plan upgrade.Plan) error {
			p.Close()
			return confirmUpgrade(g, plan)
		}
	}
	report, err := o.verb()(ctx, options)
	p.Close()
	return o.ended(g, report, planned, rehearsed, err)
}

func confirmUpgrade(g *globals, plan upgrade.Plan) error {
	question := "Upgrade cluster %s to %s?"
	if plan.Back {
		question = "Roll cluster %s back to %s?"
	}
	return g.Confirm(fmt.Sprintf(question, plan.Cluster, plan.To))
}

// ended prints the outcome of a run, unless it failed, and returns its error. A run that paused has both.
func (o upgradeOptions) ended(g *globals, report engine.Report, p upgrade.Plan, r *upgrade.Rehearsal, err error) error {
	if err != nil && exists(report.Log) {
		g.Note("log of all commands: %s", report.Log)
	}
	paused, isPaused := errors.AsType[*upgrade.PausedError](err)
	if err != nil && !isPaused {
		return err
	}
	return errors.Join(o.printResult(g, report, upgradeResult{
		newInstallResult(report), newUpgradePlan(p), newRehearsal(r), newPausedUpgrade(paused),
	}), err)
}

// printResult prints the outcome of a run that did not fail.
func (o upgradeOptions) printResult(g *globals, report engine.Report, result upgradeResult) error {
	if g.JSON {
		return g.PrintJSON(result)
	}
	if o.dryRun {
		g.notePace(o.Rate)
		g.Note("nothing was changed")
	} else {
		g.Note("%d changed, %d as they should be, in %s", report.Changed, report.Done,
			report.Duration.Round(100*time.Millisecond))
	}
	return nil
}

// verb returns what the flags ask for.
func (o upgradeOptions) verb() func(context.Context, upgrade.Options) (engine.Report, error) {
	switch {
	case o.rollback:
		return upgrade.Rollback
	case o.stage:
		return upgrade.Stage
	case o.forget:
		return func(ctx context.Context, o upgrade.Options) (engine.Report, error) {
			return upgrade.ForgetRollback(ctx, o.Options)
		}
	}
	return upgrade.Upgrade
}

// upgradeResult is the JSON output of upgrade.
type upgradeResult struct {
	installResult
	Plan      upgradePlan `json:"plan"`
	Rehearsal *rehearsal  `json:"rehearsal,omitempty"`
	// Paused is set if the flags left nodes to another run.
	Paused *pausedUpgrade `json:"paused,omitempty"`
}

// A pausedUpgrade has the reason for which an upgrade ended before all nodes, and the nodes that are left.
type pausedUpgrade struct {
	Reason string   `json:"reason"`
	Left   []string `json:"left"`
	Middle []string `json:"middle,omitempty"` // of them, those that an earlier run left unschedulable
}

func newPausedUpgrade(e *upgrade.PausedError) *pausedUpgrade {
	if e == nil {
		return nil
	}
	return &pausedUpgrade{e.Reason, append([]string{}, e.Left...), e.Middle}
}

type upgradePlan struct {
	Cluster  string       `json:"cluster"`
	From     string       `json:"from"`
	To       string       `json:"to"`
	Steps    []string     `json:"steps"`
	Batch    int          `json:"batch"`
	Settings []string     `json:"settings"`
	Changes  []planChange `json:"changes"`
	// Etcd has the versions of etcd that steps take because a later one must not be reached directly.
	Etcd     map[string]string `json:"etcd,omitempty"`
	Nodes    []upgradeNode     `json:"nodes"`
	Rollback bool              `json:"rollback,omitempty"`
	Canary   string            `json:"canary,omitempty"`
	Fits     []planFit         `json:"fits,omitempty"` // what --window has time for
	// Unknown are objects that the release of a rollback does not know, as a number and a type.
	Unknown []string `json:"unknown,omitempty"`
}

// A planFit names the nodes of a step that a window has time for.
type planFit struct {
	Version string   `json:"version"`
	Nodes   []string `json:"nodes"`
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
	Left         bool   `json:"left"`  // --without
	Later        bool   `json:"later"` // --nodes
	Zone         string `json:"zone,omitempty"`
}

func newUpgradePlan(p upgrade.Plan) upgradePlan {
	out := upgradePlan{
		Cluster: p.Cluster, From: p.From, To: p.To, Batch: p.Batch, Etcd: p.Etcd,
		Steps: append([]string{}, p.Steps...), Settings: append([]string{}, p.Settings...), Changes: []planChange{},
		Nodes:    []upgradeNode{},
		Rollback: p.Back, Unknown: p.Unknown, Canary: p.Canary,
	}
	for _, f := range p.Fits {
		out.Fits = append(out.Fits, planFit{f.Version, append([]string{}, f.Nodes...)})
	}
	for _, c := range p.Changes {
		out.Changes = append(out.Changes, planChange{c.Component, c.From, c.To, append([]string{}, c.Nodes...)})
	}
	for _, n := range p.Nodes {
		out.Nodes = append(out.Nodes, upgradeNode{
			n.Name, n.ControlPlane, n.Kubelet, n.APIServer, n.Current, n.Cordoned,
			n.Left, n.Later && !n.Current, n.Zone,
		})
	}
	return out
}

// writePauses prints where the flags have an upgrade end or checked.
func (o *upgradeOptions) writePauses(w io.Writer, p upgrade.Plan) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	if p.Empty() {
		return
	}
	if o.canary != "" && o.check == "" {
		say("canary: %s; the run ends after it", plain.Line(o.canary))
	} else if o.canary != "" {
		say("canary: %s; the others follow if the check passes", plain.Line(o.canary))
	}
	if o.check != "" {
		say("check after each batch: %s", plain.Line(o.check))
	}
	if o.window > 0 && len(p.Fits) == 0 {
		say("window: %s; how long nodes take shows with the first ones", o.window.String())
	}
	for _, f := range p.Fits {
		say("window: %s; time for %s (%s)", o.window.String(), cmp.Or(strings.Join(f.Nodes, ", "), "no further node"),
			plain.Line(f.Version))
	}
}

func writeUpgrade(w io.Writer, p upgrade.Plan) {
	if p.Empty() {
		text := "all nodes are at " + p.To
		if left := p.Left(); len(left) > 0 {
			text += ", except " + strings.Join(left, ", ")
		}
		_, _ = fmt.Fprintf(w, "cluster %s: %s\n", plain.Line(p.Cluster), plain.Line(text))
		return
	}
	_, _ = fmt.Fprintf(w, "cluster %s: %s\n", plain.Line(p.Cluster),
		plain.Line(strings.Join(slices.Compact(append([]string{p.From}, p.Steps...)), " -> ")))
	for _, step := range p.Steps {
		if p.Etcd[step] != "" {
			_, _ = fmt.Fprintf(w, "%s takes etcd %s: the next release's must not be reached from an older one\n",
				plain.Line(step), plain.Line(p.Etcd[step]))
		}
	}
	for _, c := range p.Changes {
		_, _ = fmt.Fprintf(w, "changes: %s\n", plain.Line(c.String()))
	}
	if p.Back {
		_, _ = fmt.Fprintln(w, "rollback: etcd keeps its data, and nothing written since the upgrade is lost")
		for _, text := range p.Unknown {
			_, _ = fmt.Fprintf(w, "not visible in %s: %s\n", plain.Line(p.To), plain.Line(text))
		}
	}
	if len(p.Settings) > 0 {
		_, _ = fmt.Fprintf(w, "settings that change: %s\n", strings.Join(p.Settings, ", "))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NODE\tROLE\tAPI SERVER\tKUBELET\tTO DO")
	for _, n := range p.Nodes {
		role, todo := "worker", "upgrade"
		if p.Back {
			todo = "roll back"
		}
		if n.ControlPlane {
			role = "control plane"
		}
		if n.Current {
			todo = "-"
		}
		if n.Later && !n.Current {
			todo = "later (--nodes)"
		}
		if n.Left {
			todo = "left as it is"
		}
		if n.Cordoned {
			todo += " (is unschedulable)"
		}
		server := n.APIServer
		server = cmp.Or(server, "-")
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", plain.Line(n.Name), role, plain.Line(server),
			plain.Line(n.Kubelet), todo)
	}
	_ = table.Flush()
	zones := ""
	if slices.ContainsFunc(p.Nodes, func(n upgrade.Node) bool { return n.Zone != "" }) {
		zones = ", never of two zones"
	}
	_, _ = fmt.Fprintf(w, "workers at the same time: %d%s\n", p.Batch, zones)
}
