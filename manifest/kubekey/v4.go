package kubekey

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

const localhost = "localhost"

// v4Reader reads the files of kubekey.kubesphere.io/v1.
type v4Reader struct{ *reader }

// inventory reads kubekey.kubesphere.io/v1 Inventory: hosts with variables, groups of hosts and groups, and variables
// of both.
func (r v4Reader) inventory(root *yaml.Node, t tree) {
	top := r.object("", root)
	spec := r.spec(top)
	vars := spec.sub("vars")
	r.vars(vars, t, "vars")
	hosts := spec.sub("hosts")
	out := mapping(hosts.node)
	local := localName(hosts.names)
	for _, name := range hosts.names {
		host := r.host(hosts.sub(name), name)
		if name == localhost {
			r.note(hosts.keys[name], "localhost is %s here: %s", local, whyRenamed)
			name = local
		}
		out.put(host, name)
	}
	g := groupsV4{r: r, spec: spec.sub("groups"), out: out, named: map[string]bool{}, local: local}
	g.read(t)
	t.put(out.root, "hosts")
	spec.done()
}

// whyRenamed is what a note says of KubeKey's host localhost, which keeps the name that the machine has.
const whyRenamed = "kkbundle makes a host's name in the inventory its node's name and writes it to /etc/hosts; choose the one you want"

// localName returns a name for the host that KubeKey calls localhost, which is none of the others.
func localName(taken []string) string {
	for i := 1; ; i++ {
		if name := "node" + strconv.Itoa(i); !slices.Contains(taken, name) {
			return name
		}
	}
}

// host reads the entry of a host.
func (r v4Reader) host(o *object, name string) *yaml.Node {
	t := mapping(o.node)
	connector := o.peekAt("connector")
	kind := connector.text("type")
	local := kind == "local" || kind == "" && name == localhost
	switch {
	case local:
		t.set("local", yes(o.node))
	case kind == "" || kind == "ssh":
		t.set("address", connector.scalar("host"))
	default:
		r.problem(connector.node, "%s: a connector of type %s leads to no machine; want ssh or local", connector.path,
			shown(kind))
	}
	t.set("internalIPv4", o.scalar("internal_ipv4"))
	t.set("internalIPv6", o.scalar("internal_ipv6"))
	r.variables(o, t)
	if local { // its password is for sudo only; there is no login
		t.remove("ssh")
	}
	return t.root
}

// peekAt returns the mapping under a key without marking it as read.
func (o *object) peekAt(name string) *object {
	if o.subs == nil {
		o.subs = map[string]*object{}
	}
	if o.subs[name] == nil {
		o.subs[name] = o.sub(name)
	}
	return o.subs[name]
}

// vars reads variables shared by several hosts into one key.
func (r v4Reader) vars(o *object, t tree, path ...string) {
	out := mapping(o.node)
	r.variables(o, out)
	if len(out.root.Content) > 0 {
		t.put(out.root, path...)
	}
}

// variables reads the variables that hosts, groups and the whole inventory can have.
func (r v4Reader) variables(o *object, t tree) {
	c := o.peekAt("connector")
	c.ignore("type", "host")
	setLogin(c, t, "private_key", "private_key_content")
	c.drop("kkbundle becomes root with sudo, and keeps the SSH password for it", "become", "become_user",
		"become_method", "become_password")
	c.done()
	for _, from := range []*object{o, o.peekAt("kubernetes")} {
		t.set("labels", from.texts("custom_labels"))
		t.set("annotations", from.texts("custom_annotations"))
		t.set("taints", from.taints("custom_taints"))
	}
	o.peekAt("kubernetes").drop("kkbundle leaves disks alone; mount them beforehand", "multipath", "storage_disks")
	o.peekAt("kubernetes").done()
	o.drop("kkbundle leaves disks alone; mount them beforehand", "storage")
	o.ignore("arch", "hostname")
	o.done()
}

// setLogin reads user, port, key and password of an SSH server. The password is also used for sudo, as in KubeKey.
func setLogin(o *object, t tree, key, content string) {
	t.set("ssh.user", o.scalar("user"))
	t.set("ssh.port", o.number("port"))
	t.set("ssh.key", o.scalar(key))
	t.set("ssh.privateKey", o.secretOf(content))
	if password := o.secretOf("password"); password != nil {
		t.set("ssh.password", password)
		t.set("sudo.password", password)
	}
}

