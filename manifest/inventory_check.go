package manifest

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// inventory checks what the types alone do not say.
func (c *checker) inventory(inv *Inventory) {
	if inv.Metadata != nil {
		c.name(inv.Metadata.Name)
	}
	c.login("vars", &inv.Vars.SSH, &inv.Vars.Sudo)
	known := c.hosts(inv)
	for _, r := range groupRoles() {
		c.group(r, inv.Groups.of(r), known)
	}
	etcd := RoleEtcd
	if len(inv.Groups.Etcd) == 0 {
		etcd = RoleControlPlane
	}
	if n := inv.members(etcd); n > 0 && n%2 == 0 {
		c.add("groups."+string(etcd), "%d hosts; etcd needs an odd number: an even one survives no more failures than one less", n)
	}
}

// members counts the hosts of a group, ranges expanded. It stops counting behind MaxHosts.
func (inv *Inventory) members(r Role) int {
	n := 0
	for _, entry := range inv.Groups.of(r) {
		if n > MaxHosts {
			break
		}
		names, err := expand(entry)
		if err == nil {
			n += len(names)
		}
	}
	return n
}

// login checks how a host is reached; both ways to give a password are one too many.
func (c *checker) login(path string, s *SSH, sudo *Sudo) {
	if s.Port != 0 && !isPort(s.Port) {
		c.add(join(path, "ssh.port"), "%d is not between 1 and 65535", s.Port)
	}
	if s.Bastion != "" {
		c.hostPort(join(path, "ssh.bastion"), s.Bastion)
	}
	if s.User != "" && (strings.ContainsAny(s.User, " :@/") || strings.HasPrefix(s.User, "-")) {
		c.add(join(path, "ssh.user"), "%q is no user name", shorten(s.User))
	}
	for _, one := range []struct{ path, env, file string }{
		{join(path, "ssh"), s.PasswordEnv, s.PasswordFile},
		{join(path, "sudo"), sudo.PasswordEnv, sudo.PasswordFile},
	} {
		if one.env != "" && one.file != "" {
			c.add(one.path, "has passwordEnv and passwordFile; keep one")
		}
		if strings.ContainsAny(one.env, "= ") {
			// The value is not repeated: it looks like the secret itself.
			c.add(join(one.path, "passwordEnv"), "want the name of an environment variable")
		}
	}
}

// hosts checks the entries and returns the names of all hosts.
func (c *checker) hosts(inv *Inventory) map[string]bool {
	seen := hostsSeen{names: map[string]string{}, addresses: map[string]string{}, internal: map[netip.Addr]string{}}
	known := map[string]bool{}
	total := 0
	for i := range inv.HostSpecs {
		spec := &inv.HostSpecs[i]
		path := key("hosts", spec.Name)
		c.login(path, &spec.SSH, &spec.Sudo)
		if spec.Local && spec.SSH != (SSH{}) {
			c.add(path, "has local and ssh; keep one")
		}
		list, err := spec.expand()
		if err != nil {
			c.entry(path, err)
			continue
		}
		if total += len(list); total > MaxHosts {
			c.addKey(path, "more than %d hosts with this entry", MaxHosts)
			break
		}
		port := orDefault(orDefault(spec.SSH.Port, inv.Vars.SSH.Port), defaultSSHPort)
		for _, h := range list {
			known[h.Name] = true
			if !c.host(path, h, port, &seen) {
				break // one problem an entry is enough: the others are the same
			}
		}
		if spec.Local {
			seen.locals += len(list)
		}
	}
	if seen.locals > 1 {
		c.add("hosts", "%d hosts are local; kkbundle runs on one machine", seen.locals)
	}
	return known
}

// entry reports an entry that does not expand, at the field that is wrong.
func (c *checker) entry(path string, err error) {
	var wrong *rangeError
	if errors.As(err, &wrong) && wrong.field != "" {
		c.add(join(path, wrong.field), "%v", err)
		return
	}
	c.addKey(path, "%v", err)
}

// hostsSeen are the names and addresses of the hosts so far, with the path of their entry.
type hostsSeen struct {
	names     map[string]string
	addresses map[string]string
	internal  map[netip.Addr]string
	locals    int
}

