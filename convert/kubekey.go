package convert

import (
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// kubekey reads a Manifest of KubeKey v3 (apis/kubekey/v1alpha2/manifest_types.go).
func (f *reader) kubekey(o *object) {
	f.metadata(o.mapping("metadata"))
	spec := o.mapping("spec")
	for _, arch := range spec.texts("arches") {
		f.platform(arch)
	}
	for _, n := range spec.list("images") {
		f.image(n, manifest.Image{Name: n.Value})
	}
	f.kubekeySystems(spec.objects("operatingSystems"))
	f.kubekeyClusters(spec)
	registry := spec.mapping("registry")
	registry.drop("auths", "log in with docker login, or put it into ~/.docker/config.json; secrets do not belong into a manifest")
	registry.rest()
	spec.rest()
}

// metadata takes the name.
func (f *reader) metadata(o *object) {
	if name := o.text("name"); name != "" && f.Bundle.Metadata.Name == "" {
		f.Bundle.Metadata.Name = name
	}
	if version := o.text("version"); version != "" && f.Bundle.Metadata.Version == "" {
		f.Bundle.Metadata.Version = version
	}
	o.skip("creationTimestamp", "labels", "annotations", "description", "url", "image", "documentation", "source", "vendor", "authors")
}

// kubekeySystems takes the ISO files with packages.
func (f *reader) kubekeySystems(systems []*object) {
	for _, system := range systems {
		arch, id, version := system.text("arch"), system.text("id"), system.text("version")
		system.skip("type", "osImage")
		repository := system.mapping("repository")
		iso := repository.mapping("iso")
		url, local, sum := iso.text("url"), iso.text("localPath"), iso.text("checksum")
		iso.rest()
		repository.rest()
		system.rest()
		if url == "" && local == "" {
			continue
		}
		file := manifest.File{Name: fileName(url + local), URL: url, Path: local}
		if url != "" {
			file.Path = ""
		}
		if sum != "" {
			file.SHA256 = manifest.Sums{manifest.AllPlatforms: sum}
		}
		f.addFile(file)
		f.note(system.node, "the packages of %s %s (%s) stay in their ISO file, which is carried; packages with distribution: %s/%s would resolve and serve them", id, version, arch, id, version)
	}
}

// kubekeyClusters makes a cluster of each version of Kubernetes.
func (f *reader) kubekeyClusters(spec *object) {
	common := manifest.Cluster{APIVersion: manifest.APIVersion, Kind: manifest.KindCluster, Components: map[string]manifest.Component{}}
	components := spec.mapping("components")
	for _, c := range []struct{ theirs, ours string }{
		{"helm", "helm"},
		{"cni", "cni-plugins"},
		{"crictl", "crictl"},
		{"docker-compose", "docker-compose"},
		{"docker-registry", "registry"},
		{"harbor", "harbor"},
		{"etcd", "etcd"},
	} {
		one := components.mapping(c.theirs)
		version := one.text("version")
		if version == "" {
			continue
		}
		one.rest()
		if c.ours == "registry" && !strings.Contains(version, ".") {
			f.note(one.node, "components.docker-registry: version %s is no release of the registry; the catalog's default is taken", version)
			continue
		}
		common.Components[c.ours] = manifest.Component{Version: withV(version)}
		if c.ours == "harbor" {
			common.ImageRegistry.Type = "harbor"
		}
		if c.ours == "etcd" {
			common.Etcd.Type = "external" // KubeKey's default: programs on the etcd hosts
		}
	}
	f.kubekeyRuntime(components, &common)
	components.drop("calicoctl", "nothing that kkbundle installs uses it; list it under files if people at the site do")
	components.rest()
	f.kubekeyNetwork(&common)
	for _, k := range spec.objects("kubernetesDistributions") {
		cluster := common
		cluster.Kubernetes.Distribution, cluster.Kubernetes.Version = k.text("type"), withV(k.text("version"))
		if cluster.Kubernetes.Distribution == "k8e" {
			f.note(k.node, "kubernetesDistributions: k8e was not carried over: kkbundle installs kubernetes and k3s")
			continue
		}
		if cluster.Kubernetes.Distribution == "kubernetes" {
			cluster.Kubernetes.Distribution = ""
		}
		k.rest()
		f.Clusters = append(f.Clusters, cluster)
	}
}

func (f *reader) kubekeyRuntime(components *object, cluster *manifest.Cluster) {
	for i, runtime := range components.objects("containerRuntimes") {
		kind, version := runtime.text("type"), withV(runtime.text("version"))
		runtime.rest()
		if i > 0 {
			f.note(runtime.node, "components.containerRuntimes: %s %s was not carried over: a cluster has one runtime, the first here", kind, version)
			continue
		}
		cluster.CRI = manifest.CRI{Type: kind, Version: version}
		if kind == "containerd" {
			cluster.CRI.Type = ""
		}
	}
}

// kubekeyNetwork guesses the network from the images: the file does not name it, and KubeKey takes calico by default.
func (f *reader) kubekeyNetwork(cluster *manifest.Cluster) {
	for _, image := range f.Bundle.Images {
		for name, part := range map[string]string{"cilium": "/cilium/", "flannel": "/flannel", "kube-ovn": "kube-ovn", "hybridnet": "hybridnet", "calico": "/calico/", "": ""} {
			if part != "" && strings.Contains("/"+image.Name, part) && (cluster.CNI.Type == "" || cluster.CNI.Type > name) {
				cluster.CNI.Type = name
			}
		}
	}
	if cluster.CNI.Type == "" {
		cluster.CNI.Type = "calico"
	}
	f.noteAt(0, "cni.type %s was taken from the images listed, since the file does not name the network: check it", cluster.CNI.Type)
}

// withV writes a version as kkbundle does.
func withV(version string) string {
	if version != "" && version[0] >= '0' && version[0] <= '9' {
		return "v" + version
	}
	return version
}
