package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/manual"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// serveGC keeps the heap small: most of it is long-lived buffers, and the page cache needs the memory.
const serveGC = 25

type serveOptions struct {
	listen, cert, key, tlsDir, users string
	auto, plainHTTP, verify          bool
}

func newServeCmd(g *globals) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve BUNDLE...",
		Short: "Serve bundles as a registry, and as Helm, apt, yum, Git and file repositories",
		Long: `Serves bundles read-only until it is interrupted. It unpacks nothing and is ready at once:

  /v2/<upstream host>/<path>     an OCI registry; a port in the upstream host becomes _port; supports containerd's ?ns=
  /charts/                       a Helm repository of all charts; /charts/<upstream host>/<path>/ one for each upstream repository
  /files/<upstream host>/<path>  files, with SHA256SUMS in each directory
  /apt/, /yum/                   repositories of all .deb and .rpm files, and one for each directory
  /git/NAME.git                  Git repositories, for git clone and git fetch
  /                              a page with the contents and commands to get them
  /docs/                         this documentation, with a search
  /healthz, /metrics             for monitoring (Prometheus)

A blob's digest is checked at its first request, before its last byte is sent; --verify checks everything before the
first request. If several bundles have the same tag, the last bundle wins, with a warning.

SIGHUP reloads bundles, users and certificates without ending transfers. Replace a bundle by renaming the new file
over the old one. SIGTERM and Ctrl-C let transfers finish, for 20 seconds at most.`,
		Example: `  kkbundle serve site-1.4.0.kkb
  kkbundle serve --listen :5000 --tls-auto --htpasswd users site-1.4.0.kkb apps-7.kkb`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("`kkbundle serve` takes BUNDLE..., got nothing; see `kkbundle serve --help`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runServe(cmd.Context(), g, args, o) },
	}
	f := cmd.Flags()
	g.addAccept(f)
	o.addFlags(f)
	f.BoolVar(&o.verify, "verify", false, "check every byte before listening")
	return cmd
}

// addFlags adds the flags of all servers.
func (o *serveOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "127.0.0.1:5000",
		"address and port to listen on; :5000 is all addresses of this host")
	f.StringVar(&o.cert, "tls-cert", "", "PEM file of the server's certificate and its chain")
	f.StringVar(&o.key, "tls-key", "", "PEM file of the certificate's key")
	f.BoolVar(&o.auto, "tls-auto", false, "create a certificate and an authority for clients to trust")
	f.StringVar(&o.tlsDir, "tls-dir", "",
		"directory of --tls-auto (default: below --dir of a registry, else kkbundle/serve in the user's configuration)")
	f.StringVar(&o.users, "htpasswd", "",
		"file of users and bcrypt hashes, as htpasswd -B writes it; everything but /healthz then needs a login")
	f.BoolVar(&o.plainHTTP, "plain-http", false, "allow HTTP without TLS to other hosts")
}

// serving is the JSON output of serve when it is ready.
type serving struct {
	URL         string `json:"url"`
	CA          string `json:"ca,omitempty"`          // path of the authority's certificate
	Fingerprint string `json:"fingerprint,omitempty"` // SHA-256 of it
}

func runServe(ctx context.Context, g *globals, paths []string, o serveOptions) error {
	c, err := o.certificates()
	if err != nil {
		return err
	}
	debug.SetGCPercent(serveGC)
	if o.verify {
		g.Note("checking every byte of %s", plain.Count(len(paths), "bundle"))
	}
	s, err := serve.New(ctx, serve.Options{
		Bundles: paths, Verify: o.verify, Users: o.users, Authority: c.authority(), Logger: g.Logger(),
		Manual: manual.Handler("/docs/", sync.OnceValues(newManual)),
		Open:   func(path string) (*bundle.Reader, error) { return g.openAccepted(ctx, path) },
	})
	if err != nil {
		return err
	}
	defer s.Close()
	if c != nil {
		if err := c.load(); err != nil {
			return err
		}
	}
	l, err := listen(ctx, "--listen", o.listen)
	if err != nil {
		return err
	}
	if o.users != "" && o.plainHTTP {
		g.Note("warning: without TLS, passwords are readable on the network")
	}
	stop := g.onHangup(ctx, s, c)
	defer stop()
	if err := g.announce(l, c); err != nil {
		return errors.Join(err, l.Close())
	}
	return s.Run(ctx, l, c.current())
}

