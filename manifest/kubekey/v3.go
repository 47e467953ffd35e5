package kubekey

import (
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"
)

// v3Reader reads kubekey.kubesphere.io/v1alpha2 Cluster.
type v3Reader struct{ *reader }

// inventory reads the hosts.
func (r v3Reader) inventory(root *yaml.Node, t tree) {
	spec := r.object("", root).sub("spec")
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
	top.ignore("apiVersion", "kind", "status")
	t.set("metadata.name", top.sub("metadata").scalar("name"))
	spec := top.sub("spec")
	top.done()
	spec.ignore("hosts")
	r.kubernetes(spec.sub("kubernetes"), t)
	r.network(spec.sub("network"), t)
	r.endpoint(spec.sub("controlPlaneEndpoint"), t)
	r.etcd(spec.sub("etcd"), t)
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
	r.defaults(t, spec.node, [][2]string{
		{"kubernetes.proxyMode", "ipvs"},
		{"cni.type", "calico"},
		{"cri.type", "docker"},
		{"etcd.type", "external"},
		{"dns.nodeLocal", "true"},
	})
}

func (r v3Reader) kubernetes(o *object, t tree) {
	kind := o.scalar("type")
	if version := o.version("version"); version != nil {
		number, suffix, has := strings.Cut(version.Value, "-")
		t.set("kubernetes.version", text(version, number))
		if has {
			kind = text(version, suffix)
		}
	}
	t.set("kubernetes.distribution", kind)
	t.set("kubernetes.kubelet", o.whole("kubeletConfiguration"))
	t.set("kubernetes.kubeProxy", o.whole("kubeProxyConfiguration"))
	t.set("kubernetes.maxPods", o.number("maxPods"))
	t.set("kubernetes.kubelet.podPidsLimit", o.number("podPidsLimit"))
	t.set("kubernetes.kubelet.featureGates", o.whole("featureGates"))
	t.set("kubernetes.proxyMode", o.scalar("proxyMode"))
	if n := o.scalar("masqueradeAll"); n != nil && n.Value == "true" {
		t.set("kubernetes.kubeProxy.iptables.masqueradeAll", n)
	}
	t.set("kubernetes.kubeadm.apiServer.certSANs", o.whole("apiserverCertExtraSans"))
	t.set("cni.ipv4MaskSize", o.number("nodeCidrMaskSize"))
	t.set("cri.type", o.scalar("containerManager"))
	t.set("dns.nodeLocal", o.scalar("nodelocaldns"))
	t.set("dns.domain", o.scalar("dnsDomain"))
	o.dropUnless("cluster.local", "kkbundle names the cluster by metadata.name", "clusterName")
	if o.is("disableKubeProxy", false) {
		r.note(o.keys["disableKubeProxy"], "%s is not carried over: kkbundle always installs kube-proxy", o.at("disableKubeProxy"))
	}
	o.ignore("imageRepo")
	o.drop("the runtime has its own default", "containerRuntimeEndpoint")
	o.drop("write it under kubernetes.kubeadm, as ClusterConfiguration has it", "apiserverArgs", "controllerManagerArgs", "schedulerArgs", "audit")
	o.drop("write it under kubernetes.kubelet, as KubeletConfiguration has it", "kubeletArgs")
	o.drop("write it under kubernetes.kubeProxy, as KubeProxyConfiguration has it", "kubeProxyArgs")
	if renew := o.scalar("autoRenewCerts"); renew != nil && !o.is("autoRenewCerts", true) {
		t.set("certificates.renew", text(renew, "manual"))
	}
	for _, name := range []string{"kata", "nodeFeatureDiscovery"} {
		feature := o.sub(name)
		if feature.is("enabled", false) {
			r.note(o.keys[name], "%s is not carried over: list a chart for it under addons", o.at(name))
		}
	}
	o.done()
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
	t.set("kubernetes.podCIDR", o.scalar("kubePodsCIDR"))
	t.set("kubernetes.serviceCIDR", o.scalar("kubeServiceCIDR"))
	o.drop("write the chart's values into a file and name it in cni.values", "calico", "flannel", "kubeovn", "cilium", "hybridnet")
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
	o.ignore("port", "externalDNS")
	o.done()
}

