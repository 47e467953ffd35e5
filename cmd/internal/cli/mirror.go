package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/build"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/pki"
	"github.com/kkbundle/kkbundle/plain"
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
		Long: `Writes the files that make a container runtime take images of upstream registries from the registry that push seeded, or from
kkbundle serve: images keep their names, in pods and in charts. Upstreams are those of the bundle's images, and of --upstream.

-o / changes this host; with another directory, files lie there as they shall lie on hosts. Existing files are never overwritten unless
kkbundle wrote them: registries.yaml and daemon.json are added to, other content is refused and shown. --force replaces it, and
keeps what was there as FILE.before-kkbundle. Running it again changes nothing.

  containerd   /etc/containerd/certs.d/<upstream>/hosts.toml and _default; nothing is asked of the internet
  k3s, rke2    /etc/rancher/<runtime>/registries.yaml
  crio         /etc/containers/registries.conf.d and certs.d, which Podman and skopeo read too
  docker       /etc/docker/daemon.json and certs.d: Docker has mirrors for docker.io only

Files with a login can be read by root only.`,
		Example: `  kkbundle mirror-config --registry harbor.site/mirror --ca ca.crt -o / site-1.4.0.kkb
  kkbundle mirror-config --registry 10.0.0.3:5000 --runtime k3s --upstream docker.io --upstream ghcr.io -o out/
  kkbundle mirror-config --registry 10.0.0.3:5000 -u hosts --password-stdin --dry-run site-1.4.0.kkb < password`,
		Args: takes("[BUNDLE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			return runMirrorConfig(g, args, o)
		},
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
	f.BoolVar(&o.force, "force", false, "replace what others wrote, and keep it beside")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would change, and change nothing")
	return cmd
}

// mirrorResult is what mirror-config prints with --json.
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
		return usage.Errorf("say which registry with --registry HOST[/PREFIX]")
	case o.output == "" && !o.dryRun:
		return usage.Errorf("say where with -o: / is this host, or name a directory; --dry-run prints")
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
	if o.output == "" {
		o.output = "/"
	}
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
		return g.PrintJSON(mirrorResult{1, o.registry, mirror.Runtime(o.runtime), upstreams, o.dryRun, changes, config.Notes})
	}
	return g.printChanges(changes, config.Notes, o.dryRun)
}

// printChanges says what was done to files, or with all lines what would be.
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

// target is the registry that the flags describe.
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
		return r, usage.Errorf("a user's name has no colon")
	}
	if o.passwordStdin {
		if r.Password, err = readPassword(stdin); err != nil {
			return r, err
		}
	}
	if o.ca == "" {
		return r, nil
	}
	if r.CA, err = build.ReadFile(o.ca); err != nil {
		return r, err
	}
	if _, err := pki.ParseCertificate(r.CA); err != nil {
		return r, &build.InputError{Err: fmt.Errorf("CA file %s: %w", o.ca, err)}
	}
	return r, nil
}

// allUpstreams are those of --upstream, and of the images of the bundle.
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

// bundleUpstreams are the registries that a bundle's images come from.
func bundleUpstreams(r *bundle.Reader) []string {
	var hosts []string
	for _, it := range r.Index().Items {
		if host, _, ok := strings.Cut(it.Ref, "/"); ok && it.Kind == bundle.KindImage {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
