package kubekey

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

// v3Reader reads kubekey.kubesphere.io/v1alpha2 Cluster.
type v3Reader struct{ *reader }

// inventory reads the hosts.
func (r v3Reader) inventory(root *yaml.Node, t tree) {
	spec := r.spec(r.object("", root))
	hosts := mapping(spec.node)
	for _, n := range spec.entries("hosts") {
		o := r.object("spec.hosts", n)
		name := o.scalar("name")
		if name == nil {
			r.problem(n, "spec.hosts: name is missing")
			continue
		}
		if find(hosts.root, name.Value) != nil {
			r.problem(name, "spec.hosts: %s is there twice", shown(name.Value))
			continue
		}
		hosts.put(r.host(o), name.Value)
	}
	t.put(hosts.root, "hosts")
	groups := spec.sub("roleGroups")
	r.roles(groups, t)
}

func (r v3Reader) host(o *object) *yaml.Node {
	t := mapping(o.node)
	internal := o.scalar("internalAddress")
	address := o.scalar("address")
	if address == nil && internal != nil {
		v4, _, _ := strings.Cut(internal.Value, ",")
		address = text(internal, v4)
	}
	t.set("address", address)
	setAddresses(t, internal)
	setLogin(o, t, "privateKeyPath", "privateKey")
	t.set("labels", o.texts("labels"))
	o.ignore("name", "arch", "timeout")
	o.done()
	return t.root
}

// setAddresses sets the node's own addresses: one, or IPv4 and IPv6 separated by a comma.
func setAddresses(t tree, internal *yaml.Node) {
	if internal == nil {
		return
	}
	for _, one := range strings.Split(internal.Value, ",") {
		field := "internalIPv4"
		if a, err := netip.ParseAddr(strings.TrimSpace(one)); err == nil && a.Is6() {
			field = "internalIPv6"
		}
		t.set(field, text(internal, strings.TrimSpace(one)))
	}
}

// roles reads the groups under kkbundle's names; ranges have the same syntax.
func (r v3Reader) roles(o *object, t tree) {
	groups := mapping(o.node)
	for _, one := range [][2]string{
		{"control-plane", "kube_control_plane"},
		{"master", "kube_control_plane"},
		{"worker", "kube_worker"},
		{"etcd", "etcd"},
		{"registry", "image_registry"},
	} {
		if hosts := o.entries(one[0]); hosts != nil {
			if find(groups.root, one[1]) != nil {
				r.problem(o.keys[one[0]], "%s and control-plane are the same group; keep one", o.at(one[0]))
				continue
			}
			groups.set(one[1], list(o.value[one[0]], hosts))
		}
	}
	o.ignore("k8s")
	o.done()
	t.put(groups.root, "groups")
}

// cluster reads everything except hosts.
func (r v3Reader) cluster(root *yaml.Node, t tree) {
	top := r.object("", root)
	t.set("metadata.name", top.sub("metadata").scalar("name"))
	spec := r.spec(top)
	spec.ignore("hosts")
	r.kubernetes(spec.sub("kubernetes"), t)
	k3s := t.hasK3s()
	r.network(spec.sub("network"), t)
	r.endpoint(spec.sub("controlPlaneEndpoint"), t)
	r.etcd(spec.sub("etcd"), k3s, t)
	r.registry(spec.sub("registry"), len(spec.sub("roleGroups").entries("registry")) > 0, t)
	r.addons(spec, t)
	system := spec.sub("system")
	t.set("time.servers", system.whole("ntpServers"))
	system.drop(leftToYou, "timezone", "rpms", "debs", "preInstall", "postInstall", "skipConfigureOS")
	system.done()
	spec.drop("list a chart for it under addons", "storage", "kubesphere")
	spec.drop("CoreDNS has kubeadm's defaults", "dns")
	spec.done()
	// https://github.com/kubesphere/kubekey, branch release-3.x, cmd/kk/apis/kubekey/v1alpha2/default.go
	defaults := [][2]string{{"kubernetes.proxyMode", "ipvs"}, {"cni.type", "calico"}, {"dns.nodeLocal", "true"}}
	if !k3s { // it brings runtime and etcd itself, in KubeKey's hands, too
		defaults = append(defaults, [2]string{"cri.type", "docker"}, [2]string{"etcd.type", "external"})
	}
	if strings.Contains(t.text("kubernetes", "podCIDR"), ":") {
		defaults = append(defaults, [2]string{"cni.ipv6MaskSize", "120"})
	}
	r.defaults(t, spec.node, defaults)
	r.fitPods(t)
}

