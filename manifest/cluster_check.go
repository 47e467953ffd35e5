package manifest

import (
	"net/netip"
	"path"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// cluster checks what the types alone do not say.
func (c *checker) cluster(k *Cluster) {
	c.name(k.Metadata.Name)
	if k.Metadata.Version != "" {
		c.add("metadata.version", "a cluster has none; the version of Kubernetes is kubernetes.version")
	}
	c.release("kubernetes.version", k.Kubernetes.Version)
	c.upgrade(&k.Kubernetes)
	c.networks(k)
	c.endpoint(&k.ControlPlaneEndpoint)
	c.etcd(&k.Etcd)
	if k.Certificates.EtcdCA != nil && k.Etcd.Type != "" && k.Etcd.Type != "internal" {
		c.addKey("certificates.etcdCA", "belongs to etcd of type internal; leave it out")
	}
	c.podNetwork(&k.CNI)
	c.release("cri.version", k.CRI.Version)
	c.imageRegistry(&k.ImageRegistry)
	c.kernel("precheck.minKernel", k.Precheck.MinKernel)
	c.addons(k.Addons)
	c.components(k)
}

// release checks a version that is part of download addresses: v and three numbers.
func (c *checker) release(path, version string) {
	if version == "" {
		return
	}
	number, hasV := strings.CutPrefix(version, "v")
	_, err := semver.StrictNewVersion(number)
	switch {
	case err != nil:
		c.add(path, "%q is no version; write v and three numbers, as in v1.34.3", shorten(version))
	case !hasV:
		c.add(path, "write v%s", version)
	}
}

// upgrade checks that versions lead upwards within one major release.
func (c *checker) upgrade(k *Kubernetes) {
	const at = "kubernetes.upgradeFrom"
	c.release(at, k.UpgradeFrom)
	from, err := semver.NewVersion(k.UpgradeFrom)
	to, bad := semver.NewVersion(k.Version)
	if k.UpgradeFrom == "" || err != nil || bad != nil {
		return // said already
	}
	if from.Major() != to.Major() || !from.LessThan(to) {
		c.add(at, "%s is not before %s; write the older version that the hosts run now", k.UpgradeFrom, k.Version)
	}
}

// The bounds of networks.
const (
	// nodeBits4 and nodeBits6 are what kube-controller-manager cuts for each node by default.
	nodeBits4, nodeBits6 = 24, 64
	// maxServiceBits is the most host bits of a service network that the API server takes.
	maxServiceBits = 20
	// minServiceBits leaves the ten addresses that kubeadm wants.
	minServiceBits = 4
	// maxPodsPerNode is what a /24 holds without its first and last address.
	maxPodsPerNode = 254
)

func (c *checker) networks(k *Cluster) {
	d := k.WithDefaults().Kubernetes
	pods, services := "kubernetes.podCIDR", "kubernetes.serviceCIDR"
	for _, p := range d.PodCIDR {
		for _, s := range d.ServiceCIDR {
			if p.Overlaps(s) {
				at, other := services, "pods"
				if k.Kubernetes.ServiceCIDR == nil {
					at, other = pods, "services (default)"
				}
				c.add(at, "%s and %s overlap; take a network that the %s do not use", s, p, other)
			}
		}
		// kubeadm.controllerManager can set another size for the nodes.
		if _, own := d.Kubeadm["controllerManager"]; !own && p.Bits() > nodeBits(p) {
			c.add(pods, "%s is too small: each node takes a /%d of it", p, nodeBits(p))
		}
	}
	for _, s := range d.ServiceCIDR {
		if bits := s.Addr().BitLen() - s.Bits(); bits > maxServiceBits || bits < minServiceBits {
			c.add(services, "%s does not fit; the API server takes from /%d to /%d", s,
				s.Addr().BitLen()-maxServiceBits, s.Addr().BitLen()-minServiceBits)
		}
	}
	if len(d.PodCIDR) != len(d.ServiceCIDR) {
		c.add("kubernetes", "podCIDR has %d networks and serviceCIDR has %d; dual stack needs both in both", len(d.PodCIDR), len(d.ServiceCIDR))
	} else if d.PodCIDR[0].Addr().Is4() != d.ServiceCIDR[0].Addr().Is4() {
		c.add("kubernetes", "podCIDR and serviceCIDR are of different IP versions")
	}
	if _, own := d.Kubeadm["controllerManager"]; d.MaxPods < 1 || !own && d.MaxPods > maxPodsPerNode {
		c.add("kubernetes.maxPods", "%d is not between 1 and %d, which a node's /%d holds", d.MaxPods, maxPodsPerNode, nodeBits4)
	}
}

func nodeBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return nodeBits4
	}
	return nodeBits6
}

func (c *checker) endpoint(e *Endpoint) {
	at := "controlPlaneEndpoint"
	if e.Address != "" {
		c.hostPort(join(at, "address"), e.Address)
	} else if e.Type == "kube-vip" || e.Type == "external" {
		c.add(at, "address is missing; type %s needs it", e.Type)
	}
	if _, port, _ := splitHostPort(e.Address); (e.Type == "kube-vip" || e.Type == "haproxy") && port != 0 && port != DefaultPort {
		c.add(join(at, "address"), "port %d: with type %s it is the API server's own, %d; leave the port out", port, e.Type, DefaultPort)
	}
}

