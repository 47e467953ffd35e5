package programs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Section of a cluster file, below kubernetes, is merged into the configuration of another program.
type Section string

// The sections.
const (
	Kubeadm   Section = "kubeadm"
	Kubelet   Section = "kubelet"
	KubeProxy Section = "kubeProxy"
)

// A reserved setting is a key of another program's configuration, or an argument of one, that kkbundle itself sets or
// uses. In the section of that program it would count there alone: checks, copies, upgrades and verifications would
// use another value.
type reserved struct {
	// names are keys below a path of the section, or arguments there.
	section Section
	below   string
	names   []string
	// instead is what to write in its place, or the reason to leave it out.
	instead string
	// harmless reports whether a value agrees with what kkbundle does. Without it none does.
	harmless func(value any) bool
}

// reservedSettings returns the table of reserved settings: a value that kkbundle uses has one place in the cluster
// file.
func reservedSettings() []reserved { //nolint:funlen // a table
	const (
		api, manager, scheduler, etcd = "apiServer.extraArgs", "controllerManager.extraArgs", "scheduler.extraArgs",
			"etcd.local.extraArgs"

		own       = "it has a place of its own in the cluster file: "
		pods      = own + "write kubernetes.podCIDR"
		services  = own + "write kubernetes.serviceCIDR"
		domain    = own + "write dns.domain"
		dataDir   = own + "write etcd.dataDir"
		name      = own + "write metadata.name"
		runtime   = own + "write cri.type"
		provided  = own + "write etcd.type: provided, with etcd.endpoints, ca, cert and key"
		images    = "leave it out, and name images of another registry in a file under catalog"
		form      = "leave it out: it follows from kubernetes.version"
		addresses = "leave it out: addresses are those of the inventory"
		pki       = "leave it out: certificates are in /etc/kubernetes/pki"
		login     = "leave it out: kubeadm writes the file, and certs renew renews it"
		port      = "leave it out: checks and probes expect the default port"
	)
	row := func(section Section, below, instead string, names ...string) reserved {
		return reserved{section: section, below: below, names: names, instead: instead}
	}
	unless := func(harmless func(any) bool, r reserved) reserved {
		r.harmless = harmless
		return r
	}
	return []reserved{
		row(Kubeadm, "", form, "apiVersion", "kind"),
		row(Kubeadm, "", own+"write kubernetes.version", "kubernetesVersion"),
		row(Kubeadm, "", name, "clusterName"),
		row(Kubeadm, "", own+"write controlPlaneEndpoint.address", "controlPlaneEndpoint"),
		row(Kubeadm, "", pki, "certificatesDir"),
		row(Kubeadm, "", images, "imageRepository"),
		row(Kubeadm, "networking", pods, "podSubnet"),
		row(Kubeadm, "networking", services, "serviceSubnet"),
		row(Kubeadm, "networking", domain, "dnsDomain"),
		row(Kubeadm, "dns", images, "imageRepository"),
		row(Kubeadm, "dns", own+"write components.coredns.version", "imageTag"),
		row(Kubeadm, "etcd", provided, "external"),
		row(Kubeadm, "etcd.local", dataDir, "dataDir"),
		row(Kubeadm, "etcd.local", images, "imageRepository"),
		row(Kubeadm, "etcd.local", own+"write components.etcd.version", "imageTag"),

		row(Kubeadm, etcd, dataDir, "data-dir"),
		row(Kubeadm, etcd, "leave it out: copies and restores expect the log below etcd.dataDir", "wal-dir"),
		row(Kubeadm, etcd, own+"write etcd.quota", "quota-backend-bytes"),
		row(Kubeadm, etcd, addresses, "name", "initial-cluster", "initial-cluster-state", "initial-advertise-peer-urls",
			"advertise-client-urls", "listen-client-urls", "listen-peer-urls"),
		row(Kubeadm, etcd, pki, "cert-file", "key-file", "trusted-ca-file", "peer-cert-file", "peer-key-file",
			"peer-trusted-ca-file"),

		row(Kubeadm, api, addresses, "advertise-address"),
		unless(isTrue, row(Kubeadm, api,
			"the API server's probes, kubeadm join and balancers ask without a login and would get 401; leave it out, and write kubernetes.security: hardened, which limits what is answered without a login",
			"anonymous-auth")),
		unless(isTrue, row(Kubeadm, api, "nodes join with bootstrap tokens; leave it out",
			"enable-bootstrap-token-auth")),
		unless(isTrue, row(Kubeadm, api, "kube-proxy and pod networks run privileged; leave it out",
			"allow-privileged")),
		unless(admitsNodes, row(Kubeadm, api,
			"kubelets and kubeadm need the modes Node and RBAC; add them, or leave it out", "authorization-mode")),
		unless(isUnspecified, row(Kubeadm, api, "leave it out: nodes and balancers use every address of the host",
			"bind-address")),
		unless(is("6443"), row(Kubeadm, api, port, "secure-port")),
		row(Kubeadm, api, services, "service-cluster-ip-range"),
		row(Kubeadm, api, provided, "etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile"),
		row(Kubeadm, api, "leave it out, and write further names into kubernetes.kubeadm.apiServer.certSANs",
			"tls-cert-file", "tls-private-key-file"),
		row(Kubeadm, api, pki, "client-ca-file", "kubelet-client-certificate", "kubelet-client-key",
			"proxy-client-cert-file",
			"proxy-client-key-file", "requestheader-client-ca-file"),

		row(Kubeadm, manager, pods, "cluster-cidr"),
		row(Kubeadm, manager, services, "service-cluster-ip-range"),
		row(Kubeadm, manager, name, "cluster-name"),
		row(Kubeadm, manager, own+"write cni.ipv4MaskSize", "node-cidr-mask-size", "node-cidr-mask-size-ipv4"),
		row(Kubeadm, manager, own+"write cni.ipv6MaskSize", "node-cidr-mask-size-ipv6"),
		unless(isTrue, row(Kubeadm, manager, "leave it out: nodes take their networks from kubernetes.podCIDR",
			"allocate-node-cidrs")),
		unless(lists("bootstrapsigner"), row(Kubeadm, manager,
			"nodes join with the signature of the controller bootstrapsigner, which * does not start; write *,bootstrapsigner,tokencleaner, or leave it out", "controllers")),
		row(Kubeadm, manager, port, "secure-port"),
		row(Kubeadm, manager, pki, "client-ca-file", "cluster-signing-cert-file", "cluster-signing-key-file",
			"requestheader-client-ca-file", "root-ca-file"),
		row(Kubeadm, manager, login, "kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"),

		row(Kubeadm, scheduler, port, "secure-port"),
		row(Kubeadm, scheduler, login, "kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"),

		row(Kubelet, "", "leave it out", "apiVersion", "kind"),
		row(Kubelet, "", own+"write kubernetes.maxPods", "maxPods"),
		row(Kubelet, "", pods, "podCIDR"),
		row(Kubelet, "", domain, "clusterDomain"),
		row(Kubelet, "", "leave it out: pods ask the cluster's DNS, or the node's cache with dns.nodeLocal",
			"clusterDNS"),
		unless(is("systemd"), row(Kubelet, "", "leave it out: kubelet and container runtime both use systemd",
			"cgroupDriver")),
		row(Kubelet, "", runtime, "containerRuntimeEndpoint", "imageServiceEndpoint"),
		unless(is("/etc/kubernetes/manifests"), row(Kubelet, "",
			"leave it out: the manifests are in /etc/kubernetes/manifests", "staticPodPath")),
		unless(is("10250"), row(Kubelet, "", port, "port")),
		unless(is("10248"), row(Kubelet, "", port, "healthzPort")),
		unless(isUnspecified, row(Kubelet, "", "leave it out: the API server uses the node's address", "address")),
		unless(isTrue, row(Kubelet, "",
			"the installation waits for a node that registers itself and answers; leave it out", "registerNode",
			"enableServer")),
		row(Kubelet, "authentication.x509", pki, "clientCAFile"),

		row(KubeProxy, "", "leave it out", "apiVersion", "kind"),
		row(KubeProxy, "", own+"write kubernetes.proxyMode", "mode"),
		row(KubeProxy, "", pods, "clusterCIDR"),
		row(KubeProxy, "clientConnection", "leave it out: kubeadm writes the file", "kubeconfig"),
	}
}