// withPort appends a non-default port.
func withPort(address, port *yaml.Node) *yaml.Node {
	if address == nil || port == nil || port.Value == "6443" {
		return address
	}
	if a, err := netip.ParseAddr(address.Value); err == nil && a.Is6() {
		return text(address, "["+address.Value+"]:"+port.Value)
	}
	return text(address, address.Value+":"+port.Value)
}

func (r v3Reader) etcd(o *object, t tree) {
	external, kind := o.sub("external"), o.scalar("type")
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
	if quota := o.scalar("quotaBackendBytes"); quota != nil && quota.Value != "0" && (kind == nil || kind.Value != "external") {
		t.set("etcd.quota", quota)
	}
	o.drop("etcd has its own defaults", "port", "peerPort", "extraArgs", "heartbeatInterval", "electionTimeout", "snapshotCount", "autoCompactionRetention",
		"metrics", "maxRequestBytes", "maxSnapshots", "maxWals", "logLevel")
	o.done()
}

func (r v3Reader) registry(o *object, installed bool, t tree) {
	address := o.scalar("privateRegistry")
	auths := o.sub("auths")
	kind := o.scalar("type")
	t.set("imageRegistry.type", kind)
	switch {
	case kind != nil, installed:
		if address != nil {
			r.note(address, "%s is not carried over: the registry that kkbundle installs has a name of its own", o.at("privateRegistry"))
		}
	case address != nil:
		login := auths.sub(address.Value)
		setExistingRegistry(t, address, login.scalar("username"), login.secretOf("password"), nil)
		login.drop("a registry without a certificate that is known is refused; name its authority in imageRegistry.ca", "plainHTTP", "skipTLSVerify", "insecureSkipVerify", "certsPath")
		login.done()
	default:
		r.note(o.node, "no image registry is named: KubeKey would pull from the internet; kkbundle installs one on the image_registry host")
	}
	auths.done()
	o.drop("images keep their names, whichever registry they come from", "namespaceOverride", "namespaceRewrite", "registryMirrors")
	o.drop("a registry without a certificate that is known is refused; name its authority in imageRegistry.ca", "insecureRegistries")
	o.drop("the runtime has its own default", "dataRoot", "bridgeIP")
	o.done()
}

// addons reads charts, which are in the bundle under their own names.
func (r v3Reader) addons(spec *object, t tree) {
	var addons []*yaml.Node
	for _, n := range spec.entries("addons") {
		o := r.object("spec.addons", n)
		sources := o.sub("sources")
		chart := sources.sub("chart")
		sources.drop("list it under manifests in the bundle's manifest, and apply it yourself", "yaml")
		sources.done()
		if name := first(chart.scalar("name"), chart.scalar("path")); name != nil {
			a := mapping(n)
			a.set("chart", text(name, name.Value[strings.LastIndexByte(name.Value, '/')+1:]))
			a.set("namespace", o.scalar("namespace"))
			a.set("release", o.scalar("name"))
			if f := chart.scalar("valuesFile"); f != nil {
				a.set("values", list(f, []*yaml.Node{f}))
			}
			addons = append(addons, a.root)
			r.note(name, "the bundle's manifest must list this chart, with its repository and version")
		}
		chart.ignore("repo", "path", "version")
		if v := chart.take("values"); v != nil && len(v.Content) > 0 {
			r.note(v, "%s is not carried over: write the values into a file and name it in valuesFile", chart.at("values"))
		}
		chart.ignore("wait")
		chart.done()
		o.ignore("name", "namespace", "retries", "delay", "timeout")
		o.done()
	}
	if addons != nil {
		t.set("addons", list(spec.value["addons"], addons))
	}
}
