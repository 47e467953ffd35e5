package cli

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/manifest"
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
	settings, values        []string
	origin                  bool
}

func newConfigShowCmd(g *globals) *cobra.Command {
	var o configShowOptions
	cmd := &cobra.Command{
		Use:   "show CLUSTER|MANIFEST",
		Short: "Show the values of a cluster or a manifest and their origin",
		Long: `Shows each value of a cluster, with defaults, and its origin: default, file:line:column, a group, a host, or --set.
With -i and --host, the values are those of that host. -o yaml prints an equivalent cluster file, also for files of
KubeKey. Secrets are never shown. Versions that the file omits come from the catalog and are not listed.

Of a manifest, shows the values of its table, as build would take them: default, lock, a variable, a file of --values,
--set. A cluster file that a manifest in the same directory names is shown with these values; --origin adds, for each
setting that has one, its name and who gave it. Guide: docs/build/values.md.`,
		Example: `  kkbundle config show cluster.yaml
  kkbundle config show cluster.yaml -i inventory.yaml --host node3 --set kubernetes.maxPods=200
  kkbundle config show --origin --values paris.yaml manifest.yaml`,
		Args: takes("CLUSTER|MANIFEST"),
		RunE: func(_ *cobra.Command, args []string) error { return runConfigShow(g, args[0], o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.inventory, "inventory", "i", "", "the inventory file, for --host")
	f.StringVar(&o.host, "host", "", "show the values of this host")
	f.StringVarP(&o.output, "output", "o", showTable, "table, yaml or json")
	site.AddSet(f, &o.settings)
	f.Lookup("set").Usage += "; NAME=VALUE: a value of the manifest"
	f.StringArrayVar(&o.values, "values", nil, "`file` of values of the manifest (repeated)")
	f.BoolVar(&o.origin, "origin", false, "also show which value of the manifest a setting has, and who gave it")
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
	data, err := builder.ReadFile(file)
	if err != nil {
		return err
	}
	if fileKind(file, data).Kind == manifest.KindBundle {
		return g.showManifestValues(file, data, o)
	}
	set, settings, err := manifestValues(file, data, o)
	if err != nil {
		return err
	}
	c, err := site.ReadClusterWith(g.Console, set, file, settings)
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
	var origins map[string]string
	if o.origin {
		origins = originsOf(set, file, data)
	}
	return printValues(g, c.Values(), origins)
}

// printValues prints a table. origins have more about the values of some paths.
func printValues(g *globals, values []document.Value, origins map[string]string) error {
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
		from := v.Origin.String()
		if more := origins[v.Path]; more != "" {
			from += " (" + more + ")"
		}
		rows = append(rows, []string{v.Path, text, from})
	}
	return g.PrintTable([]string{"VALUE OF", "IS", "FROM"}, rows)
}
