package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/serve"
	"github.com/kkbundle/kkbundle/web/dial"
	"github.com/kkbundle/kkbundle/web/logins"
)

func newRegistryCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Run a writable registry",
		Long: `Runs a registry (CNCF distribution) at a site without one: serve in the foreground, install as a service of this host
with certificates and logins. push seeds it. rotate replaces logins, also those of a cluster's registry.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRegistryServeCmd(g), newRegistryGCCmd(g), newRegistryInstallCmd(g), newRegistryCertsCmd(g),
		newRegistryRotateCmd(g), newRegistryUninstallCmd(g))
	return cmd
}

type registryServeOptions struct {
	serveOptions
	dir, metrics     string
	pullers          string
	delete, readOnly bool
}

func newRegistryServeCmd(g *globals) *cobra.Command {
	var o registryServeOptions
	cmd := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Serve a directory as a writable registry",
		Long: `Serves a directory as an OCI registry until it is interrupted. The directory has the layout of the CNCF
distribution's file system driver, so that its registry program can use it as well. The registry accepts sparse
indexes (with missing platforms), as in bundles.

It listens on this host only; --listen for other hosts needs TLS, or --plain-http. Users of --htpasswd may push, and
users of --pull-htpasswd may only pull; without --htpasswd, everybody may push. --delete allows deleting to those who
may push; kkbundle registry gc frees the space.

SIGHUP reloads users and certificates. SIGTERM and Ctrl-C let transfers finish, for 20 seconds at most; uploads
continue after a restart. For S3 and other storage, run the registry program: kkbundle registry install --config.`,
		Example: `  kkbundle registry serve --dir /srv/registry
  kkbundle registry serve --dir /srv/registry --listen :5000 --tls-auto --htpasswd users --pull-htpasswd pullers --metrics 127.0.0.1:5001`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runRegistryServe(cmd.Context(), g, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "directory of the content (required)")
	o.addFlags(f)
	f.StringVar(&o.pullers, "pull-htpasswd", "", "file of users who may only pull, as --htpasswd, which is required")
	f.BoolVar(&o.delete, "delete", false, "allow deleting manifests, tags and blobs")
	f.BoolVar(&o.readOnly, "read-only", false, "refuse changes; registry gc may run meanwhile")
	f.StringVar(&o.metrics, "metrics", "",
		"address and port of /metrics (Prometheus) and /healthz, without login or TLS")
	return cmd
}

func runRegistryServe(ctx context.Context, g *globals, o registryServeOptions) error {
	if o.dir == "" {
		return usage.Errorf("name the directory of the content with --dir DIR")
	}
	if o.pullers != "" && o.users == "" {
		return usage.Errorf("--pull-htpasswd needs --htpasswd FILE: without users, everybody may push")
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
	r, err := openRegistry(ctx, o, g.Logger())
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

// A writableRegistry is a registry in a directory: where kkbundle carries kkbundle-registry, in a process of its own.
type writableRegistry interface {
	Run(ctx context.Context, l net.Listener, certificate func() *tls.Certificate) error
	RunMetrics(ctx context.Context, l net.Listener) error
	Reload() error
	Close() error
}

// runRegistry serves until ctx ends or a listener fails.
func (g *globals) runRegistry(ctx context.Context, r writableRegistry, c *certificates, o registryServeOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := listen(ctx, "--listen", o.listen)
	if err != nil {
		return err
	}
	runs := []func() error{func() error { return r.Run(ctx, l, c.current()) }}
	if o.metrics != "" {
		m, err := listen(ctx, "--metrics", o.metrics)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		runs = append(runs, func() error { return r.RunMetrics(ctx, m) })
	}
	if o.users == "" && !o.readOnly {
		g.Note("warning: without --htpasswd, everybody who can connect may push")
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

// reloadRegistry reloads users and certificates.
type reloadRegistry struct{ writableRegistry }

func (r reloadRegistry) Reload(context.Context) error { return r.writableRegistry.Reload() }

func newRegistryGCCmd(g *globals) *cobra.Command {
	var o collectOptions
	cmd := &cobra.Command{
		Use:   "gc --dir DIR",
		Short: "Garbage-collect a registry's directory",
		Long: `Removes blobs without a manifest, which deleting leaves behind. With --untagged also manifests without a tag or
index, which moved tags leave behind. Signatures and other referrers stay as long as their image is there.