// host checks one host and tells whether it is sound.
func (c *checker) host(path string, h Host, port int, seen *hostsSeen) bool {
	// Two ports of one address are two hosts behind one address translation.
	address := strings.ToLower(h.Address) + " " + strconv.Itoa(port)
	at := join(path, "address")
	switch {
	case !isName(h.Name, true):
		c.addKey(path, "%q is no host name; use lower case letters, digits, hyphens and dots", shorten(h.Name))
	case seen.names[h.Name] != "":
		c.addKey(path, "host %s is there twice, first on %s", h.Name, c.line(seen.names[h.Name]))
	case !isHost(h.Address):
		c.add(at, "%q is no address and no host name", shorten(h.Address))
	case seen.addresses[address] != "" && !h.Local:
		c.add(at, "%s is the address of two hosts, first on %s", h.Address, c.line(seen.addresses[address]))
	case h.InternalIPv4.IsValid() && seen.internal[h.InternalIPv4] != "":
		c.add(join(path, "internalIPv4"), "%s is the address of two hosts, first on %s", h.InternalIPv4, c.line(seen.internal[h.InternalIPv4]))
	case h.InternalIPv4.IsValid() && (h.InternalIPv4.IsUnspecified() || h.InternalIPv4.IsMulticast() || h.InternalIPv4.IsLoopback()):
		c.add(join(path, "internalIPv4"), "other nodes do not reach %s; give the node's own address", h.InternalIPv4)
	default:
		seen.names[h.Name] = path
		seen.addresses[address] = path
		if h.InternalIPv4.IsValid() {
			seen.internal[h.InternalIPv4] = path
		}
		return true
	}
	return false
}

// group checks that a group's members are hosts, each once.
func (c *checker) group(r Role, entries []string, known map[string]bool) {
	first := map[string]int{}
	for i, entry := range entries {
		path := index(join("groups", string(r)), i)
		names, err := expand(entry)
		if err != nil {
			c.add(path, "%v", err)
			continue
		}
		if len(first)+len(names) > MaxHosts {
			c.add(path, "more than %d hosts with this entry", MaxHosts)
			return
		}
		for _, name := range names {
			if at, twice := first[name]; twice {
				c.add(path, "%s is in the group twice, first on %s", shorten(name), c.line(index(join("groups", string(r)), at)))
				break
			}
			first[name] = i
			if !known[name] {
				c.add(path, "%s is no host of this inventory%s", shorten(name), nearest(name, sortedKeys(known)))
				break
			}
		}
	}
}

// Check tells whether the hosts fit a cluster. The error is Problems, at their places in the inventory.
func (inv *Inventory) Check(k *Cluster) error {
	c := &checker{src: inv.src}
	d := k.WithDefaults()
	hosts := inv.Hosts()
	registry := inv.members(RoleRegistry)
	switch {
	case d.ImageRegistry.Type == "registry" && registry == 0:
		c.add("groups", "image_registry is missing; name the host that the registry is installed on")
	case d.ImageRegistry.Type == "existing" && registry > 0:
		c.addKey("groups.image_registry", "the cluster uses the registry %s, so none is installed; leave the group out", d.ImageRegistry.Address)
	}
	c.etcdHosts(inv, d)
	c.hostNetworks(hosts, d)
	return c.found.err()
}

func (c *checker) etcdHosts(inv *Inventory, d *Cluster) {
	if d.Etcd.Type != "internal" || len(inv.Groups.Etcd) == 0 {
		return
	}
	for _, h := range inv.Hosts() {
		if h.Is(RoleEtcd) != h.Is(RoleControlPlane) {
			c.addKey("groups.etcd", "etcd is internal, so it runs on the control plane: list the same hosts, or leave the group out (%s is only in one of both)", h.Name)
			return
		}
	}
}

// hostNetworks checks that the nodes' addresses lie outside the cluster's networks and that these hold the nodes.
func (c *checker) hostNetworks(hosts []Host, d *Cluster) {
	nodes := 0
	for _, h := range hosts {
		if h.Is(RoleCluster) {
			nodes++
		}
		inside := func(p netip.Prefix) bool { return h.InternalIPv4.IsValid() && p.Contains(h.InternalIPv4) }
		if i := slices.IndexFunc(slices.Concat(d.Kubernetes.PodCIDR, d.Kubernetes.ServiceCIDR), inside); i >= 0 {
			c.add("hosts", "%s has the address %s, which lies in a network of the cluster; change podCIDR or serviceCIDR", h.Name, h.InternalIPv4)
		}
	}
	if _, own := d.Kubernetes.Kubeadm["controllerManager"]; own || len(d.Kubernetes.PodCIDR) == 0 {
		return
	}
	pods := d.Kubernetes.PodCIDR[0]
	if spare := nodeBits(pods) - pods.Bits(); spare < 31 && nodes > 1<<max(spare, 0) {
		c.add("groups", "%d nodes do not fit into podCIDR %s: each takes a /%d", nodes, pods, nodeBits(pods))
	}
}
