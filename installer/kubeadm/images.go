package kubeadm

import (
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// ImageRepository is where kubeadm takes its images from by default.
const ImageRepository = "registry.k8s.io"

// imageTags returns the tags of the images that a bundle has for kubeadm: kubeadm's own default is never used, because
// another patch release of it may have another. Releases before those of the catalog have none here, and no bundle.
func imageTags(c *manifest.Cluster) map[string]string {
	tags := map[string]string{}
	for _, name := range []string{"coredns", "etcd"} {
		if ref, err := catalog.ImageRef(c, name); err == nil {
			tags[name] = ref[strings.LastIndexByte(ref, ':')+1:]
		}
	}
	return tags
}

// withImages adds the repository and the tags of images to ClusterConfiguration, where it does not set them. A cluster
// with external etcd has no image of etcd.
func (k Config) withImages(d kube.Document) kube.Document {
	base := kube.Document{"imageRepository": ImageRepository}
	if tag := k.tags["coredns"]; tag != "" {
		base["dns"] = kube.Document{"imageTag": tag}
	}
	etcd, _ := d["etcd"].(map[string]any)
	if _, external := etcd["external"]; !external && k.tags["etcd"] != "" {
		base["etcd"] = kube.Document{"local": kube.Document{"imageTag": k.tags["etcd"]}}
	}
	return k.mergeCluster(base, d)
}

// ImagesConfig renders the configuration with which kubeadm lists the images of a cluster, before there are hosts.
func ImagesConfig(c *manifest.Cluster) ([]byte, error) {
	k, err := NewConfig(c, "")
	if err != nil {
		return nil, err
	}
	cluster := k.ClusterConfiguration()
	delete(cluster, "controlPlaneEndpoint")
	if c.Etcd.Type == manifest.EtcdExternal || c.Etcd.Type == manifest.EtcdProvided {
		cluster["etcd"] = kube.Document{"external": kube.Document{"endpoints": []any{"https://192.0.2.1:2379"}}}
	}
	return k.listing(cluster)
}

// DefaultsConfig renders the configuration with which kubeadm lists the images that it takes by itself.
func DefaultsConfig(c *manifest.Cluster) ([]byte, error) {
	k, err := NewConfig(c, "")
	if err != nil {
		return nil, err
	}
	return k.listing(kube.Document{"apiVersion": k.APIVersion(), "kind": "ClusterConfiguration", "kubernetesVersion": c.Kubernetes.Version})
}

// listing adds the settings of a node, which kubeadm would otherwise look for on this machine.
func (k Config) listing(cluster kube.Document) ([]byte, error) {
	return kube.Documents(
		kube.Document{
			"apiVersion":       k.APIVersion(),
			"kind":             "InitConfiguration",
			"localAPIEndpoint": kube.Document{"advertiseAddress": "192.0.2.1"},
			"nodeRegistration": kube.Document{"name": "node", "criSocket": "unix:///run/containerd/containerd.sock"},
		},
		cluster,
	)
}
