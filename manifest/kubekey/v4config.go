package kubekey

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

const (
	fromCatalog = "the catalog knows the version; override it under components"
	ownBundle   = "the bundle's manifest lists the downloads and their sources"
	leftToYou   = "kkbundle does not do this; do it beforehand or in a hook"
)

// cluster reads kubekey.kubesphere.io/v1 Config.
func (r v4Reader) cluster(root *yaml.Node, t tree) {
	top := r.object("", root)
	spec := r.spec(top)
	r.kubernetes(spec.sub("kubernetes"), t)
	if t.text("kubernetes", "version") == "" { // where KubeKey's first files of v4 have it
		t.set("kubernetes.version", spec.version("kube_version"))
	}
	r.network(spec.sub("cni"), t)
	r.runtime(spec.sub("cri"), t)
	r.etcd(spec.sub("etcd"), t)
	r.registry(spec.sub("image_registry"), t)
	r.rest(spec, t)
	spec.done()
	// https://github.com/kubesphere/kubekey, builtin/core/roles/defaults/defaults/main
	r.defaults(t, spec.node, [][2]string{
		{"metadata.name", "kubekey"},
		{"kubernetes.proxyMode", "ipvs"},
		{"cni.type", "calico"},
		{"etcd.type", "external"},
		{"storage.local", "true"},
		{"dns.nodeLocal", "true"},
	})
	r.fitPods(t)
}

func (r v4Reader) kubernetes(o *object, t tree) {
	t.set("metadata.name", o.scalar("cluster_name"))
	t.set("kubernetes.version", o.version("kube_version"))
	proxy := o.sub("kube_proxy")
	t.set("kubernetes.proxyMode", proxy.scalar("mode"))
	r.settings(t, "kubeProxy", proxy.whole("config"), proxyPlaces())
	if !proxy.is("enabled", true) {
		r.note(proxy.keys["enabled"], "kubernetes.kube_proxy.enabled: kkbundle always installs kube-proxy")
	}
	proxy.drop("kubeadm installs kube-proxy", "manage")
	proxy.done()

	kubelet := o.sub("kubelet")
	r.settings(t, "kubelet", kubelet.whole("extra_config"), kubeletPlaces())
	t.set("kubernetes.maxPods", first(kubelet.number("max_pods"), kubelet.number("max_pod")))
	t.set("kubernetes.kubelet.podPidsLimit", kubelet.number("pod_pids_limit"))
	t.set("kubernetes.kubelet.containerLogMaxSize", kubelet.scalar("container_log_max_size"))
	t.set("kubernetes.kubelet.containerLogMaxFiles", kubelet.number("container_log_max_files"))
	t.set("kubernetes.kubelet.featureGates", kubelet.whole("feature_gates"))
	kubelet.drop("write it under kubernetes.kubelet, as KubeletConfiguration has it", "extra_args")
	kubelet.done()

	api := o.sub("apiserver")
	t.set("kubernetes.kubeadm.apiServer.certSANs", api.whole("certSANs"))
	if port := api.text("port"); port != "" && port != "6443" {
		r.note(api.keys["port"], "kubernetes.apiserver.port is not carried over: the API server listens on 6443")
	}
	api.drop("write it under kubernetes.kubeadm, as ClusterConfiguration has it", "extra_args")
	api.done()

	r.endpoint(o.sub("control_plane_endpoint"), t)
	o.drop("write it under kubernetes.kubeadm, as ClusterConfiguration has it", "controller_manager", "scheduler")
	o.drop("images keep their own names in the bundle", "image_repository", "sandbox_image")
	o.drop(fromCatalog, "helm_version")
	certs := o.sub("certs")
	if renew := certs.scalar("renew"); renew != nil && !certs.is("renew", true) {
		t.set("certificates.renew", text(renew, string(manifest.RenewManual)))
	}
	certs.drop("write certificates.ca {cert, key}", "ca_cert", "ca_key")
	certs.drop("write certificates.frontProxyCA {cert, key}", "front_proxy_cert", "front_proxy_key")
	certs.done()
	o.drop("write the files' names under kubernetes.patches", "patches")
	o.drop("kkbundle saves the cluster's keys and etcd, see etcd.backup", "backup")
	o.done()
}

func (r v4Reader) endpoint(o *object, t tree) {
	kind := strings.ReplaceAll(o.text("type"), "_", "-")
	vip, haproxy := o.sub("kube_vip"), o.sub("haproxy")
	switch kind {
	case "", "local":
	case "kube-vip":
		t.set("controlPlaneEndpoint.type", text(o.value["type"], kind))
		t.set("controlPlaneEndpoint.address", withPort(vip.scalar("address"), nil))
	case "haproxy":
		t.set("controlPlaneEndpoint.type", o.value["type"])
	default:
		r.problem(o.value["type"], "%s: want local, kube_vip or haproxy", o.at("type"))
	}
	vip.ignore("address", "image")
	vip.dropUnless("ARP", "kube-vip announces its address with ARP", "mode")
	vip.drop("kube-vip has its own defaults", "env")
	vip.done()
	haproxy.ignore("address", "health_port", "image")
	haproxy.done()
	o.dropUnless("lb.kubesphere.local",
		"kkbundle uses the address; write controlPlaneEndpoint {type: external, address} where your DNS has the name",
		"host")
	o.dropUnless("6443", "the API server listens on 6443", "port")
	o.done()
}

