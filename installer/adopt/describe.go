package adopt

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/internal/secretform"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// A Description is a cluster in kkbundle's files, and the report about it.
type Description struct {
	Cluster   *manifest.Cluster
	Inventory *manifest.Inventory
	Report    Report
}

// Describe describes a cluster. given is the inventory that it was read through; its logins are kept. A cluster in no
// fit state is a *RefusedError.
func Describe(e *Evidence, given *manifest.Inventory) (*Description, error) {
	if err := e.refuseHosts(); err != nil {
		return nil, err
	}
	d := &describer{
		e: e, secrets: secretform.All(),
		cluster: &manifest.Cluster{APIVersion: manifest.APIVersion, Kind: manifest.KindCluster},
	}
	for _, read := range []func() error{d.readHosts, d.readConfigs, d.readPlanes} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	d.nodes(given)
	d.versions()
	d.readKubelets()
	if err := d.causes.err(); err != nil {
		return nil, err
	}
	d.identity()
	d.etcd()
	d.endpoint()
	d.runtime()
	d.registry()
	d.network()
	d.programs()
	d.certificates()
	d.services()
	if err := d.causes.err(); err != nil {
		return nil, err
	}
	inventory := d.inventory(given)
	cluster, err := d.settle(inventory)
	if err != nil {
		return nil, err
	}
	d.changes(cluster)
	return &Description{Cluster: cluster, Inventory: inventory, Report: d.report()}, nil
}

// A describer makes a Description of Evidence, a part of the cluster at a time.
type describer struct {
	e       *Evidence
	secrets secrets
	causes  causes

	kubeadm        kubeadmConfig
	kubelet, proxy map[string]any
	release        *semver.Version
	pods           map[string][]staticPod // of hosts, by their names
	planes         []plane

	cluster *manifest.Cluster
	cares   []Care
	changed []Change
	gaps    []Gap
}

// A plane is a control plane with its static pods.
type plane struct {
	name                                    string
	api, manager, scheduler, etcd, balancer *staticPod
}

func (d *describer) care(what, found string) { d.cares = append(d.cares, Care{what, found}) }

func (d *describer) gap(what, why, instead string) { d.gaps = append(d.gaps, Gap{what, why, instead}) }

func (d *describer) change(c Change) { d.changed = append(d.changed, c) }

// readHosts parses the static pods of all hosts.
func (d *describer) readHosts() error {
	d.pods = map[string][]staticPod{}
	for i := range d.e.Hosts {
		h := &d.e.Hosts[i]
		for _, file := range h.manifests() {
			text, read := h.Files[file]
			if !read {
				continue
			}
			pod, err := parseStaticPod(file, text)
			if err != nil {
				d.causes.add(h.Name+":"+file, "no static pod that can be read", "correct the file, or move it out of "+
					kube.ManifestsDir)
				continue
			}
			d.pods[h.Name] = append(d.pods[h.Name], pod)
		}
	}
	return d.causes.err()
}

// readConfigs parses the configurations of kubeadm, the kubelet and kube-proxy.
func (d *describer) readConfigs() error {
	const made = "only clusters that kubeadm made are described; kubeadm keeps its configuration there"
	var err error
	if d.kubeadm, err = parseKubeadm(d.e.Cluster.Kubeadm); err != nil {
		d.causes.add("API server", document.Shorten(err.Error()), made)
	} else if d.release = releaseOf(d.kubeadm.KubernetesVersion); d.release == nil {
		d.causes.add("ConfigMap kube-system/kubeadm-config", fmt.Sprintf("kubernetesVersion %q is no release",
			document.Shorten(d.kubeadm.KubernetesVersion)), made)
	}
	if d.kubelet, err = parseConfig("ConfigMap kube-system/kubelet-config", d.e.Cluster.Kubelet,
		"KubeletConfiguration"); err != nil {
		d.causes.add("API server", document.Shorten(err.Error()), made)
	}
	if d.proxy, err = parseConfig("ConfigMap kube-system/kube-proxy", d.e.Cluster.Proxy,
		"KubeProxyConfiguration"); err != nil {
		d.causes.add("API server", document.Shorten(err.Error()), made)
	}
	return d.causes.err()
}