// taints reads taints in kubectl's syntax, or as mappings of key, value and effect.
func (o *object) taints(name string) *yaml.Node {
	if o.take(name) == nil {
		return nil
	}
	var taints []*yaml.Node
	for _, n := range o.entries(name) {
		if n.Kind == yaml.MappingNode {
			one := o.r.object(o.at(name), n)
			taint := one.text("key")
			if v := one.text("value"); v != "" {
				taint += "=" + v
			}
			taint += ":" + one.text("effect")
			one.done()
			n = text(n, taint)
		}
		taints = append(taints, n)
	}
	return list(o.value[name], taints)
}

// groupsV4 resolves groups of groups.
type groupsV4 struct {
	r     v4Reader
	spec  *object
	out   tree // the hosts
	named map[string]bool
	local string // the name of localhost
}

func rolesV4() []manifest.Role {
	return []manifest.Role{
		manifest.RoleControlPlane, manifest.RoleWorker, manifest.RoleEtcd, manifest.RoleRegistry,
		manifest.RoleNFS,
	}
}

func (g *groupsV4) read(t tree) {
	groups := map[string]*object{}
	for _, name := range g.spec.names {
		groups[name] = g.spec.sub(name)
	}
	t.put(mapping(g.spec.node).root, "groups")
	for _, role := range rolesV4() {
		name := string(role)
		if groups[name] == nil {
			continue
		}
		if hosts := g.hosts(groups, name, nil); len(hosts) > 0 {
			t.put(list(groups[name].node, hosts), "groups", name)
		}
	}
	for _, name := range g.spec.names {
		o, isRole := groups[name], slices.Contains(rolesV4(), manifest.Role(name))
		vars := o.sub("vars")
		switch {
		case isRole, name == string(manifest.RoleCluster):
			g.r.vars(vars, t, "groupVars", name)
		case len(vars.names) > 0:
			g.r.note(vars.node, "groups.%s.vars is not carried over: only the groups that kkbundle knows have variables", shown(name))
		}
		if name == string(manifest.RoleCluster) {
			g.cluster(groups)
		} else if !isRole && !g.named[name] {
			g.r.note(g.spec.keys[name], "group %s is not carried over: kkbundle has no such role", shown(name))
		}
		o.ignore("groups", "hosts")
		o.done()
	}
}

// hosts returns the hosts of a group and of its subgroups, without duplicates.
func (g *groupsV4) hosts(groups map[string]*object, name string, inside []string) []*yaml.Node {
	o := groups[name]
	if slices.Contains(inside, name) {
		g.r.problem(o.node, "groups.%s: the groups lead in a circle (%s)", shown(name),
			shown(strings.Join(inside, ", ")))
		return nil
	}
	var found []*yaml.Node
	seen := map[string]bool{}
	add := func(n *yaml.Node) {
		if !seen[n.Value] {
			seen[n.Value] = true
			found = append(found, n)
		}
	}
	for _, n := range o.entries("hosts") {
		if n.Kind != yaml.ScalarNode {
			g.r.problem(n, "groups.%s.hosts: want the name of a host", shown(name))
			continue
		}
		if n.Value == localhost {
			g.here(n)
			n = text(n, g.local)
		}
		add(n)
	}
	for _, n := range o.entries("groups") {
		if groups[n.Value] == nil {
			g.r.problem(n, "groups.%s.groups: there is no group %s", shown(name), shown(n.Value))
			continue
		}
		g.named[n.Value] = true
		if g.r.nodes++; g.r.nodes > maxNodes {
			return nil
		}
		for _, host := range g.hosts(groups, n.Value, append(inside, name)) {
			add(host)
		}
	}
	return found
}

// here adds localhost, which KubeKey knows without an entry, if it has none.
func (g *groupsV4) here(n *yaml.Node) {
	if find(g.out.root, g.local) != nil {
		return
	}
	here := mapping(n)
	here.set("local", yes(n))
	g.out.put(here.root, g.local)
	g.r.note(n, "localhost is not a host of this file, so it is the machine that kkbundle runs on, as KubeKey has it, and %s here: %s", g.local, whyRenamed)
}

// cluster notes hosts that are only in k8s_cluster.
func (g *groupsV4) cluster(groups map[string]*object) {
	nodes := map[string]bool{}
	for _, role := range []manifest.Role{manifest.RoleControlPlane, manifest.RoleWorker} {
		if groups[string(role)] != nil {
			for _, n := range g.hosts(groups, string(role), nil) {
				nodes[n.Value] = true
			}
		}
	}
	for _, n := range g.hosts(groups, string(manifest.RoleCluster), nil) {
		if !nodes[n.Value] {
			g.r.note(n, "%s is in k8s_cluster alone and does nothing there: put it into kube_control_plane or kube_worker", shown(n.Value))
		}
	}
}
