package cli

import (
	"bufio"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
)

type initOptions struct {
	gatherFlags
	apps                   bool
	controlPlanes, workers []string
	registry, name, kube   string
	platforms              []string
}

func newInitCmd(g *globals) *cobra.Command {
	example := exampleStarter()
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a manifest, a cluster file and an inventory that fit each other",
		Long: `Writes manifest.yaml, cluster.yaml and inventory.yaml with comments into a directory, to edit. With --apps, it writes
a manifest without a cluster. Existing files are never replaced.

With one of the --from flags it writes a manifest of what is there, and the files that it names:

  --from-cluster   images of all pods, and of Deployments and others without pods; Helm releases with chart and values;
                   with --namespace also the objects of these namespaces as YAML, for deploy. Secrets are never written
  --from-registry  all tags, or those that --match: of a repository and of those below it, or of the whole registry
  --from-harbor    all tags of a project, or those that --match
  --from-images    the images of a list, one a line; - is standard input

On a terminal, init without --apps and hosts asks for them. Hosts are addresses, or NAME=ADDRESS; the address local is
this machine. Without any host, the inventory has examples.`,
		Example: `  kkbundle init site --control-plane 10.0.0.1 --worker 10.0.0.11,10.0.0.12
  kkbundle init site --control-plane cp1=local --registry harbor.site
  kkbundle init shop --apps
  kkbundle init shop --from-cluster --namespace shop
  kkbundle init base --from-harbor harbor.corp/base --match '*:1.*'`,
		Args: takes("[DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := slices.Concat(args, []string{"."})[0]
			if from, err := o.source(cmd.Flags()); err != nil || from != "" {
				return errors.Join(err, runGather(cmd.Context(), g, dir, from, o))
			}
			return runInit(g, dir, o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.apps, "apps", false, "applications alone, without a cluster")
	f.StringSliceVar(&o.controlPlanes, "control-plane", nil, "`ADDRESS` or NAME=ADDRESS of each control plane")
	f.StringSliceVar(&o.workers, "worker", nil, "`ADDRESS` or NAME=ADDRESS of each worker (default the control planes)")
	f.StringVar(&o.registry, "registry", "",
		"`host[:port]` of the site's registry (default one on the first control plane)")
	f.StringVar(&o.name, "name", "", "`name` of bundle and cluster (default that of the directory)")
	f.StringVar(&o.kube, "kubernetes", example.Kubernetes, "`version` of Kubernetes")
	f.StringSliceVar(&o.platforms, "platform", example.Platforms, "platforms of the hosts")
	o.gatherFlags.add(f)
	return cmd
}

// initResult is the JSON output of init.
type initResult struct {
	Version int      `json:"version"` // 1
	Files   []string `json:"files"`   // written
	Notes   []string `json:"notes,omitempty"`
}

func runInit(g *globals, dir string, o initOptions) error {
	if !o.apps && len(o.controlPlanes)+len(o.workers) == 0 && terminal.IsTerminal(g.In) && !g.JSON {
		if err := o.ask(g); err != nil {
			return err
		}
	}
	s, err := o.starter(dir)
	if err != nil {
		return err
	}
	r := initResult{Version: 1}
	if r.Files, err = s.write(dir); err != nil {
		return err
	}
	if g.JSON {
		return g.PrintJSON(r)
	}
	g.Note("wrote %s", strings.Join(r.Files, ", "))
	g.Note("next: edit %s, then: kkbundle check %s && kkbundle build %s", plain.Count(len(r.Files), "file"), dir,
		r.Files[0])
	return nil
}

// starter returns the content of the files.
func (o *initOptions) starter(dir string) (starter, error) {
	s := exampleStarter()
	s.Name, s.Kubernetes, s.Platforms, s.Registry, s.Cluster = o.name, o.kube, o.platforms, o.registry, !o.apps
	if s.Name == "" {
		s.Name = nameOf(dir)
	}
	hosts := len(o.controlPlanes) + len(o.workers)
	switch {
	case o.apps && hosts > 0:
		return s, usage.Errorf("--apps and hosts exclude each other: applications alone have no hosts")
	case o.apps && o.registry != "":
		return s, usage.Errorf("--apps and --registry exclude each other: name the registry at the site, in kkbundle push --registry %s", o.registry)
	case hosts > 0 && len(o.controlPlanes) == 0:
		return s, usage.Errorf("name the control planes, too, with --control-plane")
	case hosts > 0:
		s.Hosts = slices.Concat(starterHosts(o.controlPlanes, "cp", true), starterHosts(o.workers, "node", false))
	}
	return s, nil
}

// starterHosts reads ADDRESS or NAME=ADDRESS. Hosts without a name are numbered.
func starterHosts(list []string, prefix string, controlPlane bool) []starterHost {
	hosts := make([]starterHost, len(list))
	for i, text := range list {
		name, address, named := strings.Cut(strings.TrimSpace(text), "=")
		if !named {
			name, address = fmt.Sprintf("%s%d", prefix, i+1), name
		}
		hosts[i] = starterHost{name, address, controlPlane}
	}
	return hosts
}

// nameOf returns the name of a directory if a bundle can have it.
func nameOf(dir string) string {
	path, err := filepath.Abs(dir)
	name := strings.ToLower(filepath.Base(path))
	if err != nil || !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`).MatchString(name) {
		return exampleStarter().Name
	}
	return name
}

// ask asks on the terminal for what no flag says.
func (o *initOptions) ask(g *globals) error {
	in := bufio.NewReader(g.In)
	line := func(question string) (string, error) {
		_, _ = fmt.Fprintf(g.Err, "%s: ", question)
		text, err := in.ReadString('\n')
		return strings.TrimSpace(text), err
	}
	words := func(text string) []string {
		return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	}
	answer, err := line("a cluster with its applications, or applications alone? [cluster/apps, default cluster]")
	if err != nil {
		return err
	}
	switch answer {
	case "apps", "a":
		o.apps = true
		return nil
	case "", "cluster", "c":
	default:
		return usage.Errorf("%q: want cluster or apps", answer)
	}
	for _, one := range []struct {
		question string
		list     *[]string
	}{
		{"addresses of the control planes [none: examples to edit; local: this machine]", &o.controlPlanes},
		{"addresses of the workers [none: the control planes]", &o.workers},
	} {
		text, err := line(one.question)
		if err != nil {
			return err
		}
		if *one.list = words(text); len(*one.list) == 0 {
			break
		}
	}
	if o.registry == "" {
		o.registry, err = line("the site's registry, host[:port] [none: one is installed]")
	}
	return err
}