// readPlanes finds the static pods of the control planes.
func (d *describer) readPlanes() error {
	for i := range d.e.Cluster.Nodes {
		n := &d.e.Cluster.Nodes[i]
		if !isControlPlane(n) || d.e.host(n.Name) == nil {
			continue
		}
		p := plane{name: n.Name}
		for j := range d.pods[n.Name] {
			pod := &d.pods[n.Name][j]
			switch name := pod.pod.Name; {
			case name == "kube-apiserver":
				p.api = pod
			case name == "kube-controller-manager":
				p.manager = pod
			case name == "kube-scheduler":
				p.scheduler = pod
			case name == "etcd":
				p.etcd = pod
			case strings.Contains(pod.image(), "kube-vip"):
				p.balancer = pod
			}
		}
		for _, needed := range []struct {
			name string
			pod  *staticPod
		}{{"kube-apiserver", p.api}, {"kube-controller-manager", p.manager}, {"kube-scheduler", p.scheduler}} {
			if needed.pod == nil {
				d.causes.add(n.Name+":"+kube.ManifestsDir, "unknown layout: there is no static pod "+needed.name,
					"only control planes of kubeadm's static pods are described")
			}
		}
		d.planes = append(d.planes, p)
	}
	if len(d.planes) == 0 && len(d.causes.list) == 0 {
		d.causes.add("API server", "no reached host is a node with the label "+kube.ControlPlaneLabel,
			"name the control planes by their nodes' names in the inventory")
	}
	return d.causes.err()
}

// nodes compares the cluster's nodes with the inventory's hosts.
func (d *describer) nodes(given *manifest.Inventory) {
	for i := range d.e.Cluster.Nodes {
		if n := &d.e.Cluster.Nodes[i]; d.e.host(n.Name) == nil {
			d.causes.add("node "+n.Name, "the inventory has no host of this name, so that it was not read",
				"add it to the inventory; hosts have the names of their nodes")
		}
	}
	for _, h := range given.Hosts() {
		if h.Is(manifest.RoleCluster) && kube.FindNode(d.e.Cluster.Nodes, h.Name) == nil {
			d.causes.add("host "+h.Name, "the cluster has no node of this name",
				"name it like its node, or take it out of the groups kube_control_plane and kube_worker")
		}
	}
}

// skew is how many minor releases a kubelet may be older than the API server.
// https://kubernetes.io/releases/version-skew-policy/#kubelet
const skew = 3

// versions refuses a cluster in the middle of an upgrade, and kubelets beyond the skew.
func (d *describer) versions() {
	const finish = "finish or undo the upgrade with the tool that began it"
	for _, p := range d.planes {
		for _, pod := range []*staticPod{p.api, p.manager, p.scheduler} {
			tag := tagOf(pod.image())
			switch v := releaseOf(tag); {
			case v == nil:
				d.causes.add(p.name+":"+pod.file, fmt.Sprintf("the image's tag %q is no release",
					document.Shorten(tag)), "name the image by its release")
			case !v.Equal(d.release):
				d.causes.add(p.name+":"+pod.file, fmt.Sprintf("it runs %s, and kubeadm-config says %s: an upgrade is under way", tag,
					d.kubeadm.KubernetesVersion), finish)
			}
		}
		if port := p.api.flags()["secure-port"]; port != "" && port != strconv.Itoa(manifest.DefaultPort) {
			d.causes.add(p.name+":"+p.api.file, "the API server listens on port "+document.Shorten(port),
				fmt.Sprintf("kkbundle knows port %d only", manifest.DefaultPort))
		}
	}
	for _, job := range d.e.Cluster.Jobs {
		if strings.HasPrefix(job, "upgrade-health-check") {
			d.causes.add("job kube-system/"+job, "kubeadm upgrade is at work", finish)
		}
	}
	for i := range d.e.Cluster.Nodes {
		d.kubeletVersion(&d.e.Cluster.Nodes[i])
	}
}

func (d *describer) kubeletVersion(n *corev1.Node) {
	version := n.Status.NodeInfo.KubeletVersion
	v := releaseOf(version)
	switch {
	case v == nil:
		d.causes.add("node "+n.Name, fmt.Sprintf("the kubelet's version %q is no release", document.Shorten(version)),
			"check the kubelet")
	case v.Major() != d.release.Major() || v.Minor() > d.release.Minor():
		d.causes.add("node "+n.Name, fmt.Sprintf("the kubelet is %s, newer than the control plane's %s", version,
			d.kubeadm.KubernetesVersion), "upgrade the control plane with the tool that upgraded the kubelet")
	case d.release.Minor()-v.Minor() > skew:
		d.causes.add("node "+n.Name, fmt.Sprintf("the kubelet is %s, more than %d minor releases before the control plane's %s",
			version, skew, d.kubeadm.KubernetesVersion), "upgrade the node first")
	case !v.Equal(d.release):
		d.change(Change{What: "kubelet", Text: version + " becomes " + d.kubeadm.KubernetesVersion, Hosts: []string{n.Name}})
	}
}

func isControlPlane(n *corev1.Node) bool {
	_, ok := n.Labels[kube.ControlPlaneLabel]
	return ok
}

