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
		Long: `Looks at every host and tells in one report what would make an install fail, why, and how to mend it. Nothing on the hosts is
changed: the helper that looks is removed again. A host that cannot be reached is named in the report and keeps nobody waiting.

Without a bundle and a cluster file it checks what every cluster of kubeadm's needs. With a cluster file (or a bundle that has
one) it checks for that cluster, each host with what the inventory sets for it; with a bundle also for the space, architectures and
packages of what is in it. kkbundle precheck list says what is checked.

--only and --skip take names of checks or groups; what takes long (the speed of etcd's disk, addresses that must be free, ports
between the hosts) is not tried if only checks that are left out look at it.

-o FORMAT is what standard output gets: table, json, junit, html or markdown. -o FORMAT=FILE writes a file; several
can be named, and then the table is still printed, unless --quiet.

Exit codes: 0 ready, with warnings or without; 12 something blocks; 13 hosts could not be asked, and nothing else
blocks; 22 warnings, with --fail-on warn.`,
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
	f.StringSliceVar(&o.Only, "only", nil, "only these checks, or those of these groups")
	f.StringSliceVar(&o.Skip, "skip", nil, "not these checks, nor those of these groups")
	f.StringVar(&o.failOn, "fail-on", string(precheck.Block), "what makes the command fail: block, or warn for warnings too")
	f.StringVar(&o.record, "record", "", "directory to keep each host's facts in, as JSON")
	f.StringVar(&o.replay, "facts", "", "directory of recorded facts to check, instead of asking the hosts")
	cmd.AddCommand(newPrecheckListCmd(g))
	return cmd
}

// check finds what makes no sense before anything is done.
func (o *precheckOptions) check(g *globals) (reportOutputs, error) {
	if o.failOn != string(precheck.Block) && o.failOn != string(precheck.Warn) {
		return reportOutputs{}, usage.Errorf("--fail-on takes block or warn, not %q", o.failOn)
	}
	if o.record != "" && o.replay != "" {
		return reportOutputs{}, usage.Errorf("--record keeps what hosts say and --facts asks none; name one of them")
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
		options.Selection = precheck.Selection{} // another selection may be made from what is recorded
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

// A precheckWarnedError is a report with warnings, where those were not to be.
type precheckWarnedError struct{ warnings int }

// Error counts them.
func (e *precheckWarnedError) Error() string {
	return "precheck: " + plain.Count(e.warnings, "warning") + ", and --fail-on warn"
}
