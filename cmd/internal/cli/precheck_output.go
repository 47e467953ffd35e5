package cli

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/disk"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

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
		case !slices.Contains(precheck.Formats(), format):
			return o, usage.Errorf("-o takes %s, each with =FILE or without, not %q", strings.Join(precheck.Formats(), ", "), one)
		case isFile && path == "":
			return o, usage.Errorf("-o %s names no file behind =", one)
		case isFile:
			if slices.ContainsFunc(o.files, func(f reportFile) bool { return f.path == path }) {
				return o, usage.Errorf("-o writes %s twice", path)
			}
			if err := disk.CheckOutput(path); err != nil {
				return o, err
			}
			o.files = append(o.files, reportFile{format, path})
		case o.format != "" && o.format != format:
			return o, usage.Errorf("standard output takes one format, not %s and %s: write -o %s=FILE", o.format, format, format)
		default:
			o.format = format
		}
	}
	if o.format == "" && !(g.Quiet && len(o.files) > 0) {
		o.format = "table"
	}
	return o, nil
}

// write writes the report to all destinations, also after an error.
func (o reportOutputs) write(r precheck.Report) error {
	const mode = 0o644
	var errs []error
	for _, f := range o.files {
		errs = append(errs, disk.WriteFileWith(f.path, mode, func(w io.Writer) error { return r.Write(w, f.format) }))
	}
	if o.format != "" {
		errs = append(errs, r.Write(o.out, o.format))
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
	data, err := build.ReadFile(f.rules)
	if err != nil {
		return nil, err
	}
	return manifest.ParsePrecheckRules(f.rules, data, precheck.IDs())
}
