package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/record"
	"github.com/kkbundle/kkbundle/installer/precheck/render"
	"github.com/kkbundle/kkbundle/internal/disk"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
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
		Long: `Checks every host and reports each cause for which an install would fail, with reason and remedy. Nothing on the
hosts is changed: the helper is removed again. Unreachable hosts are listed in the report and delay no other host.

Without a bundle and a cluster file, it checks the needs of every kubeadm cluster. With a cluster file, given or in
the bundle, it checks each host for that cluster and the inventory's settings; with a bundle, also its space,
architectures and packages. kkbundle precheck list describes the checks.

  --only, --skip   names of checks or groups. Slow measurements are made only if a selected check needs them
  -o FORMAT        prints table, json, junit, html or markdown. FORMAT=FILE, also several, writes a file; the table is
                   still printed, unless --quiet. An existing report is replaced; any other file is an error

Guide: docs/site/precheck.md.`,
		Annotations: exitCodesOf(`Exit codes: 0 ready, possibly with warnings; 12 a check blocks; 13 hosts could not be checked, and no check blocks; 22 warnings, with
--fail-on warn.`),
		Example: `  kkbundle precheck -i inventory.yaml site-1.4.0.kkb
  kkbundle precheck -i inventory.yaml -c cluster.yaml -o html=report.html,junit=junit.xml
  kkbundle precheck -i inventory.yaml --skip etcd --rules rules.yaml --fail-on warn
  kkbundle precheck -i inventory.yaml --record facts/ && kkbundle precheck -i inventory.yaml --facts facts/
  kkbundle precheck list etcd`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runPrecheck(cmd.Context(), g, first(args), o) },
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	o.rulesFlag.add(f)
	g.addTrust(f)
	f.StringSliceVarP(&o.outputs, "output", "o", nil,
		"FORMAT or FORMAT=FILE: table, json, junit, html, markdown (default table)")
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
		options.Known = func(in precheck.Input) error { return record.Write(o.record, in) }
	}
	if o.replay != "" {
		if options.Recorded, err = record.Open(o.replay); err != nil {
			return &builder.InputError{Err: err}
		}
	}
	p := g.NewVisitPrinter(s.Visits(), o.replay == "")
	options.Progress = p.Event
	report, err := begin.Precheck(ctx, options)
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

func newPrecheckListCmd(g *globals) *cobra.Command {
	format := "table"
	cmd := &cobra.Command{
		Use:   "list [CHECK|GROUP]",
		Short: "Describe the checks, their reasons and remedies",
		Example: `  kkbundle precheck list
  kkbundle precheck list swap
  kkbundle precheck list network -o markdown`,
		Args: takes("[CHECK|GROUP]"),
		RunE: func(_ *cobra.Command, args []string) error {
			if g.JSON {
				format = "json"
			}
			return runPrecheckList(g, format, args)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "table, json or markdown")
	return cmd
}

func runPrecheckList(g *globals, format string, names []string) error {
	selection := precheck.Selection{Only: names}
	if err := selection.Check(); err != nil {
		return &usage.Error{Err: err}
	}
	checks := selection.Of(precheck.List())
	switch format {
	case "json":
		return g.PrintJSON(checks)
	case "markdown":
		return render.List(g.Out, checks)
	case "table":
	default:
		return usage.Errorf("-o takes table, json or markdown, not %q", format)
	}
	if len(names) == 1 && len(checks) == 1 {
		return describeCheck(g.Out, checks[0])
	}
	rows := make([][]string, len(checks))
	for i, c := range checks {
		rows[i] = []string{c.ID, string(c.Level), strings.Join(c.Groups, ","), c.Title}
	}
	return g.PrintTable([]string{"CHECK", "LEVEL", "GROUPS", "WANTED"}, rows)
}

func describeCheck(w io.Writer, c precheck.Check) error {
	rows := [][2]string{
		{"wanted", c.Title},
		{"why", c.Why},
		{"fix", c.Fix},
		{"level", c.Means()},
		{"groups", strings.Join(c.Groups, ", ")},
	}
	if len(c.Roles) > 0 {
		roles := make([]string, len(c.Roles))
		for i, r := range c.Roles {
			roles[i] = string(r)
		}
		rows = append(rows, [2]string{"hosts", strings.Join(roles, ", ")})
	}
	if len(c.Kubeadm) > 0 {
		rows = append(rows, [2]string{"kubeadm", strings.Join(c.Kubeadm, ", ")})
	}
	var b strings.Builder
	b.WriteString(c.ID + "\n")
	for _, row := range append(rows, [2]string{"source", c.Source}) {
		fmt.Fprintf(&b, "  %-8s %s\n", row[0], row[1])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// reportOutputs are the destinations of a report.
type reportOutputs struct {
	out    io.Writer
	format string // of out, "" for none
	files  []reportFile
}

type reportFile struct{ format, path string }

// parseReportOutputs parses -o and --json. A file that cannot be written is an error.
func parseReportOutputs(g *globals, list []string) (reportOutputs, error) {
	o := reportOutputs{out: g.Out}
	if g.JSON {
		o.format = "json"
	}
	for _, one := range list {
		format, path, isFile := strings.Cut(one, "=")
		switch {
		case !slices.Contains(render.Formats(), format):
			return o, usage.Errorf("-o takes %s, each with =FILE or without, not %q",
				strings.Join(render.Formats(), ", "), one)
		case isFile && path == "":
			return o, usage.Errorf("-o %s names no file behind =", one)
		case isFile:
			if slices.ContainsFunc(o.files, func(f reportFile) bool { return f.path == path }) {
				return o, usage.Errorf("-o writes %s twice", path)
			}
			if err := checkReportOutput(path); err != nil {
				return o, err
			}
			o.files = append(o.files, reportFile{format, path})
		case o.format != "" && o.format != format:
			return o, usage.Errorf("standard output takes one format, not %s and %s: write -o %s=FILE", o.format,
				format, format)
		default:
			o.format = format
		}
	}
	if o.format == "" && !(g.Quiet && len(o.files) > 0) {
		o.format = "table"
	}
	return o, nil
}

// checkReportOutput returns an error unless a report can be written to path: only a report is replaced.
func checkReportOutput(path string) error {
	if err := disk.CheckOutput(path); err != nil || !occupied(path) {
		return err
	}
	ours, err := render.IsReport(path)
	if err == nil && !ours {
		err = usage.Errorf("-o: %s exists and is not a report of kkbundle precheck: name another file",
			plain.Line(path))
	}
	return err
}

// write writes the report to all destinations, also after an error.
func (o reportOutputs) write(r precheck.Report) error {
	const mode = 0o644
	var errs []error
	for _, f := range o.files {
		errs = append(errs, disk.WriteFileWith(f.path, mode,
			func(w io.Writer) error { return render.Write(w, r, f.format) }))
	}
	if o.format != "" {
		errs = append(errs, render.Write(o.out, r, o.format))
	}
	return errors.Join(errs...)
}

// rulesFlag is the file of exceptions from the levels of prechecks.
type rulesFlag struct{ rules string }

func (f *rulesFlag) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.rules, "rules", "", "`file` of exceptions from the levels of prechecks (kind PrecheckRules)")
}

// read returns the rules, nil if there are none.
func (f rulesFlag) read() (*manifest.PrecheckRules, error) {
	if f.rules == "" {
		return nil, nil
	}
	data, err := builder.ReadFile(f.rules)
	if err != nil {
		return nil, err
	}
	return manifest.ParsePrecheckRules(f.rules, data, precheck.IDs())
}
