package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/site"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/rotate"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/registry/service"
)

type registryRotateOptions struct {
	site.Flags
	pull, push, finish, dryRun bool
	root                       string
}

func newRegistryRotateCmd(g *globals) *cobra.Command {
	var o registryRotateOptions
	cmd := &cobra.Command{
		Use:   "rotate [-i INVENTORY [BUNDLE]]",
		Short: "Replace the logins of a registry",
		Long: `Replaces the logins of a registry by new ones: the one to pull, the one to push (--pull, --push; default both).

With -i INVENTORY: the registry of a cluster. Pulls go on meanwhile; no runtime restarts, except k3s and, with Docker,
the kubelet. All hosts must be reachable; if one is lost or the command is killed, run it again. Use the bundle and
cluster file of the last installation: nodes that differ from them are refused. Harbor gets another robot account for
the nodes; its administrator, who pushes, is not changed (use --pull). Guide: docs/site/registry-hosts.md.

Without -i: the registry of kkbundle registry install on this host (root required). It accepts the old logins until
rotate --finish, because only you know all its clients: give them the new login first, with mirror-config. Guide:
docs/site/registry-service.md.`,
		Example: `  kkbundle registry rotate -i inventory.yaml -c cluster.yaml site-1.4.0.kkb
  kkbundle registry rotate --pull && kkbundle registry rotate --pull --finish`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !o.pull && !o.push {
				o.pull, o.push = true, true
			}
			if o.InventoryFile == "" {
				return runRotateHere(cmd.Context(), g, args, o)
			}
			if o.finish || cmd.Flags().Changed("root") {
				return usage.Errorf("--finish and --root are for a registry of this host: leave out -i")
			}
			return runRotateSite(cmd.Context(), g, first(args), o)
		},
	}
	f := cmd.Flags()
	o.Flags.Add(f)
	f.Lookup("inventory").Usage = "the inventory `file` of a cluster"
	g.addTrust(f)
	f.BoolVar(&o.pull, "pull", false, "only the login to pull")
	f.BoolVar(&o.push, "push", false, "only the login to push")
	f.BoolVar(&o.finish, "finish", false, "end the replaced logins of this host's registry")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes on the hosts of INVENTORY, and make none")
	f.StringVar(&o.root, "root", "/", "root directory of the host with the registry")
	return cmd
}

func runRotateSite(ctx context.Context, g *globals, path string, o registryRotateOptions) error {
	return g.runOnSite(ctx, o.Flags, path, o.dryRun, func(options engine.Options) (engine.Report, error) {
		return rotate.Logins(ctx, options, siteregistry.Logins{Pull: o.pull, Push: o.push})
	})
}

// rotatedResult is the JSON output of registry rotate on the registry's host.
type rotatedResult struct {
	Version  int      `json:"version"` // 1
	Username string   `json:"username"`
	Password string   `json:"passwordFile"`
	PushUser string   `json:"pushUsername"`
	PushPass string   `json:"pushPasswordFile"`
	Old      []string `json:"accepted,omitempty"` // replaced users, until --finish
	Ended    []string `json:"ended,omitempty"`
}

func runRotateHere(ctx context.Context, g *globals, args []string, o registryRotateOptions) error {
	if len(args) > 0 || o.dryRun {
		return usage.Errorf("BUNDLE and --dry-run are for the registry of a cluster: name its inventory with -i")
	}
	if service.HostCommands(o.root) != nil && os.Geteuid() != 0 {
		return errors.New("the logins belong to root: use sudo")
	}
	res, err := service.Rotate(ctx, service.RotateOptions{
		Root: o.root, Pull: o.pull, Push: o.push, Finish: o.finish,
		Run: service.HostCommands(o.root),
	})
	if err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(rotatedResult{
			1, res.Pull.User, res.Pull.File, res.Push.User, res.Push.File, res.Old,
			res.Ended,
		})
	}
	if err := errors.Join(
		g.Result("login to pull: %s, password in %s", res.Pull.User, res.Pull.File),
		g.Result("login to push: %s, password in %s", res.Push.User, res.Push.File),
	); err != nil {
		return err
	}
	if o.finish {
		if len(res.Ended) > 0 {
			g.Note("ended: %s", strings.Join(res.Ended, ", "))
		}
		return nil
	}
	_, port, _ := net.SplitHostPort(res.Listen) // checked by install
	g.Note("still accepted: %s", strings.Join(res.Old, ", "))
	if o.pull {
		g.Note("on each client: kkbundle mirror-config --registry %s --ca %s -u %s --password-stdin -o / BUNDLE < %s",
			net.JoinHostPort(res.Names[0], port), service.CAFile, res.Pull.User, res.Pull.File)
	}
	g.Note("then: kkbundle registry rotate --finish")
	return nil
}
