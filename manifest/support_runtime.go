package manifest

import "slices"

// runtimeGaps returns the settings that are incompatible with a container runtime, or with K3s. Most will stay so.
func runtimeGaps() []gap[*Cluster] {
	k3s, with := isK3s, gapAt
	return []gap[*Cluster]{
		with("CRI-O without a registry", "imageRegistry.type",
			"it takes images from registries only: use registry or existing, or containerd",
			func(c *Cluster) bool {
				return c.CRI.Type == RuntimeCRIO && c.ImageRegistry.Type == RegistryNone && !k3s(c)
			}),
		with("crictl from the catalog for k3s", "cri.tools", "leave it out: k3s is crictl and ctr, too",
			func(c *Cluster) bool { return k3s(c) && len(c.CRI.Tools) > 0 }),
		with("nerdctl without containerd", "cri.tools", "use crictl, or containerd", func(c *Cluster) bool {
			return !k3s(c) && c.CRI.Type != "" && c.CRI.Type != RuntimeContainerd &&
				slices.Contains(c.CRI.Tools, "nerdctl")
		}),
		with("another runtime for k3s", "cri.type", "leave it out: k3s brings its own containerd",
			func(c *Cluster) bool { return k3s(c) && c.CRI.Type != "" && c.CRI.Type != RuntimeContainerd }),
		with("runtime classes with CRI-O", "cri.runtimeClasses",
			"leave them out, put a file into /etc/crio/crio.conf.d on the hosts and add the RuntimeClass as an addon",
			func(c *Cluster) bool { return !k3s(c) && c.CRI.Type == RuntimeCRIO && len(c.CRI.RuntimeClasses) > 0 }),
		with("runtime classes with Docker", "cri.runtimeClasses",
			"use containerd: cri-dockerd has one runtime for all pods",
			func(c *Cluster) bool { return !k3s(c) && c.CRI.Type == RuntimeDocker && len(c.CRI.RuntimeClasses) > 0 }),
		with("runtime classes with k3s", "cri.runtimeClasses",
			"leave them out: k3s finds NVIDIA's and other known runtimes by itself",
			func(c *Cluster) bool { return k3s(c) && len(c.CRI.RuntimeClasses) > 0 }),
		with("taking over Docker or CRI-O", "cri.takeOver", "use containerd, or hosts without another Docker or CRI-O",
			func(c *Cluster) bool {
				return !k3s(c) && c.CRI.TakeOver && c.CRI.Type != "" && c.CRI.Type != RuntimeContainerd
			}),
		with("taking over a runtime with k3s", "cri.takeOver",
			"leave it out: k3s brings its own containerd, beside others",
			func(c *Cluster) bool { return k3s(c) && c.CRI.TakeOver }),
		with("kube-vip with k3s", "controlPlaneEndpoint.type",
			"use local, or external with a balancer of yours: k3s' nodes find all servers by themselves",
			func(c *Cluster) bool { return k3s(c) && c.ControlPlaneEndpoint.Type == EndpointKubeVIP }),
		with("haproxy with k3s", "controlPlaneEndpoint.type", "use local: k3s' nodes have a balancer in themselves",
			func(c *Cluster) bool { return k3s(c) && c.ControlPlaneEndpoint.Type == EndpointHAProxy }),
		with("etcd beside k3s", "etcd.type", "use internal (k3s' own etcd), or provided with an etcd of yours",
			func(c *Cluster) bool { return k3s(c) && c.Etcd.Type == EtcdExternal }),
		with("saving k3s' etcd", "etcd.backup",
			"leave it out: k3s saves its etcd by itself, every 12 hours, below /var/lib/rancher/k3s/server/db/snapshots",
			func(c *Cluster) bool { return k3s(c) && c.Etcd.Backup != nil }),
		with("the quota of k3s' etcd", "etcd.quota",
			"leave it out, and write etcd-arg: [quota-backend-bytes=...] into /etc/rancher/k3s/config.yaml.d on the servers",
			func(c *Cluster) bool { return k3s(c) && c.Etcd.Quota != 0 }),
		with("hardening k3s", "kubernetes.security", "use baseline",
			func(c *Cluster) bool { return k3s(c) && c.Kubernetes.Security == SecurityHardened }),
		with("dual stack with k3s", "kubernetes.podCIDR", "use one network",
			func(c *Cluster) bool { return k3s(c) && len(c.Kubernetes.PodCIDR) > 1 }),
		with("kubeadm's configuration with k3s", "kubernetes.kubeadm", "leave it out",
			func(c *Cluster) bool { return k3s(c) && len(c.Kubernetes.Kubeadm) > 0 }),
		with("the kubelet's configuration with k3s", "kubernetes.kubelet",
			"leave it out, and put a file into /var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
			func(c *Cluster) bool { return k3s(c) && len(c.Kubernetes.Kubelet) > 0 }),
		with("kube-proxy's configuration with k3s", "kubernetes.kubeProxy", "leave it out",
			func(c *Cluster) bool { return k3s(c) && len(c.Kubernetes.KubeProxy) > 0 }),
		with("kubeadm's patches with k3s", "kubernetes.patches", "leave it out",
			func(c *Cluster) bool { return k3s(c) && len(c.Kubernetes.Patches) > 0 }),
		{"an authority of yours with k3s", func(c *Cluster) []string {
			if !k3s(c) {
				return nil
			}
			own := c.Certificates
			return slices.Concat(when(own.CA != nil, "certificates.ca"),
				when(own.FrontProxyCA != nil, "certificates.frontProxyCA"),
				when(own.EtcdCA != nil, "certificates.etcdCA"))
		}, "leave it out: k3s makes its own"},
		with("another directory for k3s' etcd", "etcd.dataDir",
			"leave it out: it is below /var/lib/rancher/k3s/server/db",
			func(c *Cluster) bool { return k3s(c) && c.Etcd.DataDir != "" && c.Etcd.DataDir != defaultEtcdDir }),
		with("another version of k3s' containerd", "cri.version", "leave it out: it comes with k3s",
			func(c *Cluster) bool { return k3s(c) && c.CRI.Version != "" }),
		{"a chart for k3s' own flannel", func(c *Cluster) []string {
			own := k3s(c) && (c.CNI.Type == "" || c.CNI.Type == NetworkFlannel)
			return append(when(own && c.CNI.Version != "", "cni.version"),
				when(own && len(c.CNI.Values) > 0, "cni.values")...)
		}, "leave it out, or use another network"},
	}
}