func (r v4Reader) network(o *object, t tree) {
	plugin := o.text("type")
	if n := o.scalar("multi_cni"); n != nil && n.Value != "multus" && n.Value != "none" {
		r.note(n, "%s: %s is not carried over: kkbundle installs multus", o.at("multi_cni"), shown(n.Value))
	}
	multus := o.sub("multus")
	meta := o.text("multi_cni") == "multus" || multus.is("enabled", false)
	if n := r.plugin(o.scalar("type"), o.at("type")); meta {
		at := first(n, o.node)
		t.set("cni.type", text(at, "multus"))
		t.set("cni.with", first(n, text(at, "calico")))
	} else {
		t.set("cni.type", n)
	}
	t.set("kubernetes.podCIDR", o.scalar("pod_cidr"))
	t.set("kubernetes.serviceCIDR", o.scalar("service_cidr"))
	t.set("cni.ipv4MaskSize", o.number("ipv4_mask_size"))
	t.set("cni.ipv6MaskSize", o.number("ipv6_mask_size"))
	for _, name := range []string{"calico", "cilium", "flannel", "kubeovn", "hybridnet"} {
		version := o.version(name + "_version")
		if name == plugin || plugin == "" && name == "calico" {
			t.set("cni.version", version)
		}
		o.drop("write the chart's values into a file and name it in cni.values", name)
	}
	multus.ignore("image")
	multus.done()
	o.done()
}

// plugin returns a pod network in kkbundle's spelling.
func (r *reader) plugin(n *yaml.Node, path string) *yaml.Node {
	if n == nil {
		return nil
	}
	ours := Network(n.Value)
	if n.Value == "other" {
		r.note(n, "%s: kkbundle installs no other network: install it yourself; as none", path)
	}
	if string(ours) == n.Value {
		return n
	}
	return text(n, string(ours))
}

// Network returns kkbundle's name of one of KubeKey's pod networks.
func Network(name string) manifest.NetworkType {
	switch name {
	case "kubeovn":
		return manifest.NetworkKubeOVN
	case "other":
		return manifest.NetworkNone
	}
	return manifest.NetworkType(name)
}

func (r v4Reader) runtime(o *object, t tree) {
	manager := o.scalar("container_manager")
	t.set("cri.type", manager)
	runtimes := map[string]*yaml.Node{
		"containerd": o.version("containerd_version"),
		"docker":     o.version("docker_version"),
	}
	if manager == nil {
		t.set("cri.version", runtimes["containerd"])
	} else {
		t.set("cri.version", runtimes[manager.Value])
	}
	if v := o.version("runc_version"); v != nil {
		t.set("components.runc.version", v)
	}
	o.dropUnless("systemd", "kkbundle uses systemd", "cgroup_driver")
	o.drop(fromCatalog, "crictl_version", "cridockerd_version")
	o.drop("the runtime has its own defaults", "cri_socket", "docker", "containerd")
	o.drop("hosts pull from imageRegistry alone", "registry")
	o.done()
}

func (r v4Reader) etcd(o *object, t tree) {
	t.set("etcd.type", o.scalar("deployment_type"))
	env := o.sub("env")
	t.set("etcd.dataDir", env.scalar("data_dir"))
	if quota := env.scalar("quota_backend_bytes"); quota != nil && quota.Value != "0" {
		t.set("etcd.quota", quota)
	}
	env.drop("etcd has its own defaults", "election_timeout", "heartbeat_interval", "compaction_retention",
		"snapshot_count", "token")
	env.done()
	backup := o.sub("backup")
	if keep, at := backup.number("keep_backup_number"), backup.scalar("on_calendar"); keep != nil || at != nil {
		const calendar = "*-*-* *:00/30:00" // KubeKey's default; it keeps five copies
		if at == nil || at.Value == calendar {
			t.set("etcd.backup.every", text(first(at, keep), "30m"))
		} else {
			r.note(at, "%s is not carried over: write the time between copies in etcd.backup.every",
				backup.at("on_calendar"))
		}
		t.set("etcd.backup.keep", first(keep, placed(first(at, keep), "!!int", "5")))
	}
	backup.drop("copies are kept where kkbundle keeps them", "backup_dir", "etcd_backup_script")
	backup.done()
	o.drop(fromCatalog, "etcd_version", "image")
	o.dropUnless("2379", "etcd has its own defaults", "port")
	o.dropUnless("2380", "etcd has its own defaults", "peer_port")
	o.drop("etcd has its own defaults", "performance", "traffic_priority")
	o.drop("kkbundle makes the certificates", "ca_file", "cert_file", "key_file")
	o.done()
}

