// Package cli has kkbundle's commands, one file each. A command parses flags, calls a library and prints the result
// with package terminal. exit.go has the exit codes.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle/delta"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// globals are the flags that every command has.
type globals struct {
	*terminal.Console
	started   bool // arguments and flags are valid
	downloads downloads
	trust     trustOptions
	keys      keyOptions
}

// downloads counts the downloads of a build, for the message of an interruption.
type downloads struct {
	any atomic.Bool
	git atomic.Int32 // Git repositories that are not complete
}

// interrupted returns the error for an end now: nil if nothing was downloaded.
func (d *downloads) interrupted() *interruptedDownloadError {
	if !d.any.Load() {
		return nil
	}
	return &interruptedDownloadError{git: d.git.Load() > 0}
}

// Main runs kkbundle with args (without the program's name) and returns the exit code of exit.go's table.
func Main(ctx context.Context, args []string, streams terminal.Streams) int {
	g := &globals{Console: terminal.NewConsole(streams)}
	cmd := newRootCmd(g) //nolint:contextcheck // commands take the context that ExecuteContext is given
	cmd.SetArgs(args)
	defer context.AfterFunc(ctx, g.StopMeters)()
	err := cmd.ExecuteContext(ctx)
	switch {
	case err != nil && !g.started:
		err = &usage.Error{Err: err}
	case err != nil:
		err = ended(ctx, err, g.downloads.interrupted())
	}
	if other, ok := errors.AsType[*delta.EncoderError](err); ok {
		g.Logger().Debug("encoders", "bundle", other.Bundle, "this kkbundle", other.Own)
	}
	switch {
	case errors.Is(err, errDiffers): // the differences were printed
	case endedBy(err, syscall.SIGPIPE): // nobody reads
	case err != nil && g.JSON:
		g.failed(err)
	case err != nil:
		printError(streams.Err, err)
	}
	return exitCode(err)
}

// Commands returns the tree of all commands, for manual pages and completions. The commands are not for running.
func Commands() *cobra.Command {
	return newRootCmd(&globals{Console: terminal.NewConsole(terminal.Streams{
		In: strings.NewReader(""), Out: io.Discard,
		Err: io.Discard,
	})})
}

func newRootCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kkbundle",
		Short: "Install Kubernetes and its applications without internet",
		Long: `kkbundle installs Kubernetes and its applications at sites without internet.

On a connected machine, build downloads everything a manifest names into one file.
That file is carried across; push seeds a registry from it, install makes a cluster.`,
		Annotations:       exitCodesOf(exitCodeHelp()),
		Version:           versionLine(),
		Args:              takes(),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil {
				return err
			}
			g.started = true
			g.askWith(cmd.Context())
			return nil
		},
	}
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.SetIn(g.In)
	cmd.SetOut(g.Out)
	cmd.SetErr(g.Err)
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		text := err.Error()
		var wrong *strconv.NumError
		if errors.As(err, &wrong) { // pflag says it as Go does
			text = strings.TrimSuffix(text, wrong.Error()) + "want a whole number"
		}
		return fmt.Errorf("%s; %ssee `%s --help`", text, nearFlag(c, err), c.CommandPath())
	})
	cmd.SetHelpCommand(newHelpCmd())
	f := cmd.PersistentFlags()
	f.BoolVarP(&g.Quiet, "quiet", "q", false, "print only errors and requested output")
	f.BoolVarP(&g.Verbose, "verbose", "v", false, "print details")
	f.BoolVar(&g.JSON, "json", false,
		"print the result as one JSON document, and events as lines of JSON on standard error")
	cmd.AddGroup(
		&cobra.Group{ID: "connected", Title: "With internet:"},
		&cobra.Group{ID: "bundle", Title: "The bundle:"},
		&cobra.Group{ID: "site", Title: "At the site:"},
	)
	for group, cmds := range map[string][]*cobra.Command{
		"connected": {
			newInitCmd(g), newCheckCmd(g), newBuildCmd(g), newLockCmd(g), newImagesCmd(g), newOutdatedCmd(g),
			newCatalogCmd(g), newCacheCmd(g), newConvertCmd(g),
		},
		"bundle": {
			newInspectCmd(g), newVerifyCmd(g), newExtractCmd(g), newCopyCmd(g), newDiffCmd(g), newDeltaCmd(g),
			newPatchCmd(g), newPackCmd(g), newUnpackCmd(g), newPartsCmd(g), newPublishCmd(g), newPullCmd(g),
			newSignCmd(g), newKeygenCmd(g),
		},
		"site": {
			newPushCmd(g), newDeployCmd(g), newServeCmd(g), newRegistryCmd(g), newMirrorConfigCmd(g),
			newInventoryCmd(g), newConfigCmd(g), newPrecheckCmd(g), newInstallCmd(g), newProvisionCmd(g),
			newUpgradeMachineCmd(g),
			newNodesCmd(g), newEndpointCmd(g), newUpgradeCmd(g), newEtcdCmd(g), newCertsCmd(g), newSecretsCmd(g),
			newStatusCmd(g), newSupportBundleCmd(g), newAdoptCmd(g), newHandoverCmd(g),
			newResetCmd(g),
		},
		"": {
			newLoginCmd(g), newLogoutCmd(g), newSchemaCmd(g), newCompletionCmd(g), newDocsCmd(g), newVersionCmd(g),
			newSandboxCmd(g),
		},
	} {
		for _, c := range cmds {
			c.GroupID = group
			cmd.AddCommand(c)
		}
	}
	groupFlags(cmd)
	fitHelp(cmd)
	g.completeAll(cmd)
	return cmd
}

// first returns the optional argument, or "".
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// takes checks the number of arguments. Names in brackets are optional.
func takes(names ...string) cobra.PositionalArgs {
	least := 0
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= len(names) {
			return nil
		}
		if cmd.HasSubCommands() && len(names) == 0 {
			return unknownCommand(cmd, args[0])
		}
		want := strings.Join(names, " ")
		want = cmp.Or(want, "no arguments")
		return fmt.Errorf("`%s` takes %s, got %s; see `%s --help`", cmd.CommandPath(), want,
			plain.Count(len(args), "argument"), cmd.CommandPath())
	}
}

// takesSome checks that a command has at least one argument.
func takesSome(names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		return fmt.Errorf("`%s` takes %s, got none; see `%s --help`", cmd.CommandPath(), names, cmd.CommandPath())
	}
}
