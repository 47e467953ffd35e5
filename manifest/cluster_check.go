package manifest

import (
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// clusterChecker makes a cluster file's checks beyond the types.
type clusterChecker struct{ *checker }

func (c clusterChecker) check(k *Cluster) {
	c.Name(k.Metadata.Name)
	if k.Metadata.Version != "" {
		c.Add("metadata.version", "a cluster has no version of its own; Kubernetes' version is kubernetes.version")
	}
	c.Release("kubernetes.version", k.Kubernetes.Version)
	c.upgrade(&k.Kubernetes)
	c.networks(k)
	c.siteAddresses(k)
	c.programs(&k.Kubernetes)
	c.endpoint(&k.ControlPlaneEndpoint)
	c.etcd(&k.Etcd)
	c.quota(k)
	c.backup(k.Backup)
	c.s3(k.Backup)
	if k.Certificates.EtcdCA != nil && k.Etcd.Type != "" && k.Etcd.Type != EtcdInternal {
		c.AddKey("certificates.etcdCA", "belongs to etcd of type internal; leave it out")
	}
	c.podNetwork(&k.CNI)
	c.dns(&k.DNS)
	c.timeServers(k.Time.Servers)
	c.Release("cri.version", k.CRI.Version)
	c.runtimeClasses("cri.runtimeClasses", k.CRI.RuntimeClasses)
	c.imageRegistry(&k.ImageRegistry)
	c.Kernel("precheck.minKernel", k.Precheck.MinKernel)
	c.storage(&k.Storage)
	c.Release("clusterAPI.version", k.ClusterAPI.Version)
	c.Release("clusterAPI.provider", k.ClusterAPI.Provider)
	c.addons("addons", k.Addons)
	c.components(k)
}

// upgrade checks that versions lead upwards within one major release.
func (c clusterChecker) upgrade(k *Kubernetes) {
	const at = "kubernetes.upgradeFrom"
	c.Release(at, k.UpgradeFrom)
	from, err := semver.NewVersion(k.UpgradeFrom)
	to, bad := semver.NewVersion(k.Version)
	if k.UpgradeFrom == "" || err != nil || bad != nil {
		return // already reported
	}
	if from.Major() != to.Major() || !from.LessThan(to) {
		c.Add(at, "%s is not before %s; write the older version that the hosts run now", k.UpgradeFrom, k.Version)
	}
}

// programs checks the configurations of other programs.
func (c clusterChecker) programs(k *Kubernetes) {
	release, err := semver.NewVersion(k.Version)
	if err != nil {
		return // already reported
	}
	programs.Check(c.Checker, release, map[programs.Section]map[string]any{
		programs.Kubeadm: k.Kubeadm, programs.Kubelet: k.Kubelet, programs.KubeProxy: k.KubeProxy,
	}, k.Patches)
}

// Bounds of networks.
const (
	// nodeBits4 and nodeBits6 are kube-controller-manager's default sizes for each node.
	nodeBits4, nodeBits6 = 24, 64
	// maxServiceBits is the most host bits that the API server allows for a service network.
	maxServiceBits = 20
	// minServiceBits leaves the ten addresses that kubeadm requires.
	minServiceBits = 4
	// maxNodeBits is kube-controller-manager's limit on the difference between a node's prefix length and the pod
	// network's.
	maxNodeBits = 16
)

func (c clusterChecker) networks(k *Cluster) {
	all := k.WithDefaults()
	d := all.Kubernetes
	pods, services := "kubernetes.podCIDR", "kubernetes.serviceCIDR"
	for _, p := range d.PodCIDR {
		for _, s := range d.ServiceCIDR {
			if p.Overlaps(s) {
				at, other := services, "pods"
				if k.Kubernetes.ServiceCIDR == nil {
					at, other = pods, "services (default)"
				}
				c.Add(at, "%s and %s overlap; take a network that the %s do not use", s, p, other)
			}
		}
		if p.Bits() > all.CNI.nodeBits(p) {
			c.Add(pods, "%s is too small: each node takes a /%d of it", p, all.CNI.nodeBits(p))
		} else if most := p.Bits() + maxNodeBits; all.CNI.nodeBits(p) > most {
			c.Add(pods, "%s is too large for nodes that take a /%d of it: write cni.%sMaskSize of at most %d, or a smaller network", p, all.CNI.nodeBits(p), familyOf(p), most)
		}
	}
	for _, s := range d.ServiceCIDR {
		if bits := s.Addr().BitLen() - s.Bits(); bits > maxServiceBits || bits < minServiceBits {
			c.Add(services, "%s does not fit; the API server takes from /%d to /%d", s,
				s.Addr().BitLen()-maxServiceBits, s.Addr().BitLen()-minServiceBits)
		}
	}
	if len(d.PodCIDR) != len(d.ServiceCIDR) {
		c.Add("kubernetes", "podCIDR has %d networks and serviceCIDR has %d; dual stack needs both in both",
			len(d.PodCIDR), len(d.ServiceCIDR))
	} else if d.PodCIDR[0].Addr().Is4() != d.ServiceCIDR[0].Addr().Is4() {
		c.Add("kubernetes", "podCIDR and serviceCIDR are of different IP versions")
	}
	most := all.podsPerNode()
	if d.MaxPods < 1 || d.MaxPods > most {
		c.Add("kubernetes.maxPods", "%d is not between 1 and %d, which a node's /%d holds", d.MaxPods, most,
			all.CNI.nodeBits(d.PodCIDR[0]))
	}
}

// siteAddresses checks that the cluster's networks are none of the host itself, and that addresses of the site lie
// outside them: nodes would look for these in the cluster.
func (c clusterChecker) siteAddresses(k *Cluster) {
	d := k.WithDefaults()
	addresses := map[string]string{
		"controlPlaneEndpoint.address": d.ControlPlaneEndpoint.Address, "imageRegistry.vip": d.ImageRegistry.VIP,
		"imageRegistry.address": d.ImageRegistry.Address,
	}
	for i, e := range d.Etcd.Endpoints {
		addresses[document.Index("etcd.endpoints", i)] = strings.TrimPrefix(e, "https://")
	}
	all := map[string][]netip.Prefix{
		"kubernetes.podCIDR": d.Kubernetes.PodCIDR, "kubernetes.serviceCIDR": d.Kubernetes.ServiceCIDR,
	}
	at := map[netip.Addr]string{}
	for _, path := range sortedKeys(addresses) {
		below, _ := scalar.CutPath(addresses[path])
		host, _, _ := scalar.SplitHostPort(below)
		a, err := netip.ParseAddr(host)
		if err != nil {
			continue
		}
		for _, name := range sortedKeys(all) {
			if slices.ContainsFunc(all[name], func(p netip.Prefix) bool { return p.Contains(a) }) {
				c.Add(path, "%s lies in %s, where nodes do not look for the site; take another address, or change the network", a, name)
			}
		}
		if other := at[a]; other == "controlPlaneEndpoint.address" && path == "imageRegistry.vip" {
			c.Add(path, "%s is %s, too; choose one that nobody has", a, other)
		}
		at[a] = path
	}
	for _, name := range sortedKeys(all) {
		for _, p := range all[name] {
			if a := p.Addr(); a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() {
				c.Add(name, "%s is no network for pods and services; take a private one, such as 10.233.64.0/18", p)
			}
		}
	}
}

// podsPerNode returns the number of addresses in a node's network without the first and the last.
func (c *Cluster) podsPerNode() int {
	const most = 1 << 16 // far more than the kubelet supports
	n := most
	for _, p := range c.Kubernetes.PodCIDR {
		if spare := p.Addr().BitLen() - c.CNI.nodeBits(p); spare < 16 {
			n = min(n, max(1<<max(spare, 0)-2, 0))
		}
	}
	return n
}

// nodeBits returns the size of each node's share of a pod network; the defaults are filled in.
func (n CNI) nodeBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return n.IPv4MaskSize
	}
	return n.IPv6MaskSize
}

