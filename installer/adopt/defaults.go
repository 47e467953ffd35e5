package adopt

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/programs"
)

// kubeletZeros returns the settings of the kubelet whose zero stands for its default: fields that are no pointers.
// https://pkg.go.dev/k8s.io/kubelet/config/v1beta1#KubeletConfiguration
func kubeletZeros() []string {
	return append(loggingZeros(),
		"authentication.webhook.cacheTTL", "authorization.webhook.cacheAuthorizedTTL",
		"authorization.webhook.cacheUnauthorizedTTL", "cpuManagerReconcilePeriod", "evictionPressureTransitionPeriod",
		"fileCheckFrequency", "httpCheckFrequency", "imageMaximumGCAge", "imageMinimumGCAge", "nodeStatusReportFrequency",
		"nodeStatusUpdateFrequency", "runtimeRequestTimeout", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods",
		"streamingConnectionIdleTimeout", "syncFrequency", "volumeStatsAggPeriod",
	)
}

// proxyZeros returns those of kube-proxy. https://pkg.go.dev/k8s.io/kube-proxy/config/v1alpha1#KubeProxyConfiguration
func proxyZeros() []string {
	return append(loggingZeros(),
		"clientConnection.burst", "clientConnection.qps", "configSyncPeriod", "conntrack.udpStreamTimeout",
		"conntrack.udpTimeout", "iptables.minSyncPeriod", "iptables.syncPeriod", "ipvs.minSyncPeriod", "ipvs.syncPeriod",
		"ipvs.tcpFinTimeout", "ipvs.tcpTimeout", "ipvs.udpTimeout", "nftables.minSyncPeriod", "nftables.syncPeriod",
	)
}

func loggingZeros() []string {
	return []string{
		"logging.flushFrequency", "logging.verbosity", "logging.options.json.infoBufferSize",
		"logging.options.text.infoBufferSize",
	}
}

// kubeadmRest reports the settings of kubeadm's configuration that are not copied, where they are not its defaults.
func (d *describer) kubeadmRest() {
	dns, _ := d.kubeadm.Raw["dns"].(map[string]any)
	if dns["disabled"] == true {
		d.change(Change{What: "DNS", Upgrade: true, Text: "kubeadm's Deployment coredns in the place of the other tool's, and its Service kube-dns with " +
			dnsAddress(d.kubeadm.Networking.ServiceSubnet) + "; the other tool's Services stay"})
	}
	images := d.kubeadm.ImageRepository
	if images == "registry.k8s.io" && dns["imageRepository"] == "registry.k8s.io/coredns" {
		images += "/coredns" // where kubeadm finds it by itself
	}
	for _, one := range []struct{ path, normal string }{
		{"apiServer.timeoutForControlPlane", "4m0s"},
		{"caCertificateValidityPeriod", "87600h0m0s"},
		{"certificateValidityPeriod", "8760h0m0s"},
		{"dns.imageRepository", images},
		{"dns.imageTag", ""},
		{"encryptionAlgorithm", "RSA-2048"},
		{"etcd.local.imageRepository", d.kubeadm.ImageRepository},
		{"etcd.local.imageTag", ""},
		{"proxy.disabled", "false"},
	} {
		var v any = d.kubeadm.Raw
		for name := range strings.SplitSeq(one.path, ".") {
			m, _ := v.(map[string]any)
			v = m[name]
		}
		if value := fmt.Sprint(v); v != nil && value != one.normal && value != "" && !d.secrets.may(one.path, v) {
			d.gap("settings", fmt.Sprintf("kubeadm %s is %q, and is not copied", one.path, document.Shorten(value)),
				"write it where kkbundle has a place for it, or under kubernetes.kubeadm")
		}
	}
}

// ownValues returns values of a section's reserved settings, by their paths, that nothing is lost of: they are in the
// cluster file under a key of their own, or are the same in kkbundle's clusters.
func (d *describer) ownValues(section programs.Section) map[string][]string {
	pods := []string{d.kubeadm.Networking.PodSubnet, d.planes[0].manager.flags()["cluster-cidr"]}
	certs := []string{kube.PKIDir + "/"}
	if dir := d.kubeadm.CertificatesDir; dir != "" {
		certs = append(certs, dir+"/") // the report has it
	}
	own := map[string][]string{}
	switch section {
	case programs.Kubeadm:
		d.ownArguments(own, pods, certs)
	case programs.Kubelet:
		sockets := []string{
			"unix:///run/containerd/containerd.sock", "unix:///var/run/containerd/containerd.sock", "unix:///run/crio/crio.sock",
			"unix:///var/run/crio/crio.sock", "unix:///run/cri-dockerd.sock", "unix:///var/run/cri-dockerd.sock",
		}
		own["maxPods"] = []string{strconv.Itoa(d.cluster.Kubernetes.MaxPods), "110"}
		own["clusterDomain"] = []string{d.cluster.DNS.Domain}
		own["clusterDNS"] = []string{"[" + dnsAddress(d.kubeadm.Networking.ServiceSubnet) + "]"}
		own["containerRuntimeEndpoint"], own["imageServiceEndpoint"] = sockets, sockets
		own["authentication.x509.clientCAFile"] = below(certs, "ca.crt")
	case programs.KubeProxy:
		own["mode"] = []string{fmt.Sprint(d.proxy["mode"])} // proxySettings has written or reported it
		own["clusterCIDR"] = pods
		own["clientConnection.kubeconfig"] = []string{"/var/lib/kube-proxy/kubeconfig.conf"}
	}
	return own
}

