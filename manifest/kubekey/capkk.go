package kubekey

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

// capkkReader reads a KKCluster, its KKMachineTemplates and the documents of Cluster API beside them.
type capkkReader struct{ *documents }

// inventory reads the instances of a KKCluster with the defaults and the validation of its webhook.
func (r capkkReader) inventory(t tree) {
	spec := r.object("", r.kinds["KKCluster"].Root).sub("spec")
	if inventory := spec.take("inventory"); inventory != nil {
		r.problem(inventory, "spec.inventory: a KKCluster of KubeKey v4 does not say which host does what; write an inventory")
		return
	}
	nodes := spec.sub("nodes")
	auth := nodes.sub("auth")
	vars := mapping(auth.node)
	r.auth(auth, vars, true)
	if len(vars.root.Content) > 0 {
		t.put(vars.root, "vars")
	}
	hosts, groups := mapping(nodes.node), mapping(nodes.node)
	members := map[manifest.Role][]*yaml.Node{}
	for i, n := range nodes.entries("instances") {
		o := r.object(fmt.Sprintf("spec.nodes.instances[%d]", i), n)
		name := o.scalar("name")
		if name == nil {
			name = text(n, fmt.Sprintf("kk-instance-%d", i+1))
			r.note(n, "%s: name is missing; the host is called %s here (CAPKK makes names up)", o.path, name.Value)
		}
		if find(hosts.root, name.Value) != nil {
			r.problem(name, "%s: %s is there twice", o.at("name"), shown(name.Value))
			continue
		}
		hosts.put(r.instance(o), name.Value)
		for _, role := range r.roles(o) {
			members[role] = append(members[role], name)
		}
		o.done()
	}
	nodes.done()
	for _, role := range []manifest.Role{manifest.RoleControlPlane, manifest.RoleWorker} {
		if members[role] != nil {
			groups.set(string(role), list(nodes.node, members[role]))
		}
	}
	t.put(hosts.root, "hosts")
	t.put(groups.root, "groups")
}

func (r capkkReader) instance(o *object) *yaml.Node {
	t := mapping(o.node)
	for _, one := range [][2]string{{"address", "address"}, {"internalAddress", ""}} {
		n := o.scalar(one[0])
		if n == nil {
			continue
		}
		if _, err := netip.ParseAddr(n.Value); err != nil {
			r.problem(n, "%s: %q is no IP address", o.at(one[0]), shown(n.Value))
			continue
		}
		if one[1] != "" {
			t.set(one[1], n)
		} else {
			setAddresses(t, n)
		}
	}
	if o.take("address") == nil {
		r.problem(o.node, "%s: address is missing", o.path)
	}
	r.auth(o.sub("auth"), t, false)
	o.drop("it is one for all hosts: name it in a KKMachineTemplate", "containerManager")
	o.drop("install packages beforehand", "repository")
	o.ignore("name", "arch", "bootstrap")
	return t.root
}

// auth reads a login. The cluster needs one kind of credentials; an instance may have its own.
func (r capkkReader) auth(o *object, t tree, needed bool) {
	var ways []string
	for _, name := range []string{"password", "privateKey", "privateKeyPath", "secret"} {
		if o.take(name) != nil {
			ways = append(ways, name)
		}
	}
	switch {
	case len(ways) > 1:
		r.problem(o.node, "%s has %s; keep one", o.path, strings.Join(ways, " and "))
	case len(ways) == 0 && needed:
		r.problem(o.node, "%s has no way to log in: want one of password, privateKey, privateKeyPath or secret", o.path)
	}
	o.drop("secrets of the management cluster are not read; give the password with --ask-pass, or privateKeyPath",
		"secret")
	setLogin(o, t, "privateKeyPath", "privateKey")
	o.ignore("timeout")
	o.done()
}