func (t tree) hasK3s() bool {
	return t.text("kubernetes", "distribution") == string(manifest.DistributionK3s)
}

// K3sRelease returns the first release of K3s for a version of Kubernetes that names none: KubeKey leaves it out.
func K3sRelease(version string) string {
	if version == "" || strings.Contains(version, "+") {
		return version
	}
	return version + "+k3s1"
}

func (r v3Reader) kubernetes(o *object, t tree) {
	kind := o.scalar("type")
	if version := o.version("version"); version != nil {
		number, suffix, has := strings.Cut(version.Value, "-")
		if has {
			kind = text(version, suffix)
		}
		if kind != nil && kind.Value == string(manifest.DistributionK3s) && K3sRelease(number) != number {
			r.note(version, "k3s %s: its first release %s is used", shown(number), shown(K3sRelease(number)))
			number = K3sRelease(number)
		}
		t.set("kubernetes.version", text(version, number))
	}
	t.set("kubernetes.distribution", kind)
	r.settings(t, "kubelet", o.whole("kubeletConfiguration"), kubeletPlaces())
	r.settings(t, "kubeProxy", o.whole("kubeProxyConfiguration"), proxyPlaces())
	t.set("kubernetes.maxPods", o.number("maxPods"))
	t.set("kubernetes.kubelet.podPidsLimit", o.number("podPidsLimit"))
	r.featureGates(o, t)
	t.set("kubernetes.proxyMode", o.scalar("proxyMode"))
	if n := o.scalar("masqueradeAll"); n != nil && n.Value == "true" {
		t.set("kubernetes.kubeProxy.iptables.masqueradeAll", n)
	}
	t.set("kubernetes.kubeadm.apiServer.certSANs", o.whole("apiserverCertExtraSans"))
	t.set("cni.ipv4MaskSize", o.number("nodeCidrMaskSize"))
	t.set("cni.ipv6MaskSize", o.number("nodeCidrMaskSizeIPv6"))
	if manager := o.scalar("containerManager"); manager != nil && t.hasK3s() {
		r.note(manager, "%s is not carried over: k3s brings its own containerd", o.at("containerManager"))
	} else {
		t.set("cri.type", manager)
	}
	t.set("dns.nodeLocal", o.scalar("nodelocaldns"))
	t.set("dns.domain", o.scalar("dnsDomain"))
	o.dropUnless("cluster.local", "kkbundle names the cluster by metadata.name", "clusterName")
	if o.is("disableKubeProxy", false) {
		r.note(o.keys["disableKubeProxy"], "%s is not carried over: kkbundle always installs kube-proxy",
			o.at("disableKubeProxy"))
	}
	o.ignore("imageRepo")
	o.drop("the runtime has its own default", "containerRuntimeEndpoint")
	o.drop("write cri.runtimeClasses", "nvidiaRuntime")
	o.drop("write it under kubernetes.kubeadm, as ClusterConfiguration has it", "apiserverArgs",
		"controllerManagerArgs", "schedulerArgs")
	o.drop("write it under kubernetes.kubelet, as KubeletConfiguration has it", "kubeletArgs")
	o.drop("write it under kubernetes.kubeProxy, as KubeProxyConfiguration has it", "kubeProxyArgs")
	if renew := o.scalar("autoRenewCerts"); renew != nil && !o.is("autoRenewCerts", true) {
		t.set("certificates.renew", text(renew, "manual"))
	}
	if audit := o.sub("audit"); audit.is("enabled", false) {
		r.note(o.keys["audit"], "%s is not carried over: write the API server's audit arguments under kubernetes.kubeadm, as ClusterConfiguration has them", o.at("audit"))
	}
	for _, name := range []string{"kata", "nodeFeatureDiscovery"} {
		feature := o.sub(name)
		if feature.is("enabled", false) {
			r.note(o.keys[name], "%s is not carried over: list a chart for it under addons", o.at(name))
		}
	}
	o.done()
}

