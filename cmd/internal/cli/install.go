package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

type installOptions struct {
	site.Flags
	rulesFlag
	hooks         hooksFlag
	phases, limit []string
	without       []string
	from          string
	tags          []string
	dryRun, force bool
	list, yes     bool
	stage         bool
}

func newInstallCmd(g *globals) *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install [-i INVENTORY] [BUNDLE]",
		Short: "Install a cluster from a bundle",
		Long: `Installs a cluster on the inventory's hosts from the bundle alone, over SSH. kkbundle precheck reports blocking
problems before.

What happens: the phases pre_hook, precheck, init, install, verify, post_hook. Every task changes only what differs: a
second run changes nothing, and a run after an interruption continues. After a failure on a host, the others continue
as far as possible. The work directory gets the certificate authority, the registry's credentials and admin.conf,
which exist only there, all commands in install.log, and changes, times and verification of the run in report.html and
report.json.

With --stage, install brings programs to the hosts ahead of the installation, and images and charts to a registry of
kkbundle that runs already, and configures nothing. Programs are kept for a week.

Without BUNDLE, install uses the only bundle in this directory; then without -i, the hosts of inventory.yaml in this
directory, or this host alone if that file is missing. It prints its choice and asks for confirmation.

With --json each line on standard error is one event: {"time", "event": "task", "phase", "task", "host", "state",
"duration", "message", "done", "total"}, without those that do not apply; durations are texts such as "1m2.5s".
Standard output has one document when a run has succeeded: {"version", "report": {"changed", "done", "duration",
"kubeconfig", "log", "page"}}. Guide: docs/site/install.md.`,
		Example: `  kkbundle install -i inventory.yaml site-1.4.0.kkb
  kkbundle install -i inventory.yaml --dry-run site-1.4.0.kkb
  kkbundle install -i inventory.yaml --stage --rate 20M site-1.4.0.kkb
  kkbundle install -i inventory.yaml --list site-1.4.0.kkb
  kkbundle install -i inventory.yaml --tags cri,network --limit node3 site-1.4.0.kkb
  kkbundle install`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				return runInstall(cmd.Context(), g, args[0], o)
			}
			path, done, err := g.chooseInstall(&o)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			return runInstall(cmd.Context(), g, path, o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	o.Groups.Add(f)
	f.Lookup("inventory").Usage = "the inventory `file` (without BUNDLE: default inventory.yaml here, or this host alone)"
	o.rulesFlag.add(f)
	g.addAccept(f)
	o.hooks.add(f, "hosts")
	f.StringSliceVar(&o.phases, "phase", nil, "only these `phases`")
	f.StringSliceVar(&o.limit, "limit", nil, "only these `hosts`")
	addWithout(f, &o.without)
	o.Rate.AddFor(f, toAllHosts)
	f.StringVar(&o.from, "from", "", "begin with the phase or task of this `name`")
	f.StringSliceVar(&o.tags, "tags", nil, "only tasks with these `names`, or of these groups: "+
		strings.Join(engine.TagGroups(), ", "))
	f.BoolVar(&o.list, "list", false, "print the phases and tasks with their hosts and tags, and connect to no host")
	f.BoolVar(&o.stage, "stage", false,
		"bring programs to the hosts, and images to a registry that runs, and configure nothing")
	for _, other := range []string{"list", "hooks", "phase", "from", "tags"} {
		cmd.MarkFlagsMutuallyExclusive("stage", other)
	}
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes with reasons, and make none")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation without BUNDLE")
	f.BoolVar(&o.force, "force", false, "continue if the precheck blocks, and run hooks again")
	return cmd
}

func runInstall(ctx context.Context, g *globals, path string, o installOptions) (err error) {
	rules, err := o.rulesFlag.read()
	if err != nil {
		return err
	}
	if err := o.hooks.check(); err != nil {
		return err
	}
	o.Secrets = true
	g.trust.unrecorded = o.dryRun || o.list || o.stage
	s, err := g.openAcceptedSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	names := phasesOf(s.Cluster, o.phases)
	if o.stage {
		names = []string{"precheck", "stage"}
	}
	p := g.NewTaskPrinter(names...)
	p.Hosts, p.DryRun = hostNames(s.Inventory), o.dryRun
	options := s.Options()
	if !o.stage { // install remembers
		if err := s.Remember(&options.Inputs); err != nil {
			return err
		}
	}
	options.From, options.Tags, options.Without = o.from, o.tags, o.without
	options.Rules, options.Judged = rules, p.Judged
	if options.Hooks, err = o.hooks.read(ctx, s.Bundle); err != nil {
		return err
	}
	o.hooks.tell(g, options.Hooks)
	options.Phases, options.Limit = o.phases, o.limit
	options.DryRun, options.Force, options.Progress = o.dryRun, o.force, p.Event
	if o.list {
		return g.listTasks(options)
	}
	verb := installer.Run
	if o.stage {
		verb = installer.Stage
	}
	report, err := verb(ctx, options)
	p.Close()
	return g.endInstall(ctx, p, o, report, err)
}

