package kubeadm

import (
	"cmp"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// ImageRepository is where kubeadm takes its images from by default.
const ImageRepository = "registry.k8s.io"

// imageRefs returns the images that a bundle has for kubeadm, by component: kubeadm's own tags are never used, because
// another patch release of it may have others. Releases before those of the catalog have none here, and no bundle.
func imageRefs(c *manifest.Cluster) map[string]string {
	refs := map[string]string{}
	for _, name := range []string{"coredns", "etcd", "kube-apiserver"} {
		if ref, err := catalog.ImageRef(c, name); err == nil {
			refs[name] = ref
		}
	}
	return refs
}

// withImages adds the repositories and the tags of the catalog's images to ClusterConfiguration. A cluster with
// external etcd has no image of etcd.
func (k Config) withImages(d kube.Document) kube.Document {
	all, _ := splitRef(k.images["kube-apiserver"])
	base := kube.Document{"imageRepository": cmp.Or(all, ImageRepository)}
	byDefault := all
	if all == ImageRepository {
		byDefault += "/coredns" // the official image's place since 1.21
	}
	if dns := imagePart(k.images["coredns"], byDefault); dns != nil {
		base["dns"] = dns
	}
	etcd, _ := d["etcd"].(map[string]any)
	if local := imagePart(k.images["etcd"], all); local != nil && etcd["external"] == nil {
		base["etcd"] = kube.Document{"local": local}
	}
	return k.mergeCluster(base, d)
}

// imagePart returns the settings of a component's image, whose repository kubeadm takes from byDefault. It is nil
// without an image.
func imagePart(ref, byDefault string) kube.Document {
	repository, tag := splitRef(ref)
	if tag == "" {
		return nil
	}
	part := kube.Document{"imageTag": tag}
	if repository != byDefault {
		part["imageRepository"] = repository
	}
	return part
}

// splitRef returns the repository of an image without its last part, as kubeadm has it, and the tag.
func splitRef(ref string) (repository, tag string) {
	colon, slash := strings.LastIndexByte(ref, ':'), strings.LastIndexByte(ref, '/')
	if slash < 0 || colon < slash {
		return "", ""
	}
	return ref[:slash], ref[colon+1:]
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
	return k.listing(kube.Document{
		"apiVersion": k.APIVersion(), "kind": "ClusterConfiguration",
		"kubernetesVersion": c.Kubernetes.Version,
	})
}

// KubeletConfig renders the kubelets' configuration, as far as all hosts have the same, for a kubelet that is asked
// on this machine whether it takes it.
func KubeletConfig(c *manifest.Cluster) ([]byte, error) {
	k, err := NewConfig(c, "")
	if err != nil {
		return nil, err
	}
	// It would complain of this machine's control groups.
	return kube.Documents(merge(kube.Document{"failCgroupV1": false}, k.KubeletConfiguration()))
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