// kernel checks a version of Linux.
func (c *checker) kernel(at, version string) {
	if strings.Trim(version, "0123456789.") != "" {
		c.add(at, "%q is no kernel version; write numbers and dots, as in 4.9.17", shorten(version))
	}
}

func (c *checker) dataDir(at, dir string) {
	if dir != "" && !path.IsAbs(dir) {
		c.add(at, "%q: write an absolute path", shorten(dir))
	}
}

// etcd checks what belongs to which type.
func (c *checker) etcd(e *Etcd) {
	if b := e.Backup; b != nil && b.Keep < 1 {
		c.add("etcd.backup.keep", "%d copies are no backup; keep at least 1", b.Keep)
	}
	c.dataDir("etcd.dataDir", e.DataDir)
	given := []struct {
		name string
		set  bool
	}{{"endpoints", len(e.Endpoints) > 0}, {"ca", e.CA != ""}, {"cert", e.Cert != ""}, {"key", e.Key != ""}}
	for _, one := range given {
		switch {
		case e.Type == "provided" && !one.set:
			c.add("etcd", "%s is missing; type provided needs endpoints, ca, cert and key", one.name)
		case e.Type != "provided" && one.set:
			c.addKey(join("etcd", one.name), "belongs to an etcd of yours; write type: provided or leave it out")
		}
	}
	for i, endpoint := range e.Endpoints {
		host, ok := strings.CutPrefix(endpoint, "https://")
		if !ok {
			c.add(index("etcd.endpoints", i), "%q: want https://host:port", shorten(endpoint))
			continue
		}
		c.hostPort(index("etcd.endpoints", i), host)
	}
}

func (c *checker) podNetwork(n *CNI) {
	c.release("cni.version", n.Version)
	switch {
	case n.Type == "multus" && n.With == "":
		c.add("cni", "with is missing; multus needs another network for the pods' first interface")
	case n.Type != "multus" && n.With != "":
		c.addKey("cni.with", "belongs to type: multus; leave it out")
	}
	for _, one := range []struct {
		path      string
		bits, max int
	}{{"cni.ipv4MaskSize", n.IPv4MaskSize, 32}, {"cni.ipv6MaskSize", n.IPv6MaskSize, 128}} {
		if one.bits < 0 || one.bits > one.max {
			c.add(one.path, "%d is not between 1 and %d", one.bits, one.max)
		}
	}
}

func (c *checker) imageRegistry(r *ImageRegistry) {
	path := "imageRegistry"
	if r.Address != "" {
		host, below := cutPath(r.Address)
		c.hostPort(join(path, "address"), host)
		if below != "" && !only(below, "./-_") {
			c.add(join(path, "address"), "%q: want host[:port][/path] with a path of lower case letters, digits and . - _ /", shorten(r.Address))
		}
	}
	if r.Type == "existing" {
		if r.Address == "" {
			c.add(path, "address is missing; type existing needs it")
		}
		if r.Port != 0 {
			c.add(join(path, "port"), "write the port of an existing registry into address")
		}
		return
	}
	if r.Port != 0 && !isPort(r.Port) {
		c.add(join(path, "port"), "%d is not between 1 and 65535", r.Port)
	}
	for _, one := range []struct {
		name string
		set  bool
	}{{"address", r.Address != ""}, {"ca", r.CA != ""}, {"auth", r.Auth != nil}} {
		if one.set {
			c.addKey(join(path, one.name), "belongs to an existing registry; write type: existing or leave it out")
		}
	}
}

const maxRelease = 53 // characters of a release name, Helm's own limit

func (c *checker) addons(list []Addon) {
	first := map[[2]string]int{}
	for i, a := range list {
		path := index("addons", i)
		if a.Namespace != "" && !isName(a.Namespace, false) {
			c.add(join(path, "namespace"), "%q is no namespace; use lower case letters, digits and hyphens", shorten(a.Namespace))
		}
		release := orDefault(a.Release, a.Chart)
		if release != "" && (!isName(release, true) || len(release) > maxRelease) {
			c.add(path, "%q is no release name; write release with lower case letters, digits and hyphens, at most %d", shorten(release), maxRelease)
		}
		id := [2]string{orDefault(a.Namespace, "default"), release}
		if at, twice := first[id]; twice {
			c.add(path, "release %s in namespace %s is there twice, first on %s; write another release name",
				shorten(release), shorten(id[0]), c.line(index("addons", at)))
		} else {
			first[id] = i
		}
	}
}

func (c *checker) components(k *Cluster) {
	for _, name := range sortedKeys(k.Components) {
		v := k.Components[name].Version
		c.version(join(key("components", name), "version"), v)
		if name == "containerd" && k.CRI.Version != "" && k.CRI.Version != v {
			c.add(key("components", name), "cri.version says %s; keep one", k.CRI.Version)
		}
	}
}
