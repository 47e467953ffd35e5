package task

import (
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// A KubeadmPart is the share of one concern (etcd, endpoint, security) in kubeadm's configuration. Later parts override
// earlier ones; the cluster file overrides all.
type KubeadmPart struct {
	// Flags holds the command line arguments per component, without dashes.
	Flags map[string]map[string]string
	// Volumes holds the host paths mounted into each component.
	Volumes map[string][]HostVolume
	// Names are added to the names and addresses in the API server's certificate.
	Names []string
	// Cluster, Kubelet and KubeProxy are merged into ClusterConfiguration, KubeletConfiguration and
	// KubeProxyConfiguration.
	Cluster, Kubelet, KubeProxy kube.Document
}

// A HostVolume is a host path mounted at the same path in a component's container, read-only unless Writable.
type HostVolume struct {
	Name, Path string
	Kind       string // HostPathType, such as File or DirectoryOrCreate
	Writable   bool
}

// IsHardened reports whether the cluster has the hardened security profile.
func IsHardened(c *manifest.Cluster) bool { return c.Kubernetes.Security == manifest.SecurityHardened }
