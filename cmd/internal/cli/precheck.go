package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/plain"
)

type precheckOptions struct {
	site.Flags
	rulesFlag
	precheck.Selection
	outputs                []string
	failOn, record, replay string
}

func newPrecheckCmd(g *globals) *cobra.Command {
	o := precheckOptions{Flags: site.Flags{ClusterOptional: true}}
	cmd := &cobra.Command{
		Use:   "precheck -i INVENTORY [BUNDLE]",
		Short: "Check hosts before an install, and change nothing",
		Long: `Checks every host and reports each cause for which an install would fail, with reason and remedy. Nothing on the hosts is changed: the
helper is removed again. Unreachable hosts are listed in the report and delay no other host.

Without a bundle and a cluster file, it checks the needs of every kubeadm cluster. With a cluster file, given or in the bundle, it
checks each host for that cluster and the inventory's settings; with a bundle, also its space, architectures and packages.
kkbundle precheck list describes the checks.

--only and --skip take names of checks or groups. Slow measurements (speed of etcd's disk, free addresses, ports between hosts) are
made only if a selected check needs them.

-o FORMAT prints table, json, junit, html or markdown on standard output. -o FORMAT=FILE writes a file, also several; the table
is still printed, unless --quiet.

Exit codes: 0 ready, possibly with warnings; 12 a check blocks; 13 hosts could not be checked, and no check blocks; 22 warnings, with
--fail-on warn.`,
		Example: `  kkbundle precheck -i inventory.yaml site-1.4.0.kkb
  kkbundle precheck -i inventory.yaml -c cluster.yaml -o html=report.html,junit=junit.xml
  kkbundle precheck -i inventory.yaml --skip etcd --rules rules.yaml --fail-on warn
  kkbundle precheck -i inventory.yaml --record facts/ && kkbundle precheck -i inventory.yaml --facts facts/
  kkbundle precheck list etcd`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPrecheck(cmd.Context(), g, first(args), o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	o.rulesFlag.add(f)
	g.addTrust(f)
	f.StringSliceVarP(&o.outputs, "output", "o", nil, "FORMAT or FORMAT=FILE: table, json, junit, html, markdown (default table)")
	f.StringSliceVar(&o.Only, "only", nil, "only these checks or groups")
	f.StringSliceVar(&o.Skip, "skip", nil, "all but these checks or groups")
	f.StringVar(&o.failOn, "fail-on", string(precheck.Block), "level that fails the command: block, or warn")
	f.StringVar(&o.record, "record", "", "directory to write the facts of each host to, as JSON")
	f.StringVar(&o.replay, "facts", "", "directory of recorded facts to check instead of the hosts")
	cmd.AddCommand(newPrecheckListCmd(g))
	return cmd
}

// check returns errors of the flags.
func (o *precheckOptions) check(g *globals) (reportOutputs, error) {
	if o.failOn != string(precheck.Block) && o.failOn != string(precheck.Warn) {
		return reportOutputs{}, usage.Errorf("--fail-on takes block or warn, not %q", o.failOn)
	}
	if o.record != "" && o.replay != "" {
		return reportOutputs{}, usage.Errorf("--record and --facts exclude each other")
	}
	if err := o.Check(); err != nil {
		return reportOutputs{}, &usage.Error{Err: err}
	}
	return parseReportOutputs(g, o.outputs)
}

func runPrecheck(ctx context.Context, g *globals, path string, o precheckOptions) (err error) {
	out, err := o.check(g)
	if err != nil {
		return err
	}
	rules, err := o.rulesFlag.read()
	if err != nil {
		return err
	}
	s, err := g.openSite(ctx, o.Flags, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	options := s.Options()
	options.Rules, options.Selection = rules, o.Selection
	if o.record != "" {
		options.Selection = precheck.Selection{} // record all facts, for any later selection
		options.Known = func(in precheck.Input) error { return precheck.Record(o.record, in) }
	}
	if o.replay != "" {
		if options.Recorded, err = precheck.OpenRecording(o.replay); err != nil {
			return &build.InputError{Err: err}
		}
	}
	p := g.NewVisitPrinter(s.Visits(), o.replay == "")
	options.Progress = p.Event
	report, err := installer.Precheck(ctx, options)
	p.Stop()
	if err != nil {
		return err
	}
	s.Describe(&report)
	report = report.Select(o.Selection)
	if err := out.write(report); err != nil {
		return err
	}
	if err := report.Err(); err != nil {
		return err
	}
	if report.Warned > 0 && o.failOn == string(precheck.Warn) {
		return &precheckWarnedError{report.Warned}
	}
	return nil
}

// A precheckWarnedError means warnings with --fail-on warn.
type precheckWarnedError struct{ warnings int }

// Error returns their number.
func (e *precheckWarnedError) Error() string {
	return "precheck: " + plain.Count(e.warnings, "warning") + ", and --fail-on warn"
}