func (r v4Reader) registry(o *object, t tree) {
	auth := o.sub("auth")
	address, kind := auth.scalar("registry"), o.scalar("type")
	if kind != nil {
		auth.drop("the registry that kkbundle installs has a name and logins of its own", "registry", "username",
			"password", "ca_file")
	}
	switch {
	case kind != nil && kind.Value == "docker-registry":
		t.set("imageRegistry.type", text(kind, "registry"))
	case kind != nil:
		t.set("imageRegistry.type", kind)
	case address != nil:
		setExistingRegistry(t, address, auth.scalar("username"), auth.secretOf("password"), auth.scalar("ca_file"))
	default:
		r.note(o.node, "no image registry is named: KubeKey would pull from the internet; kkbundle installs one on the image_registry host")
	}
	t.set("imageRegistry.vip", o.scalar("ha_vip"))
	auth.ignore("registry", "username", "password", "ca_file")
	auth.drop("a registry without a certificate that is known is refused; name its authority in imageRegistry.ca",
		"plain_http", "skip_tls_verify", "insecure")
	auth.drop("client certificates are not used", "cert_file", "key_file")
	auth.done()
	o.drop(fromCatalog, "harbor_version", "docker_registry_version", "dockercompose_version", "keepalived_version")
	o.drop("the bundle has the images", "images_dir", "dockerio_registry", "quayio_registry", "ghcrio_registry")
	o.done()
}

// setExistingRegistry reads an existing registry.
func setExistingRegistry(t tree, address, user, password, ca *yaml.Node) {
	t.set("imageRegistry.type", text(address, "existing"))
	t.set("imageRegistry.address", text(address, trimScheme(address.Value)))
	t.set("imageRegistry.ca", ca)
	if user != nil {
		t.set("imageRegistry.auth.username", user)
		t.set("imageRegistry.auth.password", password)
	}
}

func trimScheme(address string) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://"), "/")
}

func (r v4Reader) rest(spec *object, t tree) {
	storage := spec.sub("storage_class")
	for _, name := range []string{"local", "nfs"} {
		class := storage.sub(name)
		if n := class.scalar("enabled"); n != nil {
			t.set("storage."+name, n)
		}
		if name == "nfs" {
			t.set("storage.nfsPath", class.scalar("path"))
			class.ignore("path")
		} else {
			class.drop("the storage class has its own defaults", "path")
		}
		class.drop("the storage class has its own defaults", "default")
		class.drop("the server is the host of the group nfs", "server")
		class.done()
	}
	storage.drop(fromCatalog, "localpv_provisioner_version", "nfs_provisioner_version")
	storage.done()

	dns := spec.sub("dns")
	nodeLocal := dns.sub("nodelocaldns")
	t.set("dns.nodeLocal", nodeLocal.scalar("enabled"))
	nodeLocal.done()
	dns.drop(fromCatalog, "dns_image", "dns_cache_image")
	dns.drop("CoreDNS has kubeadm's defaults", "coredns")
	t.set("dns.domain", dns.scalar("domain"))
	dns.done()

	require := spec.sub("cluster_require")
	t.set("precheck.minKernel", require.scalar("min_kernel_version"))
	t.set("precheck.allowUnsupportedDistributions", require.scalar("allow_unsupported_distribution_setup"))
	for _, one := range [][2]string{
		{"minimal_master_memory_mb", "controlPlane"},
		{"minimal_node_memory_mb", "worker"},
	} {
		if n := require.number(one[0]); n != nil {
			t.set("precheck.minMemory."+one[1], text(n, n.Value+"Mi"))
		}
	}
	require.done()

	if n := spec.scalar("security_enhancement"); n != nil && n.Value == "true" {
		t.set("kubernetes.security", text(n, "hardened"))
	}
	spec.drop(ownBundle, "download", "zone", "image_manifests", "artifact_dir", "binary_dir", "tmp_dir", "work_dir")
	native := spec.sub("native")
	ntp := native.sub("ntp")
	if ntp.is("enabled", true) {
		t.set("time.servers", ntp.whole("servers"))
	}
	ntp.ignore("servers")
	ntp.done()
	native.dropUnless("false", "kkbundle leaves host names alone; nodes have the names of the inventory",
		"set_hostname")
	native.drop(leftToYou, "timezone", "nfs", "localDNS")
	native.done()
	spec.drop("write the API server's audit arguments under kubernetes.kubeadm, as ClusterConfiguration has them",
		"audit")
	spec.drop(leftToYou, "scripts_dir", "pre_install_groups", "post_install_groups")
	spec.drop("kkbundle makes the certificates", "certs")
	spec.drop("it is about removing: see kkbundle reset", "delete")
}

// version returns a version with its v.
func (o *object) version(name string) *yaml.Node {
	n := o.scalar(name)
	if n == nil || strings.HasPrefix(n.Value, "v") {
		return n
	}
	return text(n, "v"+n.Value)
}

// first returns the first non-nil node.
func first(nodes ...*yaml.Node) *yaml.Node {
	for _, n := range nodes {
		if n != nil {
			return n
		}
	}
	return nil
}