Stop the registry first, or run it with --read-only: gc refuses to run beside a writable registry. If anything cannot
be read, gc removes nothing. Run by root, gc works as the user who owns the directory.`,
		Example: `  kkbundle registry gc --dir /srv/registry --dry-run
  systemctl stop kkbundle-site-registry; kkbundle registry gc --dir /var/lib/kkbundle-site-registry; systemctl start kkbundle-site-registry`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.dir == "" {
				return usage.Errorf("name the registry's directory with --dir DIR")
			}
			return runRegistryGC(cmd.Context(), g, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "the registry's directory (required)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be removed; the registry may run")
	f.BoolVar(&o.untagged, "untagged", false, "remove manifests without a tag too")
	return cmd
}

type collectOptions struct {
	dir              string
	dryRun, untagged bool
}

// collected counts the removed (or, in a dry run, removable) content.
type collected struct {
	Manifests int   `json:"manifests"`
	Blobs     int   `json:"blobs"`
	Bytes     int64 `json:"bytes"` // of the blobs
}

// collectedResult is the JSON output of registry gc.
type collectedResult struct {
	Version int  `json:"version"` // 1
	DryRun  bool `json:"dryRun"`
	collected
}

// becomeOwner gives up root's rights for those of the owner of a registry's directory, for the rest of the process.
// What is inside a service user's directory may be links of that user's making, and the storage driver follows links.
func becomeOwner(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return nil // the collection reports a directory that is missing
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(int(owner.Gid)),
		syscall.Setuid(int(owner.Uid))); err != nil {
		return fmt.Errorf("run as user %d, who owns %s: %w", owner.Uid, dir, err)
	}
	return nil
}

func runRegistryGC(ctx context.Context, g *globals, o collectOptions) error {
	if err := becomeOwner(o.dir); err != nil {
		return err
	}
	c, err := collectGarbage(ctx, o, g.Logger())
	if err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(collectedResult{1, o.dryRun, c})
	}
	verb := "removed"
	if o.dryRun {
		verb = "would remove"
	}
	return g.Result("%s %s and %s, %s", verb, plain.Count(c.Manifests, "manifest"), plain.Count(c.Blobs, "blob"),
		plain.Size(c.Bytes))
}

// loginFlags are for the connection and login to a registry.
type loginFlags struct {
	ca, cert, key, username  string
	plainHTTP, passwordStdin bool
}

func (f *loginFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.ca, "ca", "", "PEM file of the registry's certificate authority")
	fs.StringVar(&f.cert, "cert", "", "PEM file of a client certificate")
	fs.StringVar(&f.key, "key", "", "PEM file of the key of --cert")
	fs.BoolVar(&f.plainHTTP, "plain-http", false, "use HTTP without TLS")
	fs.StringVarP(&f.username, "username", "u", "", "log in as this user")
	fs.BoolVar(&f.passwordStdin, "password-stdin", false, "read the password from standard input")
}

// registryFlags are the flags of commands that send to a registry.
type registryFlags struct {
	loginFlags
	jobs usage.Jobs
}

func (f *registryFlags) add(fs *pflag.FlagSet) {
	f.loginFlags.add(fs)
	f.jobs = fetch.DefaultJobs // the default of package registry, too
	fs.VarP(&f.jobs, "jobs", "j", "transfers at once")
}

func (f *loginFlags) check() error {
	if (f.cert == "") != (f.key == "") {
		return usage.Errorf("--cert and --key go together")
	}
	return nil
}

// transport returns a transport with the flags, and reports whether requests are plain HTTP: with --plain-http, or on
// this machine where the registry speaks nothing else, as in docker.
func (f *loginFlags) transport(ctx context.Context, g *globals,
	registryName string,
) (t *http.Transport, plainHTTP bool, err error) {
	t, err = dial.NewTransport(dial.Files{CA: f.ca, Cert: f.cert, Key: f.key})
	host, _, _ := strings.Cut(registryName, "/")
	if err != nil || f.plainHTTP || f.ca+f.cert != "" || !sources.IsLoopback(host) ||
		!registry.SpeaksPlainHTTP(ctx, host, t) {
		return t, f.plainHTTP, err
	}
	g.Note("note: %s is this machine and speaks plain HTTP, which is used", plain.Line(host))
	return t, true, nil
}

// keychain returns the logins that this machine keeps, or the login of the flags.
func (f *loginFlags) keychain(g *globals) (authn.Keychain, error) {
	if f.username == "" && !f.passwordStdin {
		return logins.New(g.Logger()), nil
	}
	if f.username == "" || !f.passwordStdin {
		return nil, usage.Errorf(
			"--username and --password-stdin go together; passwords are never taken from the command line")
	}
	password, err := readPassword(g.In)
	if err != nil {
		return nil, err
	}
	return login{&authn.Basic{Username: f.username, Password: password}}, nil
}

// login is a keychain with one login, for the only registry of the command.
type login struct{ auth authn.Authenticator }

func (l login) Resolve(authn.Resource) (authn.Authenticator, error) { return l.auth, nil }

// readPassword reads one line of at most 4 KiB.
func readPassword(r io.Reader) (string, error) {
	const most = 4 << 10
	line, err := bufio.NewReader(io.LimitReader(r, most)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the password from standard input: %w", err)
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", usage.Errorf("no password came on standard input")
	}
	return line, nil
}