func isK3s(c *Cluster) bool { return c.Kubernetes.Distribution == DistributionK3s }

// gapAt is a gap with one place.
func gapAt(what, path, use string, found func(*Cluster) bool) gap[*Cluster] {
	return gap[*Cluster]{what, func(c *Cluster) []string { return when(found(c), path) }, use}
}

// distributionGaps returns the settings that ways of imageDistribution do not go with.
func distributionGaps() []gap[*Cluster] {
	spread := func(c *Cluster) bool { return c.ImageDistribution.Registries == RegistriesSpread }
	return []gap[*Cluster]{
		gapAt("spread registries without several", "imageDistribution.registries",
			"leave it out, or name several hosts in the group image_registry and their imageRegistry.vip",
			func(c *Cluster) bool { return spread(c) && c.ImageRegistry.VIP == "" }),
		gapAt("spread registries with another runtime than containerd", "imageDistribution.registries",
			"leave it out: nodes pull from imageRegistry.vip",
			func(c *Cluster) bool {
				return spread(c) && (isK3s(c) || c.CRI.Type != "" && c.CRI.Type != RuntimeContainerd)
			}),
		gapAt("programs from a registry that kkbundle does not install", "imageDistribution.programs",
			"leave it out: kkbundle sends files to each host",
			func(c *Cluster) bool {
				t := c.ImageRegistry.Type
				return c.ImageDistribution.Programs == ProgramsRegistry && t != "" && t != RegistryPlain
			}),
		gapAt("peers without a registry", "imageDistribution.peers",
			"leave it out: without a registry every node has all images",
			func(c *Cluster) bool {
				return c.ImageDistribution.Peers.Used() && c.ImageRegistry.Type == RegistryNone && !isK3s(c)
			}),
		gapAt("peers with Docker or CRI-O", "imageDistribution.peers", "use containerd: Spegel reads its content",
			func(c *Cluster) bool {
				return c.ImageDistribution.Peers.Used() && !isK3s(c) && c.CRI.Type != "" && c.CRI.Type != RuntimeContainerd
			}),
		gapAt("peers with k3s", "imageDistribution.peers",
			"leave it out, and write embedded-registry: true into /etc/rancher/k3s/config.yaml.d on the servers",
			func(c *Cluster) bool { return isK3s(c) && c.ImageDistribution.Peers.Used() }),
	}
}
