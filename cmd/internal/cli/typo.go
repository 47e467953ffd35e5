package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// nearest returns the known name that a mistyped one means, or "". It differs in at most a third of the letters.
func nearest(typed string, known []string) string {
	best, far := plain.Nearest(typed, known), max(1, len(typed)/3)+1
	if best == "" || plain.Distance(strings.ToLower(typed), strings.ToLower(best), far) == far {
		return ""
	}
	return best
}

// unknownCommand returns the error of a word that is no command of the group c. It names the nearest command of the
// group, else a command of that name in another group: `kkbundle backup` means `kkbundle etcd backup`.
func unknownCommand(c *cobra.Command, word string) error {
	text := fmt.Sprintf("unknown command %q for %q", plain.Line(word), c.CommandPath())
	var names, paths []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() || sub.Name() == "help" { // cobra counts help as unavailable
			names = append(names, sub.Name())
		}
	}
	if best := nearest(word, names); best != "" {
		paths = append(paths, c.CommandPath()+" "+best)
	} else {
		for _, other := range allCommands(c.Root()) {
			if other.Name() == word && other.IsAvailableCommand() {
				paths = append(paths, other.CommandPath())
			}
		}
	}
	if len(paths) == 0 {
		return fmt.Errorf("%s; `%s --help` lists them", text, c.CommandPath())
	}
	return fmt.Errorf("%s; did you mean `%s`?", text, strings.Join(paths, "` or `"))
}

// nearFlag returns the question for the flag that an unknown one means, or "".
func nearFlag(c *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return ""
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if best := nearest(unknown.GetSpecifiedName(), names); best != "" {
		return fmt.Sprintf("did you mean --%s? ", best)
	}
	return ""
}

// newHelpCmd returns cobra's help command, which fails for a command that does not exist.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		Long:  "Shows the help of a command, as COMMAND --help does.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 && c.HasSubCommands() {
				return &usage.Error{Err: unknownCommand(c, rest[0])}
			}
			c.InitDefaultHelpFlag() // as COMMAND --help shows it
			return c.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			c, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, sub.Name()+"\t"+sub.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