// isUnspecified reports whether a value is the address that stands for all addresses of a host.
func isUnspecified(v any) bool {
	a, err := netip.ParseAddr(fmt.Sprint(v))
	return err == nil && a.IsUnspecified()
}

// is returns a condition that a value is the one that kkbundle uses.
func is(want string) func(any) bool { return func(v any) bool { return fmt.Sprint(v) == want } }

// isTrue reports whether a value is true, or the null that stands for the program's or kubeadm's own value, which is.
func isTrue(v any) bool {
	is, err := strconv.ParseBool(fmt.Sprint(v))
	return v == nil || err == nil && is
}

// lists returns a condition that a comma-separated list has these words.
func lists(words ...string) func(any) bool {
	return func(v any) bool {
		have := strings.Split(fmt.Sprint(v), ",")
		return v == nil || !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(have, w) })
	}
}

// admitsNodes reports whether modes of authorization let nodes join and work.
func admitsNodes(v any) bool { return lists("Node", "RBAC")(v) || lists("AlwaysAllow")(v) }

// CheckReserved refuses the reserved settings of one section, which is the value at path.
func CheckReserved(c *document.Checker, path string, section Section, config map[string]any) {
	for _, r := range reservedSettings() {
		if r.section != section {
			continue
		}
		for _, name := range r.names {
			for _, one := range find(path, config, document.Join(r.below, name)) {
				if r.harmless != nil && r.harmless(one.value) {
					continue
				}
				message := r.instead
				if strings.HasSuffix(one.at, "]") { // the path has no name
					message = name + ": " + message
				}
				c.AddKey(one.at, "%s", message)
			}
		}
	}
}

