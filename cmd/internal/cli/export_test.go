package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// CheckCommandLine checks a command line, without the program's name, against the real commands: names, flags, their
// values and the number of arguments. It returns the command's path.
func CheckCommandLine(args []string) (string, error) {
	root := Commands()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return "", err
	}
	path := strings.TrimPrefix(cmd.CommandPath(), "kkbundle ")
	if cmd == root || cmd.HasSubCommands() && cmd.Flags().NArg() == 0 && len(rest) > 0 &&
		!strings.HasPrefix(rest[0], "-") {
		return path, fmt.Errorf("unknown command %q", rest)
	}
	if err := cmd.ParseFlags(rest); err == pflag.ErrHelp { //nolint:errorlint // as cobra compares it
		return path, nil
	} else if err != nil {
		return path, err
	}
	return path, cmd.ValidateArgs(cmd.Flags().Args())
}

// HelpExamples returns the lines of all commands' examples.
func HelpExamples() map[string][]string {
	root := Commands()
	all := map[string][]string{}
	for _, c := range root.Commands() {
		for _, one := range append(c.Commands(), c) {
			if one.Example != "" {
				all[one.CommandPath()] = strings.Split(one.Example, "\n")
			}
		}
	}
	return all
}