// endInstall says how an installation, or its stage, ended.
func (g *globals) endInstall(ctx context.Context, p *terminal.TaskPrinter, o installOptions, report engine.Report,
	err error,
) error {
	if err != nil {
		if exists(report.Log) {
			g.Note("log of all commands: %s", report.Log)
			if exists(report.Page) && !o.dryRun {
				g.Note("report: %s", report.Page)
			}
		}
		if asError[*engine.TaskError](err) && ctx.Err() == nil {
			g.Note("to continue, remove the cause and run the same command again")
		}
		return err
	}
	if g.JSON {
		return g.PrintJSON(newInstallResult(report))
	}
	if o.dryRun {
		p.WouldChange()
		g.notePace(o.Rate)
	}
	g.NoteOutcome(report, o.dryRun)
	if report.Kubeconfig != "" && !o.dryRun && !o.stage {
		return g.Result("export KUBECONFIG=%s", report.Kubeconfig)
	}
	return nil
}

// toAllHosts is what --rate of commands on hosts limits.
const toAllHosts = "from this machine to all hosts together"

// notePace says in a dry run what --rate would limit.
func (g *globals) notePace(rate usage.Rate) {
	if text := rate.String(); text != "" {
		g.Note("rate: at most %s a second %s", text, toAllHosts)
	}
}

// addWithout adds the flag for hosts that a command leaves as they are.
func addWithout(f *pflag.FlagSet, without *[]string) {
	f.StringSliceVar(without, "without", nil,
		"leave these `hosts` as they are, such as workers that cannot be reached; a later run without the flag catches up")
}

// hostNames returns the hosts in the order of the inventory.
func hostNames(inv *manifest.Inventory) []string {
	var names []string
	for _, h := range inv.Hosts() {
		names = append(names, h.Name)
	}
	return names
}

// phasesOf returns the phases of a run.
func phasesOf(c *manifest.Cluster, only []string) []string {
	var names []string
	for _, p := range plan.Plan(c) {
		if len(only) == 0 || slices.Contains(only, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// installResult is the JSON output of install.
type installResult struct {
	Version int `json:"version"` // 1
	Report  struct {
		Changed    int            `json:"changed"`
		Done       int            `json:"done"`
		Duration   plain.Duration `json:"duration"`
		Kubeconfig string         `json:"kubeconfig"`
		Log        string         `json:"log"`
		Page       string         `json:"page"`
	} `json:"report"`
}

func newInstallResult(r engine.Report) installResult {
	out := installResult{Version: 1}
	out.Report.Changed, out.Report.Done, out.Report.Duration = r.Changed, r.Done, plain.Duration(r.Duration)
	out.Report.Kubeconfig, out.Report.Log, out.Report.Page = r.Kubeconfig, r.Log, r.Page
	return out
}

// taskList is the JSON output of install --list.
type taskList struct {
	Version int                `json:"version"` // 1
	Tasks   []installer.Listed `json:"tasks"`
}

// listTasks prints the tasks of an installation in order.
func (g *globals) listTasks(o engine.Options) error {
	list, err := installer.List(o)
	if err != nil {
		return err
	}
	if g.JSON {
		return json.NewEncoder(g.Out).Encode(taskList{Version: 1, Tasks: list})
	}
	w := tabwriter.NewWriter(g.Out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "PHASE\tTASK\tHOSTS\tTAGS") // Flush returns the error
	for _, one := range list {
		hosts := strings.Join(one.Hosts, " ")
		switch {
		case hosts == "":
			hosts = "(this machine)"
		case one.OneByOne && len(one.Hosts) > 1:
			hosts += " (one by one)"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", one.Phase, one.Task, hosts, strings.Join(one.Tags, " "))
	}
	return w.Flush()
}

// agreeHere prints bundle and hosts, and asks for confirmation without --yes. It writes the inventory of this host
// for later commands, or to a temporary directory for a dry run, which asks nothing. Call done at the end.
func (g *globals) agreeHere(c *site.Here, o installOptions) (done func() error, err error) {
	done = func() error { return nil }
	g.Note("bundle: %s", plain.Line(c.Bundle))
	if c.Made == nil {
		g.Note("hosts:  those of %s", plain.Line(c.Inventory))
	} else {
		g.Note("hosts:  this one alone, as control plane, worker, etcd and image registry; there is no %s here",
			site.DefaultInventory)
		g.Note("        It takes containerd, the kubelet, a Kubernetes control plane and a registry with the bundle's images as services of this\n" +
			"        machine, turns swap off, and sets kernel parameters. kkbundle reset takes all of it away again.")
	}
	if !o.yes && !o.dryRun && !o.list {
		if err := g.Confirm("Install?"); err != nil {
			return done, err
		}
	}
	if c.Made == nil {
		return done, nil
	}
	if !o.dryRun && !o.list {
		f, err := os.OpenFile(c.Inventory, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return done, err
		}
		_, err = f.Write(c.Made)
		return done, errors.Join(err, f.Close())
	}
	dir, err := os.MkdirTemp("", "kkbundle-")
	if err != nil {
		return done, err
	}
	c.Inventory = filepath.Join(dir, site.DefaultInventory)
	return func() error { return os.RemoveAll(dir) }, os.WriteFile(c.Inventory, c.Made, 0o600)
}

// chooseInstall returns the bundle for install without arguments, and sets the inventory in o. Call done at the end.
func (g *globals) chooseInstall(o *installOptions) (bundle string, done func() error, err error) {
	c, err := site.FindHere(o.InventoryFile)
	if err != nil {
		return "", nil, err
	}
	if done, err = g.agreeHere(&c, *o); err != nil {
		return "", nil, errors.Join(err, done())
	}
	o.InventoryFile = c.Inventory
	return c.Bundle, done, nil
}
