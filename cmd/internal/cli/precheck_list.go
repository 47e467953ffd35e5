package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/precheck"
)

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
		return precheck.WriteListMarkdown(g.Out, checks)
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
	rows := [][2]string{{"wanted", c.Title}, {"why", c.Why}, {"fix", c.Fix}, {"level", c.Means()}, {"groups", strings.Join(c.Groups, ", ")}}
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
