package manifest

import "net/netip"

// A gap is something the files can say and this version cannot do. It is refused rather than passed over: an install
// that quietly leaves something out is worse than none. Whoever builds one of these deletes its row.
type gap[T any] struct {
	// what is named in the message.
	what string
	// found returns the paths at which a file asks for it.
	found func(T) []string
	// use says what to write instead.
	use string
}

// CheckInstall refuses, as Problems, what this version can put into a bundle and check on hosts, and not install yet.
func (k *Cluster) CheckInstall() error {
	c := checker{src: k.src}
	refuse(&c, k, clusterGaps())
	return c.found.Err()
}

// CheckInstall refuses what this version cannot install yet, as Cluster.CheckInstall does.
func (inv *Inventory) CheckInstall() error {
	c := checker{src: inv.src}
	refuse(&c, inv, inventoryGaps())
	return c.found.Err()
}

// refuse reports every gap that a file asks for.
func refuse[T any](c *checker, file T, gaps []gap[T]) {
	for _, g := range gaps {
		for _, path := range g.found(file) {
			c.addKey(path, "%s is not supported yet by this version; %s", g.what, g.use)
		}
	}
}

// when is the path if a condition holds.
func when(condition bool, path string) []string {
	if condition {
		return []string{path}
	}
	return nil
}

func clusterGaps() []gap[*Cluster] {
	is := func(path, value string, field func(*Cluster) string, use string) gap[*Cluster] {
		return gap[*Cluster]{value, func(c *Cluster) []string { return when(field(c) == value, path) }, use}
	}
	var (
		endpoint = func(c *Cluster) string { return c.ControlPlaneEndpoint.Type }
		etcd     = func(c *Cluster) string { return c.Etcd.Type }
		registry = func(c *Cluster) string { return c.ImageRegistry.Type }
	)
	return []gap[*Cluster]{
		is("kubernetes.distribution", "k3s", func(c *Cluster) string { return c.Kubernetes.Distribution }, "use kubernetes"),
		{"upgrading", func(c *Cluster) []string { return when(c.Kubernetes.UpgradeFrom != "", "kubernetes.upgradeFrom") }, "leave it out to install afresh; a bundle has what an upgrade needs all the same"},
		is("kubernetes.proxyMode", "ipvs", func(c *Cluster) string { return c.Kubernetes.ProxyMode }, "use iptables or nftables"),
		is("kubernetes.security", "hardened", func(c *Cluster) string { return c.Kubernetes.Security }, "use baseline"),
		{"dual stack", func(c *Cluster) []string { return when(len(c.Kubernetes.PodCIDR) > 1, "kubernetes.podCIDR") }, "use one IPv4 network"},
		{"a cluster of IPv6 alone", func(c *Cluster) []string {
			return when(len(c.Kubernetes.PodCIDR) == 1 && isIPv6(c.Kubernetes.PodCIDR[0]), "kubernetes.podCIDR")
		}, "use one IPv4 network"},
		is("controlPlaneEndpoint.type", "kube-vip", endpoint, "use local"),
		is("controlPlaneEndpoint.type", "haproxy", endpoint, "use local"),
		is("controlPlaneEndpoint.type", "external", endpoint, "use local"),
		is("etcd.type", "external", etcd, "use internal"),
		is("etcd.type", "provided", etcd, "use internal"),
		{"saving etcd", func(c *Cluster) []string { return when(c.Etcd.Backup != nil, "etcd.backup") }, "leave it out"},
		is("cri.type", "docker", func(c *Cluster) string { return c.CRI.Type }, "use containerd"),
		is("cri.type", "crio", func(c *Cluster) string { return c.CRI.Type }, "use containerd"),
		{"another size of the nodes' networks", func(c *Cluster) []string {
			return append(when(c.CNI.IPv4MaskSize != 0 && c.CNI.IPv4MaskSize != nodeBits4, "cni.ipv4MaskSize"), when(c.CNI.IPv6MaskSize != 0 && c.CNI.IPv6MaskSize != nodeBits6, "cni.ipv6MaskSize")...)
		}, "leave it out"},
		{"another directory for etcd", func(c *Cluster) []string {
			return when(c.Etcd.DataDir != "" && c.Etcd.DataDir != defaultEtcdDir, "etcd.dataDir")
		}, "leave it out"},
		{"a second registry host", func(c *Cluster) []string { return when(c.ImageRegistry.VIP != "", "imageRegistry.vip") }, "leave it out"},
		{"Hybridnet with more than one network for pods", func(c *Cluster) []string {
			two := len(c.Kubernetes.PodCIDR) > 1
			return append(when(two && c.CNI.Type == "hybridnet", "cni.type"), when(two && c.CNI.With == "hybridnet", "cni.with")...)
		}, "use calico, cilium, kube-ovn or flannel"},
		is("imageRegistry.type", "harbor", registry, "use registry, or existing with the address of yours"),
		is("imageRegistry.type", "none", registry, "use registry, or existing with the address of yours"),
		{"a login at the registry", func(c *Cluster) []string {
			return when(c.ImageRegistry.Type == "existing" && c.ImageRegistry.Auth != nil, "imageRegistry.auth")
		}, "let the hosts pull without one"},
	}
}

func isIPv6(p netip.Prefix) bool { return p.Addr().Is6() }

func inventoryGaps() []gap[*Inventory] {
	return []gap[*Inventory]{
		{"more than one control plane", func(inv *Inventory) []string {
			return when(inv.members(RoleControlPlane) > 1, "groups.kube_control_plane")
		}, "keep one host there"},
		{"more than one registry host", func(inv *Inventory) []string {
			return when(inv.members(RoleRegistry) > 1, "groups.image_registry")
		}, "keep one host there"},
		{"labelling nodes", func(inv *Inventory) []string {
			return inv.saying("labels", func(v *Vars) bool { return len(v.Labels) > 0 })
		}, "leave them out, and set them with kubectl label node"},
		{"annotating nodes", func(inv *Inventory) []string {
			return inv.saying("annotations", func(v *Vars) bool { return len(v.Annotations) > 0 })
		}, "leave them out, and set them with kubectl annotate node"},
		{"tainting nodes", func(inv *Inventory) []string {
			return inv.saying("taints", func(v *Vars) bool { return len(v.Taints) > 0 })
		}, "leave them out, and set them with kubectl taint node"},
		{"a cluster that differs between hosts", func(inv *Inventory) []string {
			return inv.saying("cluster", func(v *Vars) bool { return v.Cluster != nil })
		}, "write it into the cluster file, for all hosts"},
	}
}

// saying returns the paths of a field in vars and groupVars where it is set, and the first one in hosts.
func (inv *Inventory) saying(field string, set func(*Vars) bool) []string {
	paths := when(set(&inv.Vars), join("vars", field))
	for _, g := range inv.GroupVars.all() {
		paths = append(paths, when(set(g.Vars), join(join("groupVars", string(g.role)), field))...)
	}
	for i := range inv.HostSpecs {
		if h := &inv.HostSpecs[i]; set(h.vars()) {
			return append(paths, join(key("hosts", h.Name), field))
		}
	}
	return paths
}