// identity describes what kubeadm init fixes: name, release, networks, domain.
func (d *describer) identity() {
	c := d.cluster
	c.Metadata.Name = cmp.Or(d.kubeadm.ClusterName, "kubernetes")
	c.Kubernetes.Version = "v" + d.release.String()
	const object = "ConfigMap kube-system/kubeadm-config"
	network := func(what, text string) scalar.CIDRs {
		var list scalar.CIDRs
		if err := list.UnmarshalText([]byte(text)); err != nil || len(list) == 0 {
			d.causes.add(object, fmt.Sprintf("networking.%s %q is no network", what, document.Shorten(text)),
				"kkbundle needs the network that kubeadm init was given")
		}
		return list
	}
	// Some pod networks have their addresses in a configuration of their own, and kubeadm knows none.
	pods := cmp.Or(d.kubeadm.Networking.PodSubnet, d.planes[0].manager.flags()["cluster-cidr"])
	c.Kubernetes.PodCIDR = network("podSubnet", pods)
	c.Kubernetes.ServiceCIDR = network("serviceSubnet", d.kubeadm.Networking.ServiceSubnet)
	c.DNS.Domain = cmp.Or(d.kubeadm.Networking.DNSDomain, manifest.DefaultDomain)
	flags := d.planes[0].manager.flags()
	for _, mask := range []struct { // the second wins over the first
		name string
		size *int
	}{
		{"node-cidr-mask-size", &c.CNI.IPv4MaskSize},
		{"node-cidr-mask-size-ipv4", &c.CNI.IPv4MaskSize},
		{"node-cidr-mask-size-ipv6", &c.CNI.IPv6MaskSize},
	} {
		if n, err := strconv.Atoi(flags[mask.name]); err == nil {
			*mask.size = n
		}
	}
	d.care("Kubernetes", fmt.Sprintf("%s, pods %s, services %s, domain %s", d.kubeadm.KubernetesVersion, pods,
		d.kubeadm.Networking.ServiceSubnet, c.DNS.Domain))
}

// endpoint describes the address of the API server.
func (d *describer) endpoint() {
	e := &d.cluster.ControlPlaneEndpoint
	first := d.addressOf(d.planes[0].name)
	given := d.kubeadm.ControlPlaneEndpoint
	host, port, err := net.SplitHostPort(given)
	if err != nil {
		host, port = given, strconv.Itoa(manifest.DefaultPort)
	}
	if given == "" {
		e.Type = manifest.EndpointLocal
		d.change(Change{What: "endpoint", Upgrade: true, Text: "kubeadm-config has no controlPlaneEndpoint; it gets " +
			net.JoinHostPort(first, strconv.Itoa(manifest.DefaultPort))})
		d.care("endpoint", first+", the only control plane's own address")
		return
	}
	address := given
	for _, p := range d.planes {
		vip := vipOf(p.balancer)
		if vip == "" {
			continue
		}
		if vip == host && port == strconv.Itoa(manifest.DefaultPort) {
			e.Type, e.Address, e.Interface = manifest.EndpointKubeVIP, vip, p.balancer.env("vip_interface")
			d.care("endpoint", fmt.Sprintf("%s of kube-vip %s on control planes", vip, tagOf(p.balancer.image())))
			return
		}
		d.gap("kube-vip", fmt.Sprintf("the endpoint is %s and kube-vip's address %s: kkbundle's kube-vip needs an address as endpoint", given, vip),
			"kube-vip stays as it is; keep its manifest on new control planes by hand")
		break
	}
	if host == first && port == strconv.Itoa(manifest.DefaultPort) && len(d.planes) == 1 {
		e.Type = manifest.EndpointLocal
		d.care("endpoint", address+", the control plane's own address")
		d.balancers(address)
		return
	}
	e.Type, e.Address = manifest.EndpointExternal, address
	d.care("endpoint", address+", as it is")
	d.localName(host)
	d.balancers(address)
}

// localName reports an endpoint that nodes know by their own /etc/hosts: a new host does not.
func (d *describer) localName(name string) {
	var hosts []string
	for i := range d.e.Hosts {
		h := &d.e.Hosts[i]
		for line := range strings.Lines(h.Files[hostsFile]) {
			line, _, _ = strings.Cut(line, "#")
			if f := strings.Fields(line); len(f) > 1 && slices.Contains(f[1:], name) {
				hosts = append(hosts, h.Name)
				break
			}
		}
	}
	if len(hosts) > 0 {
		d.gap("endpoint", fmt.Sprintf("%s is a name in %s of %s: new hosts do not know it", name, hostsFile,
			strings.Join(hosts, ", ")), fmt.Sprintf(
			"write it into %s of a new host before kkbundle nodes add, with an address that leads to an API server, as %s %s",
			hostsFile, d.addressOf(d.planes[0].name), name))
	}
}

