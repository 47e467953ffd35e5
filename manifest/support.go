package manifest

import "github.com/kkbundle/kkbundle/manifest/document"

// A gap is a setting that the files allow and this version cannot implement. It is refused: an install that silently
// leaves something out is worse than none. Implementing it means deleting its row.
type gap[T any] struct {
	// the setting's name in the message.
	what string
	// found returns the paths at which a file uses the setting.
	found func(T) []string
	// use names the alternative.
	use string
}

// CheckInstall refuses, as Problems, settings that this version can put into a bundle and check on hosts, but cannot
// install yet.
func (k *Cluster) CheckInstall() error {
	c := checkerOf(k.src)
	refuse(c, k, clusterGaps())
	return c.Found.Err()
}

// CheckInstall refuses settings that this version cannot install yet, like Cluster.CheckInstall.
func (inv *Inventory) CheckInstall() error {
	c := checkerOf(inv.src)
	refuse(c, inv, inventoryGaps())
	return c.Found.Err()
}

// refuse reports every gap that a file uses.
func refuse[T any](c *checker, file T, gaps []gap[T]) {
	for _, g := range gaps {
		for _, path := range g.found(file) {
			c.AddKey(path, "%s is not supported yet by this version; %s", g.what, g.use)
		}
	}
}

// when returns the path if a condition holds.
func when(condition bool, path string) []string {
	if condition {
		return []string{path}
	}
	return nil
}

func clusterGaps() []gap[*Cluster] {
	return append(append(runtimeGaps(), distributionGaps()...), []gap[*Cluster]{
		{"saving an etcd of yours", func(c *Cluster) []string {
			return when(c.Etcd.Type == EtcdProvided && c.Etcd.Backup != nil, "etcd.backup")
		}, "leave it out, and save it where it runs"},
		{"Cluster API on k3s", func(c *Cluster) []string {
			return when(c.Kubernetes.Distribution == DistributionK3s && c.ClusterAPI.Installed(), "clusterAPI")
		}, "leave it out: clusterctl finds the kubeconfig of kubeadm only"},
		{"Hybridnet with more than one network for pods", func(c *Cluster) []string {
			two := len(c.Kubernetes.PodCIDR) > 1
			return append(when(two && c.CNI.Type == NetworkHybridnet, "cni.type"),
				when(two && c.CNI.With == NetworkHybridnet, "cni.with")...)
		}, "use calico, cilium, kube-ovn or flannel"},
	}...)
}

func inventoryGaps() []gap[*Inventory] {
	return []gap[*Inventory]{
		{"another interface for the endpoint's address on some hosts", func(inv *Inventory) []string {
			return inv.saying("cluster.controlPlaneEndpoint.interface",
				func(v *Vars) bool { return v.Cluster != nil && v.Cluster.ControlPlaneEndpoint.Interface != "" })
		}, "write it into the cluster file, for all hosts"},
		{"another directory for etcd on some hosts", func(inv *Inventory) []string {
			return inv.saying("cluster.etcd.dataDir",
				func(v *Vars) bool { return v.Cluster != nil && v.Cluster.Etcd.DataDir != "" })
		}, "write it into the cluster file, for all hosts"},
	}
}

// saying returns the paths in vars and groupVars where a field is set, and the first one in hosts.
func (inv *Inventory) saying(field string, set func(*Vars) bool) []string {
	paths := when(set(&inv.Vars), document.Join("vars", field))
	for _, g := range inv.GroupVars.all() {
		paths = append(paths, when(set(g.Vars), document.Join(document.Join("groupVars", string(g.role)), field))...)
	}
	for i := range inv.HostSpecs {
		if h := &inv.HostSpecs[i]; set(h.vars()) {
			return append(paths, document.Join(document.Key("hosts", h.Name), field))
		}
	}
	return paths
}
