package convert

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
)

// place is a position in a file.
type place struct{ line, column int }

func placeOf(n *yaml.Node) place { return place{n.Line, n.Column} }

// site is a file of KubeKey or CAPKK that describes hosts or clusters; package kubekey reads those. It may also
// describe a bundle's content.
type site struct {
	*reader
	data []byte
	// taken holds the places that kubekey ignores but this package reads.
	taken map[place]bool
}

// siteFormat returns the name of a site document's format, "" for any other document.
func siteFormat(o *object) string {
	api, kind := o.text("apiVersion"), o.text("kind")
	switch {
	case api == "kubekey.kubesphere.io/v1" && (kind == "Inventory" || kind == "Config"):
		return "KubeKey v4 " + kind
	case strings.HasPrefix(api, "kubekey.kubesphere.io/v1alpha") && kind == "Cluster":
		return "KubeKey v3 Cluster"
	case strings.HasPrefix(api, "infrastructure.cluster.x-k8s.io/") && (kind == "KKCluster" ||
		kind == "KKMachineTemplate"):
		return "CAPKK " + kind
	}
	return ""
}

// sites reads the documents of a site, and reports whether there are any. kubekey notes every other document of such a
// file.
func (f *reader) sites(documents []*yaml.Node, data []byte) (bool, error) {
	s := site{reader: f, data: data, taken: map[place]bool{}}
	var hosts, cluster, config *object
	for _, n := range documents {
		o := f.object(n, "")
		format := siteFormat(o)
		switch format {
		case "":
			continue
		case "KubeKey v4 Config":
			config = o
		case "KubeKey v4 Inventory":
			hosts = o
		case "KubeKey v3 Cluster", "CAPKK KKCluster":
			hosts, cluster = o, o
		default:
			cluster = o
		}
		f.is(format)
	}
	if hosts != nil {
		if err := s.inventory(hosts); err != nil {
			return true, err
		}
	}
	switch {
	case config != nil:
		return true, s.config(config)
	case cluster != nil:
		s.addons(cluster.mapping("spec"))
		base, err := s.cluster()
		if err == nil {
			f.clusters(base, choices{versions: []string{base.Kubernetes.Version}})
		}
		return true, err
	}
	return hosts != nil, nil
}

// say adds kubekey's notes, except those about values read here.
func (s *site) say(notes kubekey.Notes) {
	for _, n := range notes {
		if !s.taken[place{n.Line, n.Column}] {
			s.once(n.Line, "%s", n.Message)
		}
	}
}

func (s *site) inventory(o *object) error {
	inv, notes, err := kubekey.ReadInventory(s.file, s.data)
	if err != nil {
		return fmt.Errorf("its hosts:\n%w", err)
	}
	s.say(notes)
	s.hideInventory(inv)
	s.Inventory = inv
	spec := o.mapping("spec")
	instances := spec.mapping("nodes").objects("instances") // CAPKK
	s.architectures(instances)
	s.defaultArchitecture(instances)
	hosts := spec.take("hosts")
	switch {
	case hosts == nil:
	case hosts.Kind == yaml.SequenceNode: // v3
		s.architectures(spec.objects("hosts"))
		s.defaultArchitecture(spec.objects("hosts"))
	case hosts.Kind == yaml.MappingNode: // v4
		for i := 1; i < len(hosts.Content); i += 2 {
			s.architectures([]*object{s.object(hosts.Content[i], "spec.hosts")})
		}
	}
	return nil
}

// architectures adds the platforms of these hosts.
func (s *site) architectures(hosts []*object) {
	for _, host := range hosts {
		s.platform(host.line(), host.text("arch"))
	}
}

// defaultArchitecture adds amd64 for hosts that name none: the default of KubeKey v3 and of CAPKK. v4 asks the hosts.
func (s *site) defaultArchitecture(hosts []*object) {
	var without []string
	for _, host := range hosts {
		if host.text("arch") == "" {
			without = append(without, or(host.text("name"), host.text("address")))
		}
	}
	if len(without) > 0 {
		s.platform(hosts[0].line(), "amd64")
		s.noteAt(hosts[0].line(), "KubeKey's default arch amd64 applies to %s", shorten(strings.Join(without, ", ")))
	}
}

// cluster reads the description of the cluster.
func (s *site) cluster(settings ...string) (manifest.Cluster, error) {
	c, notes, err := kubekey.ReadCluster(s.file, s.data, settings...)
	if err != nil {
		return manifest.Cluster{}, fmt.Errorf("its cluster:\n%w", err)
	}
	s.say(notes)
	if auth := c.ImageRegistry.Auth; auth != nil && auth.Password.IsSet() {
		auth.Password, auth.PasswordEnv = manifest.Secret{}, "KKBUNDLE_REGISTRY_PASSWORD"
		s.noteAt(0, "the password of the image registry is omitted: put it into the environment variable %s",
			auth.PasswordEnv)
	}
	return *c, nil
}

// addons adds the charts that a Cluster of v3 installs to the bundle.
func (s *site) addons(spec *object) {
	for _, addon := range spec.objects("addons") {
		chart := addon.mapping("sources").mapping("chart")
		name, path := chart.take("name"), chart.take("path")
		switch repo := chart.text("repo"); {
		case path != nil && path.Value != "":
			s.addChart(nil, manifest.Chart{Path: path.Value}, manifest.Addon{})
			s.taken[placeOf(path)] = true
		case name != nil && repo != "":
			s.addChart(nil, s.repoChart(chart.node, name.Value, repo, chart.text("version")), manifest.Addon{})
			s.taken[placeOf(name)] = true
		}
	}
}

// hideInventory replaces passwords by names of environment variables. Hosts with the same password share a name.
func (s *site) hideInventory(inv *manifest.Inventory) {
	var known []manifest.Secret
	env := func(secret *manifest.Secret, env *string) {
		if !secret.IsSet() {
			return
		}
		i := 0
		for i < len(known) && !known[i].Equal(*secret) {
			i++
		}
		name := "KKBUNDLE_PASSWORD"
		if i > 0 {
			name = fmt.Sprintf("KKBUNDLE_PASSWORD_%d", i+1)
		}
		if i == len(known) {
			known = append(known, *secret)
			s.noteAt(0, "a password of hosts is omitted: put it into the environment variable %s, which inventory.yaml names", name)
		}
		*secret, *env = manifest.Secret{}, name
	}
	hide := func(where string, ssh *manifest.SSH, sudo *manifest.Sudo) {
		env(&ssh.Password, &ssh.PasswordEnv)
		env(&sudo.Password, &sudo.PasswordEnv)
		if ssh.PrivateKey.IsSet() {
			ssh.PrivateKey = manifest.Secret{}
			s.noteAt(0, "the private key of %s is omitted: save it in a file that only you can read, and name that in ssh.key", where)
		}
	}
	hide("vars", &inv.Vars.SSH, &inv.Vars.Sudo)
	g := &inv.GroupVars
	for _, vars := range []*manifest.Vars{&g.Cluster, &g.NFS, &g.Registry, &g.Etcd, &g.Worker, &g.ControlPlane} {
		hide("a group", &vars.SSH, &vars.Sudo)
	}
	for i := range inv.HostSpecs {
		host := &inv.HostSpecs[i]
		hide("host "+shorten(host.Name), &host.SSH, &host.Sudo)
	}
}
