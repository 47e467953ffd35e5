package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/registry/mirror"
)

type mirrorOptions struct {
	registry, runtime, ca, username, output string
	upstreams                               []string
	plainHTTP, passwordStdin, force, dryRun bool
}

func newMirrorConfigCmd(g *globals) *cobra.Command {
	var o mirrorOptions
	cmd := &cobra.Command{
		Use:   "mirror-config --registry HOST[/PREFIX] -o DIR [BUNDLE]",
		Short: "Configure container runtimes to pull through a registry mirror",
		Long: `Writes configuration for a container runtime to pull images of upstream registries from the registry that push
seeded, or from kkbundle serve. Image names in pods and charts stay the same. Upstreams are the registries of the
bundle's images, and --upstream.

-o / changes this host; another directory gets the files in the layout of a host. Only root can read files with a
login. Running the command again changes nothing.

  containerd   /etc/containerd/certs.d/<upstream>/hosts.toml and _default; never uses the internet
  k3s, rke2    /etc/rancher/<runtime>/registries.yaml
  crio         /etc/containers/registries.conf.d and certs.d, also for Podman and skopeo
  docker       /etc/docker/daemon.json and certs.d: Docker mirrors docker.io only

Only files of kkbundle are overwritten: registries.yaml and daemon.json are extended; other content is an error and is
shown. --force replaces it and keeps the old file as FILE.before-kkbundle. Guide: docs/site/mirrors.md.`,
		Example: `  kkbundle mirror-config --registry harbor.site/mirror --ca ca.crt -o / site-1.4.0.kkb
  kkbundle mirror-config --registry 10.0.0.3:5000 --runtime k3s --upstream docker.io --upstream ghcr.io -o out/
  kkbundle mirror-config --registry 10.0.0.3:5000 -u hosts --password-stdin --dry-run site-1.4.0.kkb < password`,
		Args: takes("[BUNDLE]"),
		RunE: func(_ *cobra.Command, args []string) error { return runMirrorConfig(g, args, o) },
	}
	f := cmd.Flags()
	g.addTrust(f)
	f.StringVar(&o.registry, "registry", "", "the registry, host[:port][/prefix] (required)")
	f.StringVar(&o.runtime, "runtime", string(mirror.RuntimeContainerd), "containerd, docker, k3s, rke2 or crio")
	f.StringArrayVar(&o.upstreams, "upstream", nil, "an upstream registry, host[:port] (repeated)")
	f.StringVarP(&o.output, "output", "o", "", "the root directory of the host, or a directory to write to (required)")
	f.StringVar(&o.ca, "ca", "", "PEM file of the authority that the registry's certificate comes from")
	f.BoolVar(&o.plainHTTP, "plain-http", false, "the registry speaks HTTP without TLS")
	f.StringVarP(&o.username, "username", "u", "", "hosts log in as this user")
	f.BoolVar(&o.passwordStdin, "password-stdin", false, "read the user's password from standard input")
	f.BoolVar(&o.force, "force", false, "replace files not written by kkbundle, and keep a copy")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the changes, and make none")
	return cmd
}

// mirrorResult is the JSON output of mirror-config.
type mirrorResult struct {
	Version   int               `json:"version"` // 1
	Registry  string            `json:"registry"`
	Runtime   mirror.Runtime    `json:"runtime"`
	Upstreams []string          `json:"upstreams"`
	DryRun    bool              `json:"dryRun"`
	Files     []hostfile.Change `json:"files"`
	Notes     []string          `json:"notes"`
}

func runMirrorConfig(g *globals, args []string, o mirrorOptions) error {
	switch {
	case o.registry == "":
		return usage.Errorf("name the registry with --registry HOST[/PREFIX]")
	case o.output == "" && !o.dryRun:
		return usage.Errorf("name the root directory with -o, / for this host; or use --dry-run")
	case o.plainHTTP && o.ca != "":
		return usage.Errorf("--plain-http and --ca exclude each other")
	}
	target, err := o.target(g.In)
	if err != nil {
		return err
	}
	upstreams, err := o.allUpstreams(g, args)
	if err != nil {
		return err
	}
	config, err := mirror.Configure(mirror.Runtime(o.runtime), target, upstreams)
	if err != nil {
		return &usage.Error{Err: err}
	}
	o.output = cmp.Or(o.output, "/")
	where := hostfile.Options{Root: o.output, Force: o.force}
	changes, err := hostfile.Check(where, config.Files)
	if err != nil {
		return err
	}
	if !o.dryRun {
		if err := hostfile.Apply(where, changes); err != nil {
			return err
		}
	}
	if g.JSON {
		return g.PrintJSON(mirrorResult{
			1, o.registry, mirror.Runtime(o.runtime), upstreams, o.dryRun, changes,
			config.Notes,
		})
	}
	return g.printChanges(changes, config.Notes, o.dryRun)
}

// printChanges prints the changes of files; of a dry run with their lines.
func (g *globals) printChanges(changes []hostfile.Change, notes []string, dryRun bool) error {
	for _, c := range changes {
		if err := g.Result("%-8s %s", c.State, plain.Line(c.Path)); err != nil {
			return err
		}
		if dryRun && c.Diff != "" {
			if err := g.Result("%s", plain.Lines(strings.TrimRight(c.Diff, "\n"))); err != nil {
				return err
			}
		}
	}
	for _, n := range notes {
		g.Note("note: %s", plain.Line(n))
	}
	return nil
}

// target returns the registry of the flags.
func (o *mirrorOptions) target(stdin io.Reader) (mirror.Registry, error) {
	r, err := mirror.Parse(o.registry)
	if err != nil {
		return r, &usage.Error{Err: err}
	}
	r.PlainHTTP, r.Username = o.plainHTTP, o.username
	if (o.username == "") == o.passwordStdin {
		return r, usage.Errorf("--username and --password-stdin go together; passwords are never taken from the command line")
	}
	if strings.ContainsRune(o.username, ':') {
		return r, usage.Errorf("a user name must not contain a colon")
	}
	if o.passwordStdin {
		if r.Password, err = readPassword(stdin); err != nil {
			return r, err
		}
	}
	if o.ca == "" {
		return r, nil
	}
	if r.CA, err = builder.ReadFile(o.ca); err != nil {
		return r, err
	}
	if _, err := pki.ParseCertificate(r.CA); err != nil {
		return r, &builder.InputError{Err: fmt.Errorf("CA file %s: %w", o.ca, err)}
	}
	return r, nil
}

// allUpstreams returns --upstream and the registries of the bundle.
func (o *mirrorOptions) allUpstreams(g *globals, args []string) ([]string, error) {
	all := o.upstreams
	if len(args) > 0 {
		r, err := g.openBundle(args[0])
		if err != nil {
			return nil, err
		}
		defer r.Close()
		all = append(all, bundleUpstreams(r)...)
	}
	if len(all) == 0 {
		return nil, usage.Errorf("name the upstreams: a BUNDLE with images, or --upstream HOST")
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// bundleUpstreams returns the upstream registries of a bundle's images.
func bundleUpstreams(r *bundle.Reader) []string {
	var hosts []string
	for _, it := range r.Index().Items {
		if host, _, ok := strings.Cut(it.Ref, "/"); ok && it.Kind == bundle.KindImage {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
