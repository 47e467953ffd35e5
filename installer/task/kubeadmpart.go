package task

import (
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// A KubeadmPart is what one concern of a cluster (its etcd, its endpoint, its security) adds to what kubeadm is told. Later
// parts win over earlier ones, and the cluster file wins over all.
type KubeadmPart struct {
	// flags are the components' command line arguments, without dashes.
	Flags map[string]map[string]string
	// volumes are paths of the host that the components see, read-only unless said otherwise.
	Volumes map[string][]HostVolume
	// names are more names and addresses in the API server's certificate.
	Names []string
	// cluster, kubelet and KubeProxy are merged into ClusterConfiguration, KubeletConfiguration and KubeProxyConfiguration.
	Cluster, Kubelet, KubeProxy kube.Document
}

// A HostVolume is a path of the host in a component's container, at the same place.
type HostVolume struct {
	Name, Path string
	// kind is a HostPathType, such as File or DirectoryOrCreate.
	Kind     string
	Writable bool
}

func IsHardened(c *manifest.Cluster) bool {
	return c.Kubernetes.Security == manifest.SecurityHardened
}