// ownArguments adds those of the arguments of the control plane and of etcd.
func (d *describer) ownArguments(own map[string][]string, pods, certs []string) {
	set := func(program string, values map[string][]string) {
		for name, list := range values {
			own[program+".extraArgs."+name] = list
		}
	}
	services := []string{d.kubeadm.Networking.ServiceSubnet}
	api := map[string][]string{
		"service-cluster-ip-range": services, "etcd-servers": {"https://127.0.0.1:2379"},
		"etcd-cafile": below(certs, "etcd/ca.crt"), "etcd-certfile": below(certs, "apiserver-etcd-client.crt"),
		"etcd-keyfile":  below(certs, "apiserver-etcd-client.key"),
		"tls-cert-file": below(certs, "apiserver.crt"), "tls-private-key-file": below(certs, "apiserver.key"),
		"client-ca-file": below(certs, "ca.crt"), "requestheader-client-ca-file": below(certs, "front-proxy-ca.crt"),
		"kubelet-client-certificate": below(certs, "apiserver-kubelet-client.crt"),
		"kubelet-client-key":         below(certs, "apiserver-kubelet-client.key"),
		"proxy-client-cert-file":     below(certs, "front-proxy-client.crt"),
		"proxy-client-key-file":      below(certs, "front-proxy-client.key"),
	}
	if x := d.kubeadm.Etcd.External; x != nil { // the report says where its files go
		api["etcd-servers"] = []string{strings.Join(x.Endpoints, ",")}
		api["etcd-cafile"], api["etcd-certfile"] = []string{x.CAFile}, []string{x.CertFile}
		api["etcd-keyfile"] = []string{x.KeyFile}
	}
	set("apiServer", api)
	masks4 := []string{strconv.Itoa(d.cluster.CNI.IPv4MaskSize)}
	masks6 := []string{strconv.Itoa(d.cluster.CNI.IPv6MaskSize)}
	if d.cluster.CNI.IPv4MaskSize == 0 {
		masks4 = []string{"24"}
	}
	if d.cluster.CNI.IPv6MaskSize == 0 {
		masks6 = []string{"64"}
	}
	logins := func(program string) []string { return []string{"/etc/kubernetes/" + program + ".conf"} }
	manager, scheduler := logins("controller-manager"), logins("scheduler")
	set("controllerManager", map[string][]string{
		"cluster-cidr": pods, "service-cluster-ip-range": services, "cluster-name": {d.cluster.Metadata.Name},
		"node-cidr-mask-size": masks4, "node-cidr-mask-size-ipv4": masks4, "node-cidr-mask-size-ipv6": masks6,
		"secure-port": {"10257"}, "client-ca-file": below(certs, "ca.crt"), "root-ca-file": below(certs, "ca.crt"),
		"cluster-signing-cert-file": below(certs, "ca.crt"), "cluster-signing-key-file": below(certs, "ca.key"),
		"requestheader-client-ca-file": below(certs, "front-proxy-ca.crt"),
		"kubeconfig":                   manager, "authentication-kubeconfig": manager, "authorization-kubeconfig": manager,
	})
	set("scheduler", map[string][]string{
		"secure-port": {"10259"}, "kubeconfig": scheduler, "authentication-kubeconfig": scheduler,
		"authorization-kubeconfig": scheduler,
	})
	etcd := map[string][]string{
		"data-dir":  {d.cluster.Etcd.DataDir},
		"cert-file": below(certs, "etcd/server.crt"), "key-file": below(certs, "etcd/server.key"),
		"peer-cert-file": below(certs, "etcd/peer.crt"), "peer-key-file": below(certs, "etcd/peer.key"),
		"trusted-ca-file": below(certs, "etcd/ca.crt"), "peer-trusted-ca-file": below(certs, "etcd/ca.crt"),
	}
	if pod := d.planes[0].etcd; pod != nil { // d.etcd has written or reported it
		etcd["quota-backend-bytes"] = []string{pod.flags()["quota-backend-bytes"]}
	}
	set("etcd.local", etcd)
}

// below returns a file in each of the directories.
func below(dirs []string, file string) []string {
	files := slices.Clone(dirs)
	for i := range files {
		files[i] += file
	}
	return files
}

// dnsAddress returns the address of kubeadm's DNS service in the first of its networks, "" without one.
func dnsAddress(services string) string {
	first, _, _ := strings.Cut(services, ",")
	p, err := netip.ParsePrefix(first)
	if err != nil {
		return ""
	}
	return task.NthAddress(p, kube.DNSServiceIndex).String()
}