func familyOf(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

func (c clusterChecker) endpoint(e *Endpoint) {
	at := "controlPlaneEndpoint"
	if e.Address != "" {
		c.endpointAddress(document.Join(at, "address"), e)
	} else if e.Type == EndpointKubeVIP || e.Type == EndpointExternal {
		c.Add(at, "address is missing; type %s needs it", e.Type)
	}
	if _, port, _ := scalar.SplitHostPort(e.Address); (e.Type == EndpointKubeVIP || e.Type == EndpointHAProxy) &&
		port != 0 && port != DefaultPort {
		c.Add(document.Join(at, "address"), "port %d: with type %s it is the API server's own, %d; leave the port out",
			port, e.Type, DefaultPort)
	}
}

// endpointAddress checks that kubeadm takes the address and that nodes can reach it.
func (c clusterChecker) endpointAddress(at string, e *Endpoint) {
	host, _, err := scalar.SplitHostPort(e.Address)
	if err != nil {
		c.Add(at, "%v", err)
		return
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err != nil && !document.IsName(host, true):
		c.Add(at, "%q is no DNS name in lower case, which kubeadm asks for; write %q", document.Shorten(host),
			document.Shorten(strings.ToLower(strings.TrimSuffix(host, "."))))
	case err == nil && !a.IsGlobalUnicast() && (!a.IsLoopback() || e.Type == EndpointKubeVIP):
		c.Add(at, "nodes do not reach %s; give an address of their network", a)
	}
}

// dns checks the domain of names in the cluster. kubeadm and the kubelet take DNS names in lower case.
func (c clusterChecker) dns(d *ClusterDNS) {
	if d.Domain != "" && (!document.IsName(d.Domain, true) || strings.Trim(d.Domain, "0123456789.") == "") {
		c.Add("dns.domain", "%q is no domain; write lower case letters, digits, hyphens and dots, such as cluster.local", document.Shorten(d.Domain))
	}
}

// timeServers checks values for a time service's configuration.
func (c clusterChecker) timeServers(servers []string) {
	for i, s := range servers {
		if _, err := netip.ParseAddr(s); err != nil && !document.IsName(s, true) {
			c.Add(document.Index("time.servers", i),
				"%q is neither a name nor an address; write one without a port, such as ntp.corp.example",
				document.Shorten(s))
		}
	}
}

// backup checks the form of recipients. age checks the keys.
func (c *checker) backup(b BackupKeys) {
	for i, r := range b.Recipients {
		if strings.ContainsAny(r, "\r\n") || !slices.ContainsFunc([]string{"age1", "ssh-ed25519 ", "ssh-rsa "},
			func(p string) bool { return strings.HasPrefix(r, p) }) {
			c.Add(document.Index("backup.recipients", i),
				"%q is not a recipient; write a public key: age1..., ssh-ed25519 ... or ssh-rsa ...",
				document.Shorten(r))
		}
	}
}

// s3 checks the address of the storage, and that copies do not pass a network in clear.
func (c *checker) s3(b BackupKeys) {
	if b.S3 == nil {
		return
	}
	at, err := url.Parse(b.S3.Endpoint)
	switch {
	case err != nil || at.Scheme != "https" && at.Scheme != "http" || at.Hostname() == "" ||
		strings.TrimSuffix(at.Path, "/") != "" || at.User != nil || at.RawQuery != "":
		c.Add("backup.s3.endpoint", "%q: want https://host or https://host:port", document.Shorten(b.S3.Endpoint))
	case at.Scheme == "http" && len(b.Recipients) == 0:
		c.Add("backup.s3.endpoint",
			"copies of etcd would pass the network in clear; use https://, or encrypt them with backup.recipients")
	}
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`).MatchString(b.S3.Bucket) {
		c.Add("backup.s3.bucket", "%q is no name of a bucket", document.Shorten(b.S3.Bucket))
	}
	for _, one := range []struct{ name, value string }{
		{"prefix", b.S3.Prefix},
		{"region", b.S3.Region},
		{"accessKey", b.S3.AccessKey},
	} {
		if strings.ContainsFunc(one.value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			c.Add("backup.s3."+one.name, "%q has blanks, or characters outside ASCII", document.Shorten(one.value))
		}
	}
	if path.Clean("/"+b.S3.Prefix) != "/"+strings.Trim(b.S3.Prefix, "/") {
		c.Add("backup.s3.prefix", "%q: want a path such as backups/site1", document.Shorten(b.S3.Prefix))
	}
}

// quota checks the size and the place of etcd's quota.
func (c clusterChecker) quota(k *Cluster) {
	const least = 256 << 20 // a new cluster with addons has some 10 MB
	switch {
	case c.Tree.Node("etcd.quota") == nil:
	case k.Etcd.Type == EtcdProvided:
		c.AddKey("etcd.quota", "belongs to an etcd that kkbundle installs; leave it out, and set --quota-backend-bytes where etcd runs")
	case k.Etcd.Quota < least:
		c.Add("etcd.quota", "%s is too small for a cluster; write at least 256Mi, such as 8Gi", k.Etcd.Quota)
	}
}

// etcd checks that the settings match the type.
func (c clusterChecker) etcd(e *Etcd) {
	if b := e.Backup; b != nil && (b.Keep < 0 || b.Keep == 0 && c.Tree.Node("etcd.backup.keep") != nil) {
		c.Add("etcd.backup.keep", "%d copies are no backup; keep at least 1", b.Keep)
	}
	c.DataDir("etcd.dataDir", e.DataDir)
	given := []struct {
		name string
		set  bool
	}{{"endpoints", len(e.Endpoints) > 0}, {"ca", e.CA != ""}, {"cert", e.Cert != ""}, {"key", e.Key != ""}}
	for _, one := range given {
		switch {
		case e.Type == EtcdProvided && !one.set:
			c.Add("etcd", "%s is missing; type provided needs endpoints, ca, cert and key", one.name)
		case e.Type != EtcdProvided && one.set:
			c.AddKey(document.Join("etcd", one.name),
				"belongs to an etcd of yours; write type: provided or leave it out")
		}
	}
	for i, endpoint := range e.Endpoints {
		host, ok := strings.CutPrefix(endpoint, "https://")
		if !ok {
			c.Add(document.Index("etcd.endpoints", i), "%q: want https://host:port", document.Shorten(endpoint))
			continue
		}
		c.HostPort(document.Index("etcd.endpoints", i), host)
	}
}

func (c clusterChecker) podNetwork(n *CNI) {
	c.Release("cni.version", n.Version)
	switch {
	case n.Type == NetworkMultus && n.With == "":
		c.Add("cni", "with is missing; multus needs another network for the pods' first interface")
	case n.Type != NetworkMultus && n.With != "":
		c.AddKey("cni.with", "belongs to type: multus; leave it out")
	}
	if n.Type == NetworkNone && len(n.Values) > 0 {
		c.AddKey("cni.values", "there is no network to give them to; leave it out")
	}
	for _, one := range []struct {
		path      string
		bits, max int
	}{{"cni.ipv4MaskSize", n.IPv4MaskSize, 32}, {"cni.ipv6MaskSize", n.IPv6MaskSize, 128}} {
		if one.bits < 0 || one.bits > one.max {
			c.Add(one.path, "%d is not between 1 and %d", one.bits, one.max)
		}
	}
}

func (c clusterChecker) imageRegistry(r *ImageRegistry) {
	path := "imageRegistry"
	if r.Address != "" {
		host, below := scalar.CutPath(r.Address)
		c.HostPort(document.Join(path, "address"), host)
		if below != "" && !document.Only(below, "./-_") {
			c.Add(document.Join(path, "address"),
				"%q: want host[:port][/path] with a path of lower case letters, digits and . - _ /",
				document.Shorten(r.Address))
		}
	}
	c.registryVIP(document.Join(path, "vip"), r)
	if r.Type == RegistryExisting {
		if r.Address == "" {
			c.Add(path, "address is missing; type existing needs it")
		}
		if r.Port != 0 {
			c.Add(document.Join(path, "port"), "write the port of an existing registry into address")
		}
		return
	}
	switch {
	case r.Port != 0 && !scalar.IsPort(r.Port):
		c.Add(document.Join(path, "port"), "%d is not between 1 and 65535", r.Port)
	// The registry's host may be a node.
	case slices.Contains([]int{DefaultPort, 2379, 2380, 10250, 10257, 10259}, r.Port):
		c.Add(document.Join(path, "port"), "%d is a port of Kubernetes; take another, such as %d", r.Port, DefaultRegistryPort)
	}
	for _, one := range []struct {
		name string
		set  bool
	}{{"address", r.Address != ""}, {"ca", r.CA != ""}, {"auth", r.Auth != nil}} {
		if one.set {
			c.AddKey(document.Join(path, one.name),
				"belongs to an existing registry; write type: existing or leave it out")
		}
	}
}

func (c clusterChecker) registryVIP(path string, r *ImageRegistry) {
	if r.VIP == "" {
		return
	}
	if r.Type == RegistryExisting || r.Type == RegistryNone {
		c.AddKey(path, "belongs to a registry that is installed on two hosts; leave it out, or write type: registry or harbor")
		return
	}
	if a, err := netip.ParseAddr(r.VIP); err != nil || a.Zone() != "" || !a.IsGlobalUnicast() {
		c.Add(path, "%q is not an address; write an unused one of the registry hosts' network, such as 10.0.0.100",
			document.Shorten(r.VIP))
	}
}

func (c clusterChecker) storage(s *Storage) {
	const at = "storage.nfsPath"
	if s.NFSPath == "" {
		return
	}
	c.DataDir(at, s.NFSPath)
	if !s.NFS {
		c.AddKey(at, "belongs to nfs: true; leave it out")
	}
}

func (c clusterChecker) components(k *Cluster) {
	for _, name := range sortedKeys(k.Components) {
		v := k.Components[name].Version
		c.Version(document.Join(document.Key("components", name), "version"), v)
		if name == "containerd" && k.CRI.Version != "" && k.CRI.Version != v {
			c.Add(document.Key("components", name), "cri.version says %s; keep one", k.CRI.Version)
		}
	}
}