// featureGates sets gates where KubeKey does: in the kubelets and in the three programs of the control plane.
func (r v3Reader) featureGates(o *object, t tree) {
	gates := o.whole("featureGates")
	if gates == nil || gates.Kind != yaml.MappingNode {
		t.set("kubernetes.kubelet.featureGates", gates)
		return
	}
	t.set("kubernetes.kubelet.featureGates", gates)
	if t.hasK3s() {
		return // it has no kubeadm; install refuses the kubelet's
	}
	var all []string
	for i := 0; i+1 < len(gates.Content); i += 2 {
		all = append(all, gates.Content[i].Value+"="+resolved(gates.Content[i+1]).Value)
	}
	for _, program := range []string{"apiServer", "controllerManager", "scheduler"} {
		t.set("kubernetes.kubeadm."+program+".extraArgs.feature-gates", text(gates, strings.Join(all, ",")))
	}
}

func (r v3Reader) network(o *object, t tree) {
	plugin := r.plugin(o.scalar("plugin"), o.at("plugin"))
	multus := o.sub("multusCNI")
	if multus.is("enabled", false) {
		at := multus.value["enabled"]
		t.set("cni.type", text(at, "multus"))
		t.set("cni.with", first(plugin, text(at, "calico")))
	} else {
		t.set("cni.type", plugin)
	}
	multus.done()
	// The later names are those of KubeKey's first releases.
	t.set("kubernetes.podCIDR", first(o.scalar("kubePodsCIDR"), o.scalar("podNetworkCidr")))
	t.set("kubernetes.serviceCIDR", first(o.scalar("kubeServiceCIDR"), o.scalar("serviceNetworkCidr")))
	o.drop("write the chart's values into a file and name it in cni.values", "calico", "flannel", "kubeovn", "cilium",
		"hybridnet")
	o.done()
}

func (r v3Reader) endpoint(o *object, t tree) {
	inside, address, domain := o.scalar("internalLoadbalancer"), o.scalar("address"), o.scalar("domain")
	at := "controlPlaneEndpoint."
	switch {
	case inside != nil:
		t.set(at+"type", inside)
		if inside.Value != "haproxy" { // KubeKey's haproxy listens on each node's loopback address
			t.set(at+"address", withPort(address, o.scalar("port")))
		} else if address != nil {
			r.problem(address, "%s: haproxy on the nodes and the address of a load balancer; keep one", o.at("address"))
		}
	case o.is("externalDNS", false) && domain != nil:
		t.set(at+"type", text(domain, "external"))
		t.set(at+"address", withPort(domain, o.scalar("port")))
		domain = nil
	case address != nil && address.Value != "127.0.0.1":
		t.set(at+"type", text(address, "external"))
		t.set(at+"address", withPort(address, o.scalar("port")))
	}
	if domain != nil && domain.Value != "lb.kubesphere.local" {
		r.note(domain, "%s is not carried over: kkbundle uses the address", o.at("domain"))
	}
	vip := o.sub("kubevip")
	if mode := vip.text("mode"); mode != "" && !strings.EqualFold(mode, "ARP") {
		r.note(vip.keys["mode"], "%s is not carried over: kube-vip announces its address with ARP", vip.at("mode"))
	}
	vip.done()
	if port := o.scalar("port"); port != nil && port.Value != "6443" &&
		!strings.HasSuffix(t.text("controlPlaneEndpoint", "address"), ":"+port.Value) {
		r.note(port, "%s is not carried over: the API server listens on 6443", o.at("port"))
	}
	o.ignore("externalDNS")
	o.done()
}

