package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

func newCompletionCmd(g *globals) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:       "completion " + strings.Join(shells, "|"),
		Short:     "Print a shell completion script",
		Example:   "  source <(kkbundle completion bash)\n  kkbundle completion zsh > \"${fpath[1]}/_kkbundle\"",
		ValidArgs: shells,
		Args:      cobra.MatchAll(takes("SHELL"), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(g.Out, true)
			case "zsh":
				return root.GenZshCompletion(g.Out)
			case "fish":
				return root.GenFishCompletion(g.Out, true)
			}
			return root.GenPowerShellCompletionWithDesc(g.Out)
		},
	}
}
