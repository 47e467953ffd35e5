package cli

import (
	"context"
	"errors"
	"net"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/plain"
	"github.com/kkbundle/kkbundle/registry/embedded"
	"github.com/kkbundle/kkbundle/registry/serve"
)

func newRegistryCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Run a writable registry",
		Long: `A registry (the CNCF distribution) for sites that have none: serve runs it here and now, install makes it a service of this
host with certificates and a login of its own. push seeds it.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRegistryServeCmd(g), newRegistryGCCmd(g), newRegistryInstallCmd(g), newRegistryCertsCmd(g), newRegistryUninstallCmd(g))
	return cmd
}

type registryServeOptions struct {
	serveOptions
	dir, metrics     string
	delete, readOnly bool
}

func newRegistryServeCmd(g *globals) *cobra.Command {
	var o registryServeOptions
	cmd := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Serve a directory as a writable registry",
		Long: `Serves a directory as an OCI registry until it is interrupted. The directory has the layout of the CNCF distribution's file system
driver, so its registry program can take over, and the reverse. Image indexes are taken although platforms are missing from
them, as bundles have them.

Only this host can reach it unless --listen says otherwise; then it wants TLS, or --plain-http. Whoever may log in may push, and
without --htpasswd everybody may. --delete allows to delete too; space comes back with kkbundle registry gc.

SIGHUP takes up users and certificates that were replaced. SIGTERM and Ctrl-C let transfers finish, for 20 seconds at most; uploads
continue after a restart. For S3 and other storage, run the registry program: kkbundle registry install --config.`,
		Example: `  kkbundle registry serve --dir /srv/registry
  kkbundle registry serve --dir /srv/registry --listen :5000 --tls-auto --htpasswd users --delete --metrics 127.0.0.1:5001`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runRegistryServe(cmd.Context(), g, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "where content is kept (required)")
	o.addFlags(f)
	f.BoolVar(&o.delete, "delete", false, "allow to delete manifests, tags and blobs")
	f.BoolVar(&o.readOnly, "read-only", false, "refuse whatever changes content; registry gc may run meanwhile")
	f.StringVar(&o.metrics, "metrics", "", "address and port of /metrics (Prometheus) and /healthz, without login or TLS")
	return cmd
}

func runRegistryServe(ctx context.Context, g *globals, o registryServeOptions) error {
	if o.dir == "" {
		return usage.Errorf("say where content is kept with --dir DIR")
	}
	if o.auto && o.tlsDir == "" {
		o.tlsDir = filepath.Join(o.dir, "tls")
	}
	c, err := o.certificates()
	if err != nil {
		return err
	}
	if o.metrics != "" {
		if err := serve.CheckListen(o.metrics, false, o.plainHTTP); err != nil {
			return usage.Errorf("--metrics %w", err)
		}
	}
	r, err := embedded.Open(ctx, embedded.Options{Dir: o.dir, Users: o.users, Delete: o.delete, ReadOnly: o.readOnly, Logger: g.Logger()})
	if err != nil {
		return err
	}
	if c != nil {
		if err := c.load(); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	return errors.Join(g.runRegistry(ctx, r, c, o), r.Close())
}

// runRegistry answers until ctx ends, or until one of the listeners fails.
func (g *globals) runRegistry(ctx context.Context, r *embedded.Registry, c *certificates, o registryServeOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return err
	}
	runs := []func() error{func() error { return r.Run(ctx, l, c.current()) }}
	if o.metrics != "" {
		m, err := new(net.ListenConfig).Listen(ctx, "tcp", o.metrics)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		runs = append(runs, func() error { return r.RunMetrics(ctx, m) })
	}
	if o.users == "" && !o.readOnly {
		g.Note("warning: without --htpasswd, everybody who reaches it may push")
	}
	defer g.onHangup(ctx, reloadRegistry{r}, c)()
	done := make(chan error, len(runs))
	for _, run := range runs {
		go func() { done <- run(); cancel() }()
	}
	err = g.announce(l, c)
	if err != nil {
		cancel()
	}
	for range runs {
		err = errors.Join(err, <-done)
	}
	return err
}

// reloadRegistry takes up what was replaced.
type reloadRegistry struct{ *embedded.Registry }

func (r reloadRegistry) Reload(context.Context) error { return r.Registry.Reload() }

func newRegistryGCCmd(g *globals) *cobra.Command {
	var o embedded.CollectOptions
	cmd := &cobra.Command{
		Use:   "gc --dir DIR",
		Short: "Garbage-collect a registry's directory",
		Long: `Removes blobs that no manifest leads to, which is what deletion leaves behind. With --untagged also manifests that no tag and no index
leads to, as a tag that was moved leaves them; what is attached to images by the referrers API alone goes with them.

The registry has to be stopped, or to run with --read-only: gc refuses to run beside one that may be written to. Where anything
cannot be read, nothing is removed.`,
		Example: `  kkbundle registry gc --dir /srv/registry --dry-run
  systemctl stop kkbundle-site-registry; kkbundle registry gc --dir /var/lib/kkbundle-site-registry; systemctl start kkbundle-site-registry`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Dir == "" {
				return usage.Errorf("say which registry's directory with --dir DIR")
			}
			o.Logger = g.Logger()
			return runRegistryGC(cmd.Context(), g, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "the registry's directory (required)")
	f.BoolVar(&o.DryRun, "dry-run", false, "only say what would be removed; the registry may run")
	f.BoolVar(&o.Untagged, "untagged", false, "remove manifests without a tag too")
	return cmd
}

// collectedResult is what registry gc prints with --json.
type collectedResult struct {
	Version int  `json:"version"` // 1
	DryRun  bool `json:"dryRun"`
	embedded.Collected
}

func runRegistryGC(ctx context.Context, g *globals, o embedded.CollectOptions) error {
	c, err := embedded.Collect(ctx, o)
	if err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(collectedResult{1, o.DryRun, c})
	}
	verb := "removed"
	if o.DryRun {
		verb = "would remove"
	}
	return g.Result("%s %s and %s, %s", verb, plain.Count(c.Manifests, "manifest"), plain.Count(c.Blobs, "blob"), plain.Size(c.Bytes))
}
