package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/extract"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/registry/serve"
	"github.com/kkbundle/kkbundle/registry/service"
)

type registryInstallOptions struct {
	service.Settings
	root, config, program string
	dryRun                bool
}

func newRegistryInstallCmd(g *globals) *cobra.Command {
	var o registryInstallOptions
	cmd := &cobra.Command{
		Use:   "install [BUNDLE]",
		Short: "Install a registry as a service on this host",
		Long: `Installs kkbundle registry serve as a systemd service (root required): with its own user, which may write to its
directory only, a certificate authority, a certificate for the names that clients use, and two logins: "registry" may
pull (for mirror-config), "registry-push" may push. Only root can read the files with their passwords. Running it
again changes only what differs: omitted flags keep their values. A systemd timer renews the certificate.

  --config   runs the registry program of the bundle instead, with any of its storage drivers (S3, Azure, GCS). That
             file sets everything, also the address and permissions; it can use tls.crt, tls.key and htpasswd in
             /etc/kkbundle-site-registry. The program lets every user of its htpasswd file push
  --root     writes the files below the root directory of another host and runs nothing

Guide, with more users: docs/site/registry-service.md.`,
		Example: `  kkbundle registry install --name registry.site
  kkbundle registry install --listen :443 --dir /srv/registry --name registry.site --name 10.0.0.3
  kkbundle registry install --config s3.yaml --name registry.site site-1.4.0.kkb`,
		Args: takes("[BUNDLE]"),
		RunE: func(cmd *cobra.Command, args []string) error { return runRegistryInstall(cmd, g, args, o) },
	}
	f := cmd.Flags()
	g.addAccept(f)
	f.StringVar(&o.Dir, "dir", service.DefaultDir, "directory of the content")
	f.StringVar(&o.Listen, "listen", ":5000", "address and port to listen on; :5000 is all addresses of this host")
	f.StringArrayVar(&o.Names, "name", nil,
		"a host name or address that clients use (repeated); this host's names are always included")
	f.BoolVar(&o.Delete, "delete", false, "allow deleting manifests, tags and blobs")
	f.StringVar(&o.Metrics, "metrics", "", "address and port of /metrics (Prometheus), without login or TLS")
	f.StringVar(&o.config, "config", "", "configuration file of the registry program, which runs instead; needs BUNDLE")
	f.StringVar(&o.program, "program", "registry", "the item with the registry program")
	f.StringVar(&o.root, "root", "/", "root directory of the host")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes, and make none")
	return cmd
}

func runRegistryInstall(cmd *cobra.Command, g *globals, args []string, o registryInstallOptions) error {
	ctx := cmd.Context()
	if (o.config == "") != (len(args) == 0) {
		return usage.Errorf("--config FILE and a BUNDLE with the registry program go together")
	}
	if err := o.complete(cmd); err != nil {
		return err
	}
	if o.Metrics != "" {
		if err := serve.CheckListen(o.Metrics, false, true); err != nil {
			return usage.Errorf("--metrics %w", err)
		}
	}
	if service.HostCommands(o.root) != nil && os.Geteuid() != 0 {
		return errors.New("installing a service needs root: use sudo, or --root DIR to see the files")
	}
	install := service.Options{
		Settings: o.Settings, Root: o.root, Now: time.Now(), Run: service.HostCommands(o.root),
		Ready: o.Ready(o.root), DryRun: o.dryRun,
	}
	own, err := service.OwnProgram()
	if err != nil {
		return err
	}
	install.Program = own
	if o.config != "" {
		install.Tool = own
		if install.Config, err = builder.ReadFile(o.config); err != nil {
			return err
		}
		g.trust.unrecorded = o.dryRun
		r, err := g.openAccepted(ctx, args[0])
		if err != nil {
			return err
		}
		defer r.Close()
		if install.Program, err = registryProgram(ctx, r, o.program); err != nil {
			return err
		}
	}
	res, err := service.Install(ctx, install)
	if err != nil {
		return err
	}
	return g.installed(res, o)
}

