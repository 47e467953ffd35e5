package cli

import (
	"bytes"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
)

// groupFlags makes help list the flags that many commands share after the command's own, each group under its title.
func groupFlags(root *cobra.Command) {
	plain := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		out := c.OutOrStderr()
		var text bytes.Buffer
		c.SetOut(&text)
		err := plain(c)
		c.SetOut(out)
		if err != nil {
			return err
		}
		all := strings.TrimRight(c.LocalFlags().FlagUsages(), " \n")
		_, err = io.WriteString(out, strings.Replace(text.String(), all, groupedFlags(c.LocalFlags()), 1))
		return err
	})
}

// groupedFlags returns the help of flags: those without a group first, then each group in the order of its first flag.
func groupedFlags(flags *pflag.FlagSet) string {
	sets := map[string]*pflag.FlagSet{}
	titles := []string{""}
	flags.VisitAll(func(f *pflag.Flag) {
		title := usage.GroupOf(f)
		if sets[title] == nil {
			sets[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
			if title != "" {
				titles = append(titles, title)
			}
		}
		sets[title].AddFlag(f)
	})
	var parts []string
	for _, title := range titles {
		if sets[title] == nil || !sets[title].HasAvailableFlags() {
			continue
		}
		text := strings.TrimRight(sets[title].FlagUsages(), " \n")
		if title != "" {
			text = title + ":\n" + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n\n")
}
