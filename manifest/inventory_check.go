package manifest

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// inventoryChecker makes an inventory's checks beyond the types.
type inventoryChecker struct{ *checker }

func (c inventoryChecker) check(inv *Inventory) {
	if inv.Metadata != nil {
		c.Name(inv.Metadata.Name)
	}
	varsChecker(c).vars("vars", &inv.Vars)
	for _, g := range inv.GroupVars.all() {
		varsChecker(c).vars(document.Join("groupVars", string(g.role)), g.Vars)
	}
	known := c.hosts(inv)
	for _, r := range groupRoles() {
		c.group(r, inv.Groups.of(r), known)
	}
	c.marks(inv)
	c.ways(inv)
}

// marks checks that settings for nodes are set on nodes. Hosts without a role belong to no cluster yet, and vars are
// for all hosts.
func (c inventoryChecker) marks(inv *Inventory) {
	if c.Found != nil {
		return // groups may be wrong, or unbounded
	}
	roles := inv.roles()
	nodes := func(names []string) (roled, some bool) {
		for _, name := range names {
			roled = roled || len(roles[name]) > 0
			some = some || slices.Contains(roles[name], RoleCluster)
		}
		return roled, some
	}
	report := func(path, what string, v *Vars) {
		for _, one := range []struct {
			field string
			n     int
		}{{"labels", len(v.Labels)}, {"annotations", len(v.Annotations)}, {"taints", len(v.Taints)}} {
			if one.n > 0 {
				c.AddKey(document.Join(path, one.field), "%s, and only nodes have %s; leave them out", what, one.field)
			}
		}
	}
	for i := range inv.HostSpecs {
		spec := &inv.HostSpecs[i]
		names, err := scalar.ExpandRange(spec.Name)
		if err != nil {
			continue // already reported
		}
		if roled, some := nodes(names); roled && !some {
			report(document.Key("hosts", spec.Name), document.Shorten(spec.Name)+
				" is in no group of nodes (kube_control_plane, kube_worker)", spec.vars())
		}
	}
	for _, g := range inv.GroupVars.all() {
		var names []string
		for _, entry := range inv.Groups.of(g.role) {
			if more, err := scalar.ExpandRange(entry); err == nil {
				names = append(names, more...)
			}
		}
		if roled, some := nodes(names); roled && !some {
			report(document.Join("groupVars", string(g.role)), "no host of "+string(g.role)+
				" is in a group of nodes (kube_control_plane, kube_worker)", g.Vars)
		}
	}
}

// members counts the hosts of a group, ranges expanded, up to MaxHosts.
func (inv *Inventory) members(r Role) int {
	n := 0
	for _, entry := range inv.Groups.of(r) {
		if n > scalar.MaxHosts {
			break
		}
		names, err := scalar.ExpandRange(entry)
		if err == nil {
			n += len(names)
		}
	}
	return n
}

// varsChecker checks settings of hosts, wherever they are written.
type varsChecker struct{ *checker }

func (c varsChecker) vars(path string, v *Vars) {
	c.login(path, &v.SSH, &v.Sudo)
	for _, name := range sortedKeys(v.Labels) {
		c.qualified(document.Join(path, "labels"), name)
	}
	size := 0
	for _, name := range sortedKeys(v.Annotations) {
		c.qualified(document.Join(path, "annotations"), name)
		size += len(name) + len(v.Annotations[name])
	}
	if size > maxAnnotation {
		c.Add(document.Join(path, "annotations"), "have %d bytes; a node's annotations have at most %d", size,
			maxAnnotation)
	}
	first := map[[2]string]int{}
	for i, t := range v.Taints {
		id := [2]string{t.Key, t.Effect}
		if t == (Taint{}) {
			continue // unreadable
		}
		if at, twice := document.Earlier(first, id, i); twice {
			c.Add(document.Index(document.Join(path, "taints"), i), "%s:%s is there twice, first on %s", t.Key,
				t.Effect, c.Place(document.Index(document.Join(path, "taints"), at)))
		}
	}
	if v.Cluster != nil {
		c.settings(document.Join(path, "cluster"), v.Cluster)
	}
}

// qualified checks the name of a label or an annotation.
func (c varsChecker) qualified(path, name string) {
	if !isQualified(name) {
		c.AddKey(document.Key(path, name),
			"%q is not a name; write [prefix/]name, the name with at most 63 letters, digits and . - _",
			document.Shorten(name))
	} else if ownedByKubelet(name) {
		c.AddKey(document.Key(path, name), "%s is set by Kubernetes itself", name)
	}
}