// text returns the scalar below keys, "" if there is none.
func (t tree) text(keys ...string) string {
	n := t.root
	for _, name := range keys {
		if n = find(n, name); n == nil {
			return ""
		}
	}
	return n.Value
}

// withPort returns an endpoint as a cluster file has it: IPv6 in brackets, and a port that is not the default.
func withPort(address, port *yaml.Node) *yaml.Node {
	if address == nil {
		return nil
	}
	endpoint := address.Value
	if a, err := netip.ParseAddr(endpoint); err == nil && a.Is6() {
		endpoint = "[" + endpoint + "]"
	}
	if port != nil && port.Value != "6443" {
		endpoint += ":" + port.Value
	}
	if endpoint == address.Value {
		return address
	}
	return text(address, endpoint)
}

func (r v3Reader) etcd(o *object, k3s bool, t tree) {
	external, kind := o.sub("external"), o.scalar("type")
	if k3s && (kind == nil || kind.Value != "external") {
		o.drop("k3s keeps its own etcd, and saves it by itself", o.names...)
		return
	}
	if kind != nil {
		switch kind.Value {
		case "kubekey":
			t.set("etcd.type", text(kind, "external"))
		case "kubeadm":
			t.set("etcd.type", text(kind, "internal"))
		case "external":
			t.set("etcd.type", text(kind, "provided"))
			t.set("etcd.endpoints", external.whole("endpoints"))
			t.set("etcd.ca", external.scalar("caFile"))
			t.set("etcd.cert", external.scalar("certFile"))
			t.set("etcd.key", external.scalar("keyFile"))
		default:
			r.problem(kind, "%s: want kubekey, kubeadm or external", o.at("type"))
		}
	}
	external.ignore("endpoints", "caFile", "certFile", "keyFile")
	external.done()
	t.set("etcd.dataDir", o.scalar("dataDir"))
	if minutes, keep := o.number("backupPeriod"), o.number("keepBackupNumber"); minutes != nil || keep != nil {
		at := first(minutes, keep)
		// KubeKey's defaults: once a day, five copies.
		t.set("etcd.backup.every", text(at, first(minutes, text(at, "1440")).Value+"m"))
		t.set("etcd.backup.keep", first(keep, placed(at, "!!int", "5")))
	}
	o.drop("copies are kept where kkbundle keeps them", "backupDir", "backupScript", "backupScriptDir")
	if quota := o.scalar("quotaBackendBytes"); quota != nil && quota.Value != "0" && (kind == nil ||
		kind.Value != "external") {
		t.set("etcd.quota", quota)
	}
	o.drop("etcd has its own defaults", "port", "peerPort", "extraArgs", "heartbeatInterval", "electionTimeout",
		"snapshotCount", "autoCompactionRetention",
		"metrics", "maxRequestBytes", "maxSnapshots", "maxWals", "logLevel")
	o.done()
}

func (r v3Reader) registry(o *object, installed bool, t tree) {
	address := o.scalar("privateRegistry")
	auths := o.sub("auths")
	kind := o.scalar("type")
	switch {
	case kind == nil:
	case kind.Value == "harbor-ha":
		t.set("imageRegistry.type", text(kind, string(manifest.RegistryHarbor)))
		r.note(kind, "%s: two hosts of the group image_registry share an address; write it in imageRegistry.vip",
			o.at("type"))
	case kind.Value == "docker-registry":
		t.set("imageRegistry.type", text(kind, string(manifest.RegistryPlain)))
	default:
		t.set("imageRegistry.type", kind)
	}
	switch {
	case kind != nil, installed:
		if address != nil {
			r.note(address, "%s is not carried over: the registry that kkbundle installs has a name of its own",
				o.at("privateRegistry"))
		}
	case address != nil:
		login := auths.sub(loginOf(auths, address.Value))
		setExistingRegistry(t, address, login.scalar("username"), login.secretOf("password"), nil)
		login.drop("a registry without a certificate that is known is refused; name its authority in imageRegistry.ca",
			"plainHTTP", "skipTLSVerify", "insecureSkipVerify", "certsPath")
		login.done()
	default:
		r.note(o.node, "no image registry is named: KubeKey would pull from the internet; kkbundle installs one on the image_registry host")
	}
	auths.done()
	o.drop("images keep their names, whichever registry they come from", "namespaceOverride", "namespaceRewrite",
		"registryMirrors")
	o.drop("a registry without a certificate that is known is refused; name its authority in imageRegistry.ca",
		"insecureRegistries")
	o.drop("the runtime has its own default", "dataRoot", "bridgeIP")
	o.done()
}