// complete takes missing flags from the last installation.
func (o *registryInstallOptions) complete(cmd *cobra.Command) error {
	had, err := service.Load(o.root)
	switch {
	case err == nil:
		set := cmd.Flags().Changed
		if had.Own && o.config == "" {
			return usage.Errorf("the registry program of a bundle runs here: give --config and the BUNDLE again, or uninstall it first")
		}
		if !set("dir") {
			o.Dir = had.Dir
		}
		if !set("listen") {
			o.Listen = had.Listen
		}
		if !set("delete") {
			o.Delete = had.Delete
		}
		if !set("metrics") {
			o.Metrics = had.Metrics
		}
		if !set("name") {
			o.Names = had.Names
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	own, err := serve.HostNames(o.Listen)
	if err != nil {
		return &usage.Error{Err: err}
	}
	if service.HostCommands(o.root) == nil {
		own = []string{"localhost", "127.0.0.1", "::1"} // --root is for another host
	}
	for _, n := range own {
		if !slices.Contains(o.Names, n) {
			o.Names = append(o.Names, n)
		}
	}
	o.Version, o.Own = 1, o.config != ""
	return nil
}

// serviceResult is the JSON output of registry install.
type serviceResult struct {
	Version  int               `json:"version"` // 1
	DryRun   bool              `json:"dryRun"`
	Changed  bool              `json:"changed"`
	Files    []hostfile.Change `json:"files"`
	Address  string            `json:"address"`
	Names    []string          `json:"names"`
	CA       string            `json:"ca"`
	Ends     time.Time         `json:"ends"`     // the certificate
	Username string            `json:"username"` // may only pull, unless the registry program runs
	Password string            `json:"passwordFile"`
	PushUser string            `json:"pushUsername"`
	PushPass string            `json:"pushPasswordFile"`
}

func (g *globals) installed(res service.Result, o registryInstallOptions) error {
	_, port, _ := net.SplitHostPort(o.Listen) // checked before
	address := net.JoinHostPort(o.Names[0], port)
	if g.JSON {
		return g.PrintJSON(serviceResult{
			1, o.dryRun, res.Changed(), res.Changes, address, o.Names, res.CA, res.Ends, res.Pull.User, res.Pull.File,
			res.Push.User, res.Push.File,
		})
	}
	if err := g.printChanges(res.Changes, nil, o.dryRun); err != nil {
		return err
	}
	switch {
	case !res.Changed():
		g.Note("nothing to do")
	case o.dryRun && res.Started && !res.Ran:
		g.Note("the service would be started")
	case o.dryRun && res.Started:
		g.Note("the service would be restarted")
	case o.dryRun:
		g.Note("the service would not be restarted")
	case res.Started:
		g.Note("%s runs", service.Unit)
	}
	if o.Own {
		address = "HOST:PORT" // set by the configuration
	}
	g.Note("certificate until %s; clients trust %s", res.Ends.Format(time.DateOnly), res.CA)
	g.Note("login to pull: %s, password in %s\nlogin to push: %s, password in %s", res.Pull.User, res.Pull.File,
		res.Push.User, res.Push.File)
	g.Note("seed it: kkbundle push --registry %s --ca %s -u %s --password-stdin BUNDLE < %s", address, res.CA,
		res.Push.User, res.Push.File)
	return nil
}

// registryProgram returns the registry program of a bundle, a file or an archive with it. The whole file is compared
// with its digest.
func registryProgram(ctx context.Context, r *bundle.Reader, name string) (service.Program, error) {
	files := slices.DeleteFunc(slices.Clone(r.Index().Items),
		func(it bundle.Item) bool { return it.Kind != bundle.KindFile })
	wanted, err := parsePlatforms([]string{"linux/" + runtime.GOARCH})
	if err != nil {
		return service.Program{}, err
	}
	item, err := extract.Find(files, name, wanted)
	if err != nil {
		return service.Program{}, err
	}
	content, err := r.ContentOf(ctx, item)
	if err != nil {
		return service.Program{}, err
	}
	return service.Program{Name: "registry", Open: func() (io.ReadCloser, error) {
		blob, err := r.Blob(ctx, content.Digest, 0)
		if err != nil {
			return nil, err
		}
		out, err := service.Unpack(blob)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", item, err), blob.Close())
		}
		return out, nil
	}}, nil
}

func newRegistryCertsCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Manage the certificates of an installed registry",
		Args:  takes(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var root string
	var newCA bool
	var days int
	renew := &cobra.Command{
		Use:   "renew",
		Short: "Renew the registry's certificate now",
		Long: `Renews the certificate of an installed registry for the same names, and reloads it without ending transfers. Clients
trust it through the same authority. --new-ca creates a new authority, which all clients must get. The timer of
registry install runs it with --days 60.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if days < 0 || days > 0 && newCA {
				return usage.Errorf("--days N is positive, and without --new-ca")
			}
			renewed, err := service.Renew(cmd.Context(), service.RenewOptions{
				Root: root, NewAuthority: newCA, Within: time.Duration(days) * 24 * time.Hour, Now: time.Now(),
				Run: service.HostCommands(root),
			})
			if err != nil {
				return err
			}
			if g.JSON {
				return g.PrintJSON(renewResult{1, renewed.Changed, renewed.Ends})
			}
			if !renewed.Changed {
				g.Note("nothing to renew")
			}
			return g.Result("certificate until %s", renewed.Ends.Format(time.DateOnly))
		},
	}
	renew.Flags().StringVar(&root, "root", "/", "root directory of the host")
	renew.Flags().BoolVar(&newCA, "new-ca", false, "create a new authority too")
	renew.Flags().IntVar(&days, "days", 0, "only a certificate that ends within so many `days` (default: any)")
	cmd.AddCommand(renew)
	return cmd
}

// renewResult is the JSON output of registry certs renew.
type renewResult struct {
	Version int       `json:"version"` // 1
	Renewed bool      `json:"renewed"`
	Ends    time.Time `json:"ends"`
}

func newRegistryUninstallCmd(g *globals) *cobra.Command {
	var o service.RemoveOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove an installed registry service",
		Long: `Stops an installed registry and removes its units and program. Content, certificates and logins stay for a later
install; --with-data removes them too, and the user.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Run = service.HostCommands(o.Root)
			removed, err := service.Remove(cmd.Context(), o)
			if g.JSON {
				return errors.Join(err, g.PrintJSON(uninstallResult{1, removed}))
			}
			for _, name := range removed {
				if err := g.Result("removed  %s", name); err != nil {
					return err
				}
			}
			if err == nil && len(removed) == 0 {
				g.Note("nothing to remove")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.Root, "root", "/", "root directory of the host")
	cmd.Flags().BoolVar(&o.WithData, "with-data", false, "remove content, certificates and logins too")
	return cmd
}

// uninstallResult is the JSON output of registry uninstall.
type uninstallResult struct {
	Version int      `json:"version"` // 1
	Removed []string `json:"removed"`
}