// ownedByKubelet reports whether a name is reserved for the kubelet, kubeadm or kkbundle.
// https://kubernetes.io/docs/reference/labels-annotations-taints/
func ownedByKubelet(name string) bool {
	switch prefix, base, _ := strings.Cut(name, "/"); prefix {
	case "kubernetes.io", "beta.kubernetes.io":
		return base == "hostname" || base == "os" || base == "arch"
	case "kkbundle.io", "kubeadm.alpha.kubernetes.io", "volumes.kubernetes.io":
		return true
	}
	return name == "node-role.kubernetes.io/control-plane"
}

// settings checks the differences from the cluster file, as far as possible without it.
func (c varsChecker) settings(path string, s *HostSettings) {
	if s.Kubernetes.MaxPods < 0 {
		c.Add(document.Join(path, "kubernetes.maxPods"), "%d is not positive", s.Kubernetes.MaxPods)
	}
	programs.CheckReserved(c.Checker, document.Join(path, "kubernetes.kubelet"), programs.Kubelet, s.Kubernetes.Kubelet)
	c.DataDir(document.Join(path, "etcd.dataDir"), s.Etcd.DataDir)
	c.Kernel(document.Join(path, "precheck.minKernel"), s.Precheck.MinKernel)
}

// login checks a host's access settings; only one way to give a password is allowed.
func (c varsChecker) login(path string, s *SSH, sudo *Sudo) {
	if s.Port != 0 && !scalar.IsPort(s.Port) {
		c.Add(document.Join(path, "ssh.port"), "%d is not between 1 and 65535", s.Port)
	}
	if _, err := parseBastion(s.Bastion); err != nil {
		c.Add(document.Join(path, "ssh.bastion"), "%v", err)
	}
	if s.User != "" && !isUser(s.User) {
		c.Add(document.Join(path, "ssh.user"), "%q is not a user name", document.Shorten(s.User))
	}
	for _, one := range []struct{ path, env, file string }{
		{document.Join(path, "ssh"), s.PasswordEnv, s.PasswordFile},
		{document.Join(path, "sudo"), sudo.PasswordEnv, sudo.PasswordFile},
	} {
		if one.env != "" && one.file != "" {
			c.Add(one.path, "has passwordEnv and passwordFile; keep one")
		}
		if strings.ContainsAny(one.env, "= ") {
			// The value is not repeated: it looks like the secret itself.
			c.Add(document.Join(one.path, "passwordEnv"), "want the name of an environment variable")
		}
	}
}

// hosts checks the entries and returns the names of all hosts.
func (c inventoryChecker) hosts(inv *Inventory) map[string]bool {
	one := hostChecker{
		checker: c.checker, names: map[string]string{}, addresses: map[string]string{},
		internal: map[netip.Addr]string{},
	}
	roles := inv.roles()
	known := map[string]bool{}
	total, locals := 0, 0
	for i := range inv.HostSpecs {
		spec := &inv.HostSpecs[i]
		path := document.Key("hosts", spec.Name)
		varsChecker(c).vars(path, spec.vars())
		if spec.Local && spec.SSH != (SSH{}) {
			c.Add(path, "has local and ssh; keep one")
		}
		list, err := spec.expand()
		if err != nil {
			c.entry(path, err)
			if names, err := scalar.ExpandRange(spec.Name); err == nil { // groups may still name it
				for _, name := range names {
					known[name] = true
				}
			}
			continue
		}
		if total += len(list); total > scalar.MaxHosts {
			c.AddKey(path, "more than %d hosts with this entry", scalar.MaxHosts)
			break
		}
		for _, h := range list {
			known[h.Name] = true
			inv.resolve(&h, spec, roles[h.Name])
			if !one.host(path, h) {
				break // one problem per entry is enough: the others are the same
			}
		}
		if spec.Local {
			locals += len(list)
		}
	}
	if locals > 1 {
		c.Add("hosts", "%d hosts are local; kkbundle runs on one machine", locals)
	}
	return known
}

// entry reports an entry that does not expand, at the wrong field.
func (c *checker) entry(path string, err error) {
	if wrong, ok := errors.AsType[*rangeError](err); ok && wrong.field != "" {
		c.Add(document.Join(path, wrong.field), "%v", err)
		return
	}
	c.AddKey(path, "%v", err)
}

// hostChecker checks hosts one after the other. It holds the names and addresses so far, with the path of their entry.
type hostChecker struct {
	*checker
	names     map[string]string
	addresses map[string]string
	internal  map[netip.Addr]string
}

// MaxNodeName is the longest name of a node: the kubelet gives it a label with the name, and values of labels end
// there.
const MaxNodeName = 63

