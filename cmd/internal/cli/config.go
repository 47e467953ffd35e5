package cli

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest/document"
)

func newConfigCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Write, check and show cluster files",
		Long: `Writes, checks and shows cluster files, which describe a cluster. Configs of KubeKey v4, cluster files of KubeKey v3,
and KKClusters with their KKMachineTemplates are read directly; keys that cannot be carried over are reported with
their place.

Precedence, lowest first: default, cluster file, the inventory's vars, its groupVars, a host's entry, --set.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStarterCmd(g, bundle.DocumentCluster, "a cluster file"), newConfigCheckCmd(g),
		newConfigShowCmd(g))
	return cmd
}

func newConfigCheckCmd(g *globals) *cobra.Command {
	var settings []string
	cmd := &cobra.Command{
		Use:   "check CLUSTER",
		Short: "Check a cluster file",
		Long: "Lists all errors of a cluster file with file, line and column, versions that the catalog does not know or that do not go together, missing\n" +
			"files, and features that this version cannot install. Connects to no host. kkbundle check looks at all files together.",
		Example: "  kkbundle config check cluster.yaml",
		Args:    takes("CLUSTER"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, assumptions, err := g.checkCluster(nil, args[0], settings)
			if err != nil {
				return err
			}
			g.assumed(assumptions)
			if g.JSON {
				return g.PrintJSON(checkResult{Version: 1, File: args[0]})
			}
			if c.CheckInstall() != nil {
				g.Note("%s: valid, but install refuses the settings above", args[0])
				return nil
			}
			g.Note("%s: nothing wrong", args[0])
			return nil
		},
	}
	site.AddSet(cmd.Flags(), &settings)
	return cmd
}

type configShowOptions struct {
	inventory, host, output string
	settings                []string
}

func newConfigShowCmd(g *globals) *cobra.Command {
	var o configShowOptions
	cmd := &cobra.Command{
		Use:   "show CLUSTER",
		Short: "Show the values of a cluster and their origin",
		Long: `Shows each value of a cluster, with defaults, and its origin: default, file:line:column, a group, a host, or --set.
With -i and --host, the values are those of that host. -o yaml prints an equivalent cluster file, also for files of
KubeKey. Secrets are never shown. Versions that the file omits come from the catalog and are not listed.`,
		Example: `  kkbundle config show cluster.yaml
  kkbundle config show cluster.yaml -i inventory.yaml --host node3 --set kubernetes.maxPods=200`,
		Args: takes("CLUSTER"),
		RunE: func(_ *cobra.Command, args []string) error { return runConfigShow(g, args[0], o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.inventory, "inventory", "i", "", "the inventory file, for --host")
	f.StringVar(&o.host, "host", "", "show the values of this host")
	f.StringVarP(&o.output, "output", "o", showTable, "table, yaml or json")
	site.AddSet(f, &o.settings)
	return cmd
}

// configResult is the JSON output of config show.
type configResult struct {
	Version int              `json:"version"` // 1
	File    string           `json:"file"`
	Host    string           `json:"host,omitempty"`
	Values  []document.Value `json:"values"`
}

func runConfigShow(g *globals, file string, o configShowOptions) error {
	format, err := g.showFormat(o.output)
	if err != nil {
		return err
	}
	if (o.inventory == "") != (o.host == "") {
		return usage.Errorf("--host needs the inventory (-i), and -i needs --host")
	}
	c, err := site.ReadCluster(g.Console, file, o.settings)
	if err != nil {
		return err
	}
	if o.host != "" {
		inv, err := site.ReadInventory(g.Console, o.inventory)
		if err != nil {
			return err
		}
		h, err := inv.Host(o.host)
		if err != nil {
			return usage.Errorf("--host: %w", err)
		}
		if c, err = c.ForHost(inv, h); err != nil {
			return err
		}
	}
	switch format {
	case showYAML:
		return g.printYAML(c.WithDefaults())
	case showJSON:
		return g.PrintJSON(configResult{1, file, o.host, c.Values()})
	}
	return printValues(g, c.Values())
}

func printValues(g *globals, values []document.Value) error {
	var rows [][]string
	for _, v := range values {
		text, ok := v.Value.(string)
		if !ok {
			b, err := json.Marshal(v.Value)
			if err != nil {
				return err
			}
			text = string(b)
		}
		rows = append(rows, []string{v.Path, text, v.Origin.String()})
	}
	return g.PrintTable([]string{"VALUE OF", "IS", "FROM"}, rows)
}