// Reserved returns what to write in place of a setting of the kubelet's (section kubelet) or kube-proxy's
// configuration (kubeProxy), as converters of other tools' files ask; "" if the setting may stay.
func Reserved(section Section, name string, value any) string {
	for _, r := range reservedSettings() {
		if r.section == section && r.below == "" && slices.Contains(r.names, name) && (r.harmless == nil ||
			!r.harmless(value)) {
			return r.instead
		}
	}
	return ""
}

// isReserved reports whether a table's row is about a setting.
func isReserved(section Section, below, name string) bool {
	return slices.ContainsFunc(reservedSettings(), func(r reserved) bool {
		return r.section == section && r.below == below && slices.Contains(r.names, name)
	})
}

// A found value is one of another program's configuration, with its path in the cluster file.
type found struct {
	at    string
	value any
}

// find returns the values at a path such as networking.podSubnet or, in either form of kubeadm's API,
// apiServer.extraArgs.v. at is the path of the configuration itself.
func find(at string, m map[string]any, path string) []found {
	name, rest, deeper := strings.Cut(path, ".")
	v, ok := m[name]
	at = document.Join(at, name)
	switch below := v.(type) {
	case map[string]any:
		if deeper {
			return find(at, below, rest)
		}
	case []any:
		var list []found
		for i, one := range below {
			if entry, _ := one.(map[string]any); deeper && entry["name"] == rest {
				list = append(list, found{document.Index(at, i), entry["value"]})
			}
		}
		if deeper {
			return list
		}
	}
	if !ok || deeper {
		return nil
	}
	return []found{{at, v}}
}