// host checks one host and reports whether it is sound.
func (c *hostChecker) host(path string, h Host) bool {
	// Two ports of one address may be two hosts behind NAT.
	address := sameAddress(h.Address) + " " + strconv.Itoa(h.SSH.Port)
	at := document.Join(path, "address")
	switch {
	case !document.IsName(h.Name, true):
		c.AddKey(path, "%q is not a host name; use lower case letters, digits, hyphens and dots",
			document.Shorten(h.Name))
	case h.Name == "localhost":
		c.AddKey(path, "localhost is every host's name for itself, and /etc/hosts would give it an address of the network; choose another name")
	case h.Is(RoleCluster) && len(h.Name) > MaxNodeName:
		c.AddKey(path, "%s has %d characters; a node's name has at most %d, because it is the value of its label kubernetes.io/hostname", document.Shorten(h.Name), len(h.Name), MaxNodeName)
	case c.names[h.Name] != "":
		c.AddKey(path, "host %s is there twice, first on %s", h.Name, c.Place(c.names[h.Name]))
	case !scalar.IsHost(h.Address):
		c.Add(at, "%q is neither an address nor a host name", document.Shorten(h.Address))
	case c.addresses[address] != "" && !h.Local:
		c.Add(at, "%s is the address of two hosts, first on %s; list each host once", h.Address,
			c.Place(c.addresses[address]))
	default:
		if !c.internalAddress(path, "internalIPv4", h.InternalIPv4) ||
			!c.internalAddress(path, "internalIPv6", h.InternalIPv6) {
			return false
		}
		c.names[h.Name] = path
		c.addresses[address] = path
		return true
	}
	return false
}

// internalAddress checks a node's address in the cluster and reports whether it is sound.
func (c *hostChecker) internalAddress(path, field string, a netip.Addr) bool {
	at := document.Join(path, field)
	switch {
	case !a.IsValid():
		return true
	case c.internal[a] != "":
		c.Add(at, "%s is the address of two hosts, first on %s; list each host once, or give each its own %s", a,
			c.Place(c.internal[a]), field)
	case !a.IsGlobalUnicast():
		c.Add(at, "other nodes do not reach %s; give the node's own address", a)
	default:
		c.internal[a] = path
		return true
	}
	return false
}

// sameAddress returns an address or host name in a comparable form.
func sameAddress(address string) string {
	if a, err := netip.ParseAddr(address); err == nil {
		return a.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(address), ".")
}

// ways checks the hops of every host; one problem per entry is enough.
func (c inventoryChecker) ways(inv *Inventory) {
	if c.Found != nil {
		return // a wrong bastion, or an unknown host, is already reported
	}
	list := inv.expand()
	w := newWays(list)
	said := map[string]bool{}
	for i := range list {
		path := list[i].entry
		if _, err := w.to(&list[i]); err != nil && !said[path] {
			said[path] = true
			c.Add(c.bastionOf(path, &list[i]), "%v", err)
		}
	}
}

// bastionOf returns the place that sets a host's hops.
func (c inventoryChecker) bastionOf(path string, h *Host) string {
	places := []string{path}
	for _, g := range (&GroupVars{}).all() {
		if h.Is(g.role) {
			places = append(places, document.Join("groupVars", string(g.role)))
		}
	}
	slices.Reverse(places[1:])
	for _, place := range append(places, "vars") {
		if at := document.Join(place, "ssh.bastion"); c.Tree.Node(at) != nil {
			return at
		}
	}
	return path
}

// group checks that a group's members are hosts, without duplicates.
func (c inventoryChecker) group(r Role, entries []string, known map[string]bool) {
	first := map[string]int{}
	for i, entry := range entries {
		path := document.Index(document.Join("groups", string(r)), i)
		names, err := scalar.ExpandRange(entry)
		if err != nil {
			c.Add(path, "%v", err)
			continue
		}
		if len(first)+len(names) > scalar.MaxHosts {
			c.Add(path, "more than %d hosts with this entry", scalar.MaxHosts)
			return
		}
		for _, name := range names {
			if at, twice := first[name]; twice {
				c.Add(path, "%s is in the group twice, first on %s", document.Shorten(name),
					c.Place(document.Index(document.Join("groups", string(r)), at)))
				break
			}
			first[name] = i
			if !known[name] {
				c.Add(path, "%s is not a host of this inventory%s", document.Shorten(name),
					document.DidYouMean(name, sortedKeys(known)))
				break
			}
		}
	}
}