// announce prints the address.
func (g *globals) announce(l net.Listener, c *certificates) error {
	x := serving{URL: "http://" + l.Addr().String() + "/"}
	if c != nil {
		x.URL = "https://" + l.Addr().String() + "/"
		pair := c.pair.Load()
		x.CA, x.Fingerprint = pair.CA, pair.Fingerprint
	}
	if g.JSON {
		return g.PrintJSON(x)
	}
	if x.CA != "" {
		g.Note("clients must trust %s\n  SHA-256 %s", x.CA, x.Fingerprint)
	}
	return g.Result("%s", x.URL)
}

// A reloader reloads replaced files. On an error, the old content stays in use.
type reloader interface {
	Reload(ctx context.Context) error
}

// onHangup reloads on SIGHUP until ctx ends or stop is called.
func (g *globals) onHangup(ctx context.Context, s reloader, c *certificates) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Reset(syscall.SIGHUP) // it ends a command until then
	signal.Notify(signals, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			var unread error
			if c != nil {
				unread = c.load()
			}
			err := errors.Join(s.Reload(ctx), unread)
			if err != nil {
				printError(g.Err, fmt.Errorf("reload failed, the old content stays in use: %w", err))
				continue
			}
			g.Note("reloaded")
		}
	}()
	return func() { signal.Stop(signals); cancel() }
}

// certificates has the server's certificate; load reads it again.
type certificates struct {
	o    serveOptions
	pair atomic.Pointer[serve.Certificate]
}

// certificates returns the source of certificates, nil for plain HTTP. It reads nothing yet.
func (o *serveOptions) certificates() (*certificates, error) {
	if (o.cert == "") != (o.key == "") || o.cert != "" && o.auto {
		return nil, usage.Errorf("give --tls-cert and --tls-key, or --tls-auto")
	}
	secure := o.cert != "" || o.auto
	if err := serve.CheckListen(o.listen, secure, o.plainHTTP); err != nil {
		return nil, &usage.Error{Err: err}
	}
	if !secure {
		return nil, nil
	}
	return &certificates{o: *o}, nil
}

func (c *certificates) load() error {
	if !c.o.auto {
		pair, err := tls.LoadX509KeyPair(c.o.cert, c.o.key)
		if err != nil {
			return fmt.Errorf("certificate %s with key %s: %w", c.o.cert, c.o.key, err)
		}
		c.pair.Store(&serve.Certificate{Certificate: pair})
		return nil
	}
	dir := c.o.tlsDir
	if dir == "" {
		base, err := os.UserConfigDir()
		if err != nil {
			return fmt.Errorf("no home directory for the certificate: %w: name a directory with --tls-dir", err)
		}
		dir = filepath.Join(base, "kkbundle", "serve")
	}
	names, err := serve.HostNames(c.o.listen)
	if err != nil {
		return err
	}
	pair, err := serve.AutoCertificate(dir, names, time.Now())
	if err != nil {
		return err
	}
	c.pair.Store(pair)
	return nil
}

// authority returns the certificate whose authority the page hands out; nil without --tls-auto.
func (c *certificates) authority() func() *serve.Certificate {
	if c == nil || !c.o.auto {
		return nil
	}
	return c.pair.Load
}

// current returns the certificate at each handshake; nil without TLS.
func (c *certificates) current() func() *tls.Certificate {
	if c == nil {
		return nil
	}
	return func() *tls.Certificate { return &c.pair.Load().Certificate }
}