// loginOf returns the key of a registry's login, which may be written with or without the scheme and the path.
func loginOf(auths *object, address string) string {
	host, _, _ := strings.Cut(trimScheme(address), "/")
	for _, as := range []string{address, trimScheme(address), host} {
		for _, key := range slices.Sorted(maps.Keys(auths.keys)) {
			if key == as || trimScheme(key) == as {
				return key
			}
		}
	}
	return address
}

// addons reads charts, which are in the bundle under their own names, and YAML, which comes with the cluster file.
func (r v3Reader) addons(spec *object, t tree) {
	var addons []*yaml.Node
	for i, n := range spec.entries("addons") {
		o := r.object(fmt.Sprintf("spec.addons[%d]", i), n)
		sources := o.sub("sources")
		if a := r.chartAddon(o, sources.sub("chart")); a != nil {
			addons = append(addons, a)
		}
		if a := r.yamlAddon(o, sources.sub("yaml"), find(sources.node, "chart") != nil); a != nil {
			addons = append(addons, a)
		}
		sources.done()
		o.drop(leftToYou, "preInstall", "postInstall")
		o.ignore("name", "namespace", "retries", "delay", "timeout")
		o.done()
	}
	if addons != nil {
		t.set("addons", list(spec.value["addons"], addons))
	}
}

func (r v3Reader) chartAddon(o, chart *object) *yaml.Node {
	var addon *yaml.Node
	if name := first(chart.scalar("name"), chart.scalar("path")); name != nil {
		a := mapping(o.node)
		a.set("chart", text(name, name.Value[strings.LastIndexByte(name.Value, '/')+1:]))
		a.set("namespace", o.scalar("namespace"))
		a.set("release", o.scalar("name"))
		switch f := chart.scalar("valuesFile"); {
		case f == nil:
		case isURL(f.Value):
			r.note(f, "%s is not carried over: download it, and name the file under values", chart.at("valuesFile"))
		default:
			a.set("values", list(f, []*yaml.Node{f}))
		}
		addon = a.root
		r.note(name, "the bundle's manifest must list this chart, with its repository and version")
	}
	chart.ignore("repo", "path", "version", "valuesFile")
	chart.drop("write the values into a file and name it in valuesFile", "values")
	chart.ignore("wait")
	chart.done()
	return addon
}

// yamlAddon reads files of Kubernetes YAML. Beside a chart they are a release of their own.
func (r v3Reader) yamlAddon(o, files *object, beside bool) *yaml.Node {
	var local []*yaml.Node
	for _, n := range files.entries("path") {
		if isURL(n.Value) {
			r.note(n, "%s: %s is not carried over: download it, and name the file under addons[].manifests",
				files.at("path"), shown(n.Value))
			continue
		}
		local = append(local, n)
	}
	files.drop("the files are applied as they are", "values")
	files.done()
	if local == nil {
		return nil
	}
	a := mapping(o.node)
	a.set("manifests", list(files.value["path"], local))
	a.set("namespace", o.scalar("namespace"))
	name := o.scalar("name")
	if name != nil && beside {
		name = text(name, name.Value+"-yaml")
	}
	a.set("release", name)
	return a.root
}

func isURL(s string) bool { return strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "http://") }