// roles returns the roles of an instance: both by default.
func (r capkkReader) roles(o *object) []manifest.Role {
	entries := o.entries("roles")
	if len(entries) == 0 {
		return []manifest.Role{manifest.RoleControlPlane, manifest.RoleWorker}
	}
	var roles []manifest.Role
	for _, n := range entries {
		role := manifest.RoleControlPlane
		switch n.Value {
		case "control-plane", "master":
		case "worker":
			role = manifest.RoleWorker
		default:
			r.problem(n, "%s: %q is not a role; want control-plane, master or worker", o.at("roles"), shown(n.Value))
			continue
		}
		if !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	return roles
}

// cluster reads the description of a cluster.
func (r capkkReader) cluster(t tree) {
	d := r.kinds["KKCluster"]
	if d.Root == nil {
		r.problem(r.first.Root, "there is no KKCluster in it: put the documents of a cluster into one file, with its KKCluster and the control plane")
		return
	}
	r.kkCluster(r.object("", d.Root), t)
	r.clusterAPI(t)
	for _, d := range r.templates {
		r.machineTemplate(r.object("", d.Root), t)
	}
	// Cluster API's kubeadm makes a stacked etcd and no pod network.
	r.defaults(t, d.Root, [][2]string{{"cni.type", "none"}})
}

func (r capkkReader) kkCluster(top *object, t tree) {
	top.ignore("apiVersion", "kind", "status")
	meta := top.sub("metadata")
	t.set("metadata.name", meta.scalar("name"))
	annotations := meta.sub("annotations")
	t.set("kubernetes.version",
		annotations.version("kkcluster.infrastructure.cluster.x-k8s.io/in-place-upgrade-version"))
	spec := top.sub("spec")
	top.done()
	spec.ignore("nodes")
	if n := spec.scalar("distribution"); n != nil && n.Value != "k8s" {
		t.set("kubernetes.distribution", n)
	}
	endpoint, balancer := spec.sub("controlPlaneEndpoint"), spec.sub("controlPlaneLoadBalancer")
	host := first(endpoint.scalar("host"), balancer.scalar("host"))
	if host == nil {
		r.problem(spec.node, "spec.controlPlaneLoadBalancer: host is missing; it is the address of the control plane, which kube-vip announces")
	} else {
		t.set("controlPlaneEndpoint.type", text(host, "kube-vip"))
		t.set("controlPlaneEndpoint.address", withPort(host, endpoint.scalar("port")))
	}
	endpoint.ignore("port")
	endpoint.done()
	balancer.ignore("host")
	balancer.done()
	registry := spec.sub("registry")
	auth := registry.sub("auth")
	if address := registry.scalar("privateRegistry"); address != nil {
		setExistingRegistry(t, address, auth.scalar("username"), auth.secretOf("password"), auth.scalar("caFile"))
	}
	auth.ignore("username", "password", "caFile")
	auth.drop("a registry without a certificate that is known is refused; name its authority in caFile",
		"insecureSkipVerify", "plainHTTP", "certsPath")
	auth.drop("client certificates are not used", "certFile", "keyFile")
	auth.done()
	registry.drop("images keep their names, whichever registry they come from", "registryMirrors", "namespaceOverride")
	registry.drop("a registry without a certificate that is known is refused; name its authority in auth.caFile",
		"insecureRegistries")
	registry.done()
	spec.drop(ownBundle, "component")
	spec.done()
}

// clusterAPI reads version and networks from Cluster API's documents.
func (r capkkReader) clusterAPI(t tree) {
	for _, kind := range []string{"KubeadmControlPlane", "K3sControlPlane"} {
		d := r.kinds[kind]
		if d.Root == nil {
			continue
		}
		spec := r.peek(d.Root).sub("spec")
		t.set("kubernetes.version", spec.version("version"))
		if kind == "K3sControlPlane" {
			t.set("kubernetes.distribution", text(d.Root, "k3s"))
		}
		r.note(d.Root, "of %s only the version is read", kind)
	}
	d := r.kinds["Cluster"]
	if d.Root == nil {
		return
	}
	r.note(d.Root, "of Cluster API's Cluster only clusterNetwork is read")
	network := r.peek(d.Root).sub("spec").sub("clusterNetwork")
	for _, one := range [][2]string{{"pods", "kubernetes.podCIDR"}, {"services", "kubernetes.serviceCIDR"}} {
		blocks := network.sub(one[0]).entries("cidrBlocks")
		var texts []string
		for _, n := range blocks {
			texts = append(texts, n.Value)
		}
		if texts != nil {
			t.set(one[1], text(blocks[0], strings.Join(texts, ",")))
		}
	}
}

// machineTemplate reads the container runtime, with the webhook's defaults.
func (r capkkReader) machineTemplate(top *object, t tree) {
	spec := top.sub("spec").sub("template").sub("spec")
	manager := spec.sub("containerManager")
	kind := first(manager.scalar("type"), text(manager.node, "containerd"))
	version := manager.version("version")
	if version == nil {
		version = text(manager.node, map[string]string{"containerd": "v1.6.4", "docker": "v20.10.8"}[kind.Value])
		r.note(manager.node, "%s.version is not given: CAPKK's default, %s %s, holds", manager.path, shown(kind.Value),
			version.Value)
	}
	if have := find(t.root, "cri"); have != nil && (find(have, "type").Value != kind.Value ||
		find(have, "version").Value != version.Value) {
		r.note(manager.node, "%s differs from that of the template before, which holds for all hosts", manager.path)
	} else if have == nil {
		t.set("cri.type", kind)
		t.set("cri.version", version)
	}
	manager.drop("the runtime has its own default", "criSocket")
	manager.drop(fromCatalog, "crictlVersion", "criDockerdVersion")
	manager.done()
	spec.drop("install packages beforehand", "repository")
	spec.ignore("roles", "providerID", "instanceID", "auth", "arch")
	spec.done()
}
