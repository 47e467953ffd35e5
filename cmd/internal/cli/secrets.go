package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/rotate"
)

func newSecretsCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Manage the encryption of Secrets in etcd",
		Long: `Manages the encryption of Secrets in etcd.

New clusters encrypt them, at every security level. The key is on the control planes and in the work directory.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSecretsRotateCmd(g))
	return cmd
}

func newSecretsRotateCmd(g *globals) *cobra.Command {
	var o site.Flags
	cmd := &cobra.Command{
		Use:   "rotate-key -i INVENTORY [BUNDLE]",
		Short: "Replace the key that encrypts Secrets, and rewrite all Secrets",
		Long: `Adds a new key to every control plane, makes it the first on every control plane, rewrites all Secrets with it, and
removes the old one. API servers restart three times, one control plane after the other; workloads keep running. All
control planes must be reachable. After an interruption run it again: it continues.

The old key stays in the work directory, because older copies of etcd need it. Back up the work directory's keys
afterwards (certs backup). On k3s: k3s secrets-encrypt rotate-keys, then a restart of every server. Guide:
docs/site/security.md.`,
		Example: "  kkbundle secrets rotate-key -i inventory.yaml site-1.4.0.kkb",
		Args:    takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSecretsRotate(cmd.Context(), g, first(args), o)
		},
	}
	o.Add(cmd.Flags())
	g.addTrust(cmd.Flags())
	return cmd
}

func runSecretsRotate(ctx context.Context, g *globals, path string, o site.Flags) error {
	err := g.runOnSite(ctx, o, path, false, func(options engine.Options) (engine.Report, error) {
		return rotate.EncryptionKey(ctx, options)
	})
	if err == nil {
		g.Note("Secrets are encrypted with a new key; save it with kkbundle certs backup")
	}
	return err
}
