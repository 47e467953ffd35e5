package adopt

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/node"
)

// Evidence has the facts and files of a cluster's hosts, and its objects. Texts are as the hosts and the API server
// gave them, and may have secrets: Describe copies single values out of them.
type Evidence struct {
	Hosts   []Host  `json:"hosts"`
	Cluster Objects `json:"cluster"`
}

// A Host is a machine with what adopt reads there.
type Host struct {
	// Name is the one in the inventory.
	Name  string     `json:"name"`
	Facts node.Facts `json:"facts"`
	// Files are the texts of its configuration files by path.
	Files map[string]string `json:"files"`
}

// Objects are those of the cluster's API.
type Objects struct {
	// Kubeadm, Kubelet and Proxy are the configurations in the ConfigMaps kubeadm-config, kubelet-config and
	// kube-proxy; "" without one.
	Kubeadm string `json:"kubeadm"`
	Kubelet string `json:"kubelet"`
	Proxy   string `json:"proxy"`

	Nodes     []corev1.Node `json:"nodes"`
	Workloads []Workload    `json:"workloads"`
	Releases  []Release     `json:"releases"`
	// Jobs are the names of the jobs in kube-system.
	Jobs []string `json:"jobs"`
}

// A Workload is a DaemonSet or a Deployment.
type Workload struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Chart is the label helm.sh/chart, "" without one.
	Chart string `json:"chart,omitempty"`
	// Images are those of its containers.
	Images []string `json:"images"`
}

// A Release is one of Helm, from the labels of its Secret. The Secret's content is not read.
type Release struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Files that adopt reads. Directories are read one level deep.
const (
	kubeletFlags  = "/var/lib/kubelet/kubeadm-flags.env"
	kubeletConfig = "/var/lib/kubelet/config.yaml"
	sprayKubelet  = "/etc/kubernetes/kubelet.env"
	sprayConfig   = "/etc/kubernetes/kubelet-config.yaml"
	// Arguments of the operator, in packages of Debian's and of Red Hat's kind.
	kubeletDefault   = "/etc/default/kubelet"
	kubeletSysconfig = "/etc/sysconfig/kubelet"
	etcdEnv          = "/etc/etcd.env"
	etcdSSL          = "/etc/ssl/etcd/ssl"
	containerdTOML   = "/etc/containerd/config.toml"
	certsDir         = "/etc/containerd/certs.d"
	dockerJSON       = "/etc/docker/daemon.json"
	keyScripts       = "/usr/local/bin/kube-scripts"
	keyDir           = "/etc/kubekey"
	pluginConfigs    = "/etc/cni/net.d"
	hostsFile        = "/etc/hosts"
)

// readFiles are the files whose texts are read where they exist.
func readFiles() []string {
	return append(kubeletEnvs(), kubeletConfig, sprayConfig, etcdEnv, containerdTOML, dockerJSON, hostsFile)
}

// kubeletEnvs are the files that have arguments of the kubelet.
func kubeletEnvs() []string {
	return []string{kubeletFlags, sprayKubelet, kubeletDefault, kubeletSysconfig}
}

// has reports whether something exists at one of the probe's paths.
func (h *Host) has(path string) bool { return h.Facts.Path(path).Type != "" }

// manifests returns the paths of the static pods' manifests.
func (h *Host) manifests() []string {
	var list []string
	for _, name := range h.Facts.Path(kube.ManifestsDir).Entries {
		if strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml") {
			list = append(list, path.Join(kube.ManifestsDir, name))
		}
	}
	return list
}

// runs reports whether a unit of the host is active.
func (h *Host) runs(unit string) bool { return h.Facts.Unit(unit).Active == "active" }

// host returns the host of a name, nil if there is none.
func (e *Evidence) host(name string) *Host {
	i := slices.IndexFunc(e.Hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return &e.Hosts[i]
}

// workload returns the workload of a kind with one of the names, nil if there is none.
func (o *Objects) workload(kind string, names ...string) *Workload {
	i := slices.IndexFunc(o.Workloads, func(w Workload) bool {
		return w.Kind == kind && slices.Contains(names, w.Name)
	})
	if i < 0 {
		return nil
	}
	return &o.Workloads[i]
}