// Check reports whether the hosts match a cluster. The error is Problems, at their places in the inventory.
func (inv *Inventory) Check(k *Cluster) error {
	c := siteChecker{checkerOf(inv.src)}
	d := k.WithDefaults()
	inv = inv.WithDefaults(d)
	hosts := inv.Hosts()
	c.registryHosts(inv, &d.ImageRegistry)
	nodes := slices.DeleteFunc(slices.Clone(hosts), func(h Host) bool { return !h.Is(RoleCluster) })
	if d.ImageDistribution.Peers.Used() && len(nodes) == 1 {
		c.AddKey("groups", "imageDistribution.peers of the cluster file is for two nodes or more; leave it out")
	}
	c.etcdHosts(inv, d)
	c.hostNetworks(hosts, d)
	c.freeAddress(hosts, &d.ControlPlaneEndpoint)
	return c.Found.Err()
}

// siteChecker checks an inventory against a cluster file.
type siteChecker struct{ *checker }

// registryHosts checks the number of registry hosts required by the cluster file.
func (c siteChecker) registryHosts(inv *Inventory, r *ImageRegistry) {
	const pair = 2
	n := inv.members(RoleRegistry)
	installed := r.Type.Installed()
	switch {
	case r.Type == RegistryExisting && n > 0:
		c.AddKey("groups.image_registry", "the cluster uses the registry %s, so none is installed; leave the group out",
			r.Address)
	case installed && r.VIP == "" && n > 1:
		c.AddKey("groups.image_registry",
			"%d hosts, and the cluster file has no imageRegistry.vip; several hosts need an address that they share, else name one host", n)
	case installed && r.VIP != "" && n < pair:
		c.AddKey("groups.image_registry",
			"imageRegistry.vip of the cluster file is for two hosts or more and here is %d; name two, or leave vip out and name one", n)
	case r.Type == RegistryHarbor && n > pair:
		c.AddKey("groups.image_registry", "%d hosts; Harbor is installed on two at most", n)
	}
	vip, err := netip.ParseAddr(r.VIP)
	if err != nil {
		return
	}
	for _, h := range inv.Hosts() {
		if h.InternalIPv4 == vip || h.InternalIPv6 == vip {
			c.Add("hosts", "%s has the address %s, which imageRegistry.vip of the cluster file has, too; choose one that nobody has", h.Name, vip)
		}
	}
}

// freeAddress checks that kube-vip's address is none of a host: two machines would answer for it.
func (c siteChecker) freeAddress(hosts []Host, e *Endpoint) {
	name, _, _ := scalar.SplitHostPort(e.Address)
	vip, err := netip.ParseAddr(name)
	if err != nil || e.Type != EndpointKubeVIP {
		return
	}
	for _, h := range hosts {
		if h.InternalIPv4 == vip || h.InternalIPv6 == vip {
			c.Add("hosts", "%s has the address %s, which controlPlaneEndpoint.address of the cluster file has, too, for kube-vip; choose one that nobody has", h.Name, vip)
		}
	}
}

func (c siteChecker) etcdHosts(inv *Inventory, d *Cluster) {
	if d.Etcd.Type != EtcdInternal || len(inv.Groups.Etcd) == 0 {
		return
	}
	for _, h := range inv.Hosts() {
		if h.Is(RoleEtcd) != h.Is(RoleControlPlane) {
			c.AddKey("groups.etcd", "etcd is internal, so it runs on the control plane: list the same hosts, or leave the group out (%s is only in one of both)", h.Name)
			return
		}
	}
}

// hostNetworks checks that the nodes' addresses lie outside the cluster's networks, and that these are large enough for
// the nodes.
func (c siteChecker) hostNetworks(hosts []Host, d *Cluster) {
	nodes := 0
	for _, h := range hosts {
		if h.Is(RoleCluster) {
			nodes++
		}
		for _, a := range []netip.Addr{h.InternalIPv4, h.InternalIPv6} {
			inside := func(p netip.Prefix) bool { return a.IsValid() && p.Contains(a) }
			if slices.ContainsFunc(slices.Concat(d.Kubernetes.PodCIDR, d.Kubernetes.ServiceCIDR), inside) {
				c.Add("hosts", "%s has the address %s, which lies in a network of the cluster; change podCIDR or serviceCIDR", h.Name, a)
			}
		}
	}
	for _, pods := range d.Kubernetes.PodCIDR {
		if spare := d.CNI.nodeBits(pods) - pods.Bits(); spare < 31 && nodes > 1<<max(spare, 0) {
			c.Add("groups", "%d nodes do not fit into podCIDR %s: each takes a /%d", nodes, pods, d.CNI.nodeBits(pods))
		}
	}
}
