package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

// A completer returns the values that a shell offers.
type completer = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// completeAll makes shells offer the values of flags and arguments: files by their extension, fixed values, items of
// the bundle, hosts of the inventory.
func (g *globals) completeAll(root *cobra.Command) {
	flags := map[string]completer{
		"level":     oneOf("fast", "default", "better", "best"),
		"prefer":    oneOf("first", "last"),
		"platform":  oneOf("linux/amd64", "linux/arm64"),
		"tags":      oneOf(engine.TagGroups()...),
		"inventory": filesWith("yaml", "yml"),
		"cluster":   filesWith("yaml", "yml"),
		"item":      g.completeItems,
		"limit":     completeHosts,
		"without":   completeHosts,
		"host":      completeHosts,
	}
	for _, c := range allCommands(root) {
		if c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 {
			c.ValidArgsFunction = g.argumentsOf(c)
		}
		for name, f := range flags {
			if c.LocalFlags().Lookup(name) != nil {
				_ = c.RegisterFlagCompletionFunc(name, f) // fails only for a second one
			}
		}
		switch {
		case c.CommandPath() == "kkbundle precheck":
			_ = c.RegisterFlagCompletionFunc("output", oneOf("table", "json", "junit", "html", "markdown"))
		case c.CommandPath() == "kkbundle status":
			_ = c.RegisterFlagCompletionFunc("output", oneOf(showTable, showJSON))
		case c.CommandPath() == "kkbundle extract":
			_ = c.RegisterFlagCompletionFunc("format", oneOf(formatOCI, formatOCIArchive, formatDocker, formatTree))
		case c.LocalFlags().Lookup("output") != nil && c.LocalFlags().Lookup("output").DefValue == showTable:
			_ = c.RegisterFlagCompletionFunc("output", oneOf(showTable, showYAML, showJSON))
		}
	}
}

// allCommands returns a command and all below it.
func allCommands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, one := range c.Commands() {
		list = append(list, allCommands(one)...)
	}
	return list
}

// argumentsOf returns the completer of arguments by the names in the usage line; nil completes any file.
func (g *globals) argumentsOf(c *cobra.Command) completer {
	_, names, _ := strings.Cut(c.Use, " ")
	bundles := filesWith("kkb", "age", "001")
	switch {
	case c.CommandPath() == "kkbundle nodes delete":
		return completeHosts
	case c.Name() == "extract":
		return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return bundles(cmd, args, begun)
			}
			return g.completeItems(cmd, args, begun)
		}
	case strings.Contains(names, "BUNDLE"):
		return bundles
	case strings.Contains(names, "MANIFEST"), strings.Contains(names, "CLUSTER"), strings.Contains(names, "INVENTORY"):
		return filesWith("yaml", "yml")
	}
	return nil
}

// oneOf completes fixed values.
func oneOf(values ...string) completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}

// filesWith completes files by their extension.
func filesWith(extensions ...string) completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return extensions, cobra.ShellCompDirectiveFilterFileExt
	}
}

// completeItems completes the items of the bundle that was named first. An encrypted bundle is read only with a key
// that needs no question.
func (g *globals) completeItems(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(args) == 0 {
		return nil, none
	}
	g.keys.prompt = func(string) (string, error) { return "", errors.New("no prompts during shell completion") }
	r, err := g.openUnchecked(args[0])
	if err != nil {
		return nil, none
	}
	defer r.Close()
	var names []string
	for _, it := range r.Index().Items {
		if it.Kind != bundle.KindReferrer {
			names = append(names, it.Ref)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), none
}

// completeHosts completes the hosts of the inventory.
func completeHosts(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	file := site.DefaultInventory
	if f := cmd.Flags().Lookup("inventory"); f != nil && f.Value.String() != "" {
		file = f.Value.String()
	}
	data, err := builder.ReadFile(file)
	if err != nil {
		return nil, none
	}
	inv, _, err := kubekey.ReadInventory(file, data)
	if err != nil {
		return nil, none
	}
	var names []string
	for _, h := range inv.Hosts() {
		names = append(names, h.Name)
	}
	return names, none
}