// balancers reports load balancers that the nodes run themselves.
func (d *describer) balancers(address string) {
	found := map[string][]string{}
	for i := range d.e.Hosts {
		h := &d.e.Hosts[i]
		for j := range d.pods[h.Name] {
			if pod := &d.pods[h.Name][j]; strings.Contains(pod.image(), "haproxy") ||
				strings.Contains(pod.image(), "nginx") {
				found["static pod "+pod.pod.Name] = append(found["static pod "+pod.pod.Name], h.Name)
			}
		}
		for _, unit := range []string{"haproxy.service", "nginx.service", "keepalived.service"} {
			if h.runs(unit) {
				found["unit "+unit] = append(found["unit "+unit], h.Name)
			}
		}
	}
	for _, what := range sortedKeys(found) {
		d.gap("load balancer", fmt.Sprintf("%s on %s: it belongs to the other tool", what, strings.Join(found[what], ", ")),
			"it stays; add new control planes to its configuration by hand, or move to an endpoint of kkbundle's with kkbundle endpoint move: now it is "+address)
	}
}

// vipOf returns the address of kube-vip, "" without one.
func vipOf(pod *staticPod) string {
	if pod == nil {
		return ""
	}
	for _, name := range []string{"address", "vip_address"} { // the second in releases before v0.4
		if v := pod.env(name); v != "" {
			return v
		}
	}
	return ""
}

// addressOf returns a node's first internal address, "" without one.
func (d *describer) addressOf(name string) string {
	if n := kube.FindNode(d.e.Cluster.Nodes, name); n != nil {
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				return a.Address
			}
		}
	}
	return ""
}

// inventory lists the nodes with the logins of the given inventory.
func (d *describer) inventory(given *manifest.Inventory) *manifest.Inventory {
	inv := given.Resolved()
	inv.Groups = manifest.Groups{} // no registry is installed, and etcd follows from the control planes
	var secret bool
	specs := inv.HostSpecs[:0]
	for _, h := range inv.HostSpecs {
		secret = secret || h.SSH.Password.IsSet() || h.SSH.PrivateKey.IsSet() || h.Sudo.Password.IsSet()
		h.SSH.Password, h.SSH.PrivateKey, h.Sudo.Password = manifest.Secret{}, manifest.Secret{}, manifest.Secret{}
		n := kube.FindNode(d.e.Cluster.Nodes, h.Name)
		if n == nil {
			if d.runsEtcd(h.Name) {
				specs = append(specs, h)
			}
			continue
		}
		for _, a := range n.Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			switch {
			case err != nil || a.Type != corev1.NodeInternalIP:
			case ip.Is4():
				h.InternalIPv4 = ip.String()
			default:
				h.InternalIPv6 = ip.String()
			}
		}
		specs = append(specs, h)
		plane := isControlPlane(n)
		if plane {
			inv.Groups.ControlPlane = append(inv.Groups.ControlPlane, h.Name)
		}
		if !plane || !kube.HasTaint(n, kube.ControlPlaneLabel, "", corev1.TaintEffectNoSchedule) {
			inv.Groups.Worker = append(inv.Groups.Worker, h.Name)
		}
	}
	inv.HostSpecs = specs
	if secret {
		d.gap("logins", "the inventory has passwords or keys in itself; they are not written",
			"name passwordEnv, passwordFile or key in the written inventory")
	}
	return inv
}

func (d *describer) runsEtcd(name string) bool {
	h := d.e.host(name)
	return h != nil && h.runsEtcdUnit()
}

// report returns the report.
func (d *describer) report() Report {
	r := Report{
		Version: 1, Cluster: d.cluster.Metadata.Name, Layout: layoutUnknown, Kubernetes: d.kubeadm.KubernetesVersion,
		Cares: d.cares, Changes: d.changed, Gaps: d.gaps,
	}
	for i := range d.e.Hosts {
		if l := layoutOf(&d.e.Hosts[i]); r.Layout == layoutUnknown || l != layoutUnknown && l != LayoutKubeadm {
			r.Layout = l
		}
	}
	for i := range d.e.Cluster.Nodes {
		n := &d.e.Cluster.Nodes[i]
		r.Nodes = append(r.Nodes, Node{
			Name: n.Name, Address: d.addressOf(n.Name), ControlPlane: isControlPlane(n),
			Kubelet: n.Status.NodeInfo.KubeletVersion,
			Runtime: strings.Replace(n.Status.NodeInfo.ContainerRuntimeVersion, "://", " ", 1),
			System:  n.Status.NodeInfo.OSImage,
		})
	}
	slices.SortStableFunc(r.Nodes, func(a, b Node) int {
		switch {
		case a.ControlPlane == b.ControlPlane:
			return strings.Compare(a.Name, b.Name)
		case a.ControlPlane:
			return -1
		default:
			return 1
		}
	})
	return r
}
