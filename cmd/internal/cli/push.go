package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry"
)

type pushOptions struct {
	registry, ca, username   string
	plainHTTP, passwordStdin bool
	jobs                     int
}

func newPushCmd(g *globals) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push --registry HOST[/PREFIX] BUNDLE",
		Short: "Seed a registry from a bundle",
		Long: `Sends images, charts and files to an OCI registry, straight from the bundle: nothing is unpacked, what the registry has is
not sent again, and every tag's digest is compared afterwards. A push that was interrupted continues when run again.

Names are HOST[/PREFIX]/<upstream host>/<path>; a port in the upstream host becomes _port. Credentials come from
docker's configuration and its helpers, or from --username and --password-stdin.`,
		Example: `  kkbundle push --registry harbor.site/mirror site-1.4.0.kkb
  kkbundle push --registry 10.0.0.3:5000 --ca registry-ca.pem --username ops --password-stdin site-1.4.0.kkb < password`,
		Args: takes("BUNDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPush(cmd.Context(), g, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.registry, "registry", "", "the registry, host[:port][/prefix] (required)")
	f.StringVar(&o.ca, "ca", "", "PEM file of the authority that the registry's certificate comes from")
	f.BoolVar(&o.plainHTTP, "plain-http", false, "use HTTP without TLS")
	f.StringVarP(&o.username, "username", "u", "", "log in as this user")
	f.BoolVar(&o.passwordStdin, "password-stdin", false, "read the password from standard input")
	f.IntVarP(&o.jobs, "jobs", "j", 0, "transfers at once (default 8)")
	return cmd
}

func runPush(ctx context.Context, g *globals, path string, o pushOptions) error {
	start := time.Now()
	switch {
	case o.registry == "":
		return &usageError{errors.New("say where to with --registry HOST[/PREFIX]")}
	case o.jobs < 0:
		return &usageError{fmt.Errorf("--jobs %d: at least 1 transfer has to run", o.jobs)}
	}
	if err := registry.CheckTarget(o.registry); err != nil {
		return &usageError{err}
	}
	keychain, err := o.keychain(g.In)
	if err != nil {
		return err
	}
	transport, err := registry.NewTransport(o.ca)
	if err != nil {
		return err
	}
	r, err := bundle.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	m := g.newMeter("push")
	sum, err := registry.Push(ctx, r, registry.PushOptions{
		Registry: o.registry, Auth: keychain, Transport: transport, PlainHTTP: o.plainHTTP, Jobs: o.jobs,
		Logger: g.logger(), Progress: func(e registry.Event) { m.set(e.Done, e.Total) },
	})
	m.stop()
	if err != nil {
		err = &pushError{err}
	}
	if g.json {
		return errors.Join(err, printJSON(g.Out, sum))
	}
	for _, w := range sum.Warnings {
		g.note("warning: %s", printable(w))
	}
	if err != nil {
		return err
	}
	for _, it := range sum.Items {
		if it.State == registry.StateSkipped {
			continue
		}
		if err := g.result("%s@%s", it.Destination, it.Digest); err != nil {
			return err
		}
	}
	g.note("%s in %s: %s sent, %s mounted, %d there already (%s)",
		count(sum.ItemsPushed+sum.ItemsPresent, "item"), o.registry, size(sum.BytesSent), count(sum.BlobsMounted, "blob"), sum.BlobsPresent, time.Since(start).Round(100*time.Millisecond))
	return nil
}

// keychain is docker's configuration, or the one login that was given.
func (o *pushOptions) keychain(stdin io.Reader) (authn.Keychain, error) {
	if o.username == "" && !o.passwordStdin {
		return authn.DefaultKeychain, nil
	}
	if o.username == "" || !o.passwordStdin {
		return nil, &usageError{errors.New("--username and --password-stdin go together; passwords are never taken from the command line")}
	}
	password, err := readPassword(stdin)
	if err != nil {
		return nil, err
	}
	return login{&authn.Basic{Username: o.username, Password: password}}, nil
}

// login is a keychain of one login: the only registry that is asked is the one it was given for.
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
		return "", &usageError{errors.New("no password came on standard input")}
	}
	return line, nil
}
