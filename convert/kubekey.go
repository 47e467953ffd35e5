package convert

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/kubekey"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// kubekey reads a Manifest of KubeKey v3 (apis/kubekey/v1alpha2/manifest_types.go).
func (f *reader) kubekey(o *object) {
	metadata := o.mapping("metadata")
	f.metadata(metadata)
	metadata.rest()
	spec := o.mapping("spec")
	for _, arch := range spec.texts("arches") {
		f.platform(spec.line(), arch)
	}
	for _, n := range spec.list("images") {
		f.image(n, manifest.Image{Name: n.Value})
	}
	f.kubekeySystems(spec.objects("operatingSystems"))
	f.kubekeyClusters(spec)
	registry := spec.mapping("registry")
	registry.drop("auths", "log in with `kkbundle login`; secrets do not belong in a manifest")
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
	o.skip("creationTimestamp", "labels", "annotations", "description", "url", "image", "documentation", "source",
		"vendor", "authors")
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
		if local != "" && id != "" && version != "" {
			f.Bundle.Packages = append(f.Bundle.Packages, isoPackages(local, id+"/"+version, arch, sum))
			continue
		}
		file := manifest.File{Name: fileName(url + local), URL: url, Path: local}
		if url != "" {
			file.Path = ""
		}
		if isSum(sum) {
			file.SHA256 = manifest.Sums{scalar.AllPlatforms: sum}
		}
		f.addFile(system.node, file)
		f.note(system.node, "the packages of %s %s (%s) stay in their ISO file, which is carried: hosts install from it once it is downloaded and named as iso under packages, with distribution: %s/%s", id, version, arch, id, version)
	}
}

// isoPackages returns a set of all packages in an ISO file.
func isoPackages(file, distribution, arch, sum string) manifest.PackageSet {
	set := manifest.PackageSet{Distribution: distribution, ISO: file}
	if p, err := scalar.PlatformString("linux/" + arch); err == nil {
		set.Platforms = []scalar.Platform{p}
	}
	if isSum(sum) {
		set.SHA256 = sum
	}
	return set
}

// isSum reports whether a checksum is a sha256: KubeKey's may have another type.
func isSum(sum string) bool {
	return len(sum) == 64 && strings.Trim(strings.ToLower(sum), "0123456789abcdef") == ""
}

// kubekeyClusters adds a cluster for each version of Kubernetes.
func (f *reader) kubekeyClusters(spec *object) {
	common := manifest.Cluster{
		APIVersion: manifest.APIVersion, Kind: manifest.KindCluster,
		Components: map[string]manifest.Component{},
	}
	components := spec.mapping("components")
	var registries []manifest.RegistryType // KubeKey uses docker-registry if both are listed
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
		if c.ours == "registry" || c.ours == "harbor" {
			registries = append(registries, manifest.RegistryType(c.ours))
		}
		if c.ours == "registry" && !strings.Contains(version, ".") {
			f.note(one.node, "components.docker-registry: version %s is not a release of the registry; the catalog's default is used", shorten(version))
			continue
		}
		common.Components[c.ours] = manifest.Component{Version: withV(version)}
		if c.ours == "etcd" {
			common.Etcd.Type = manifest.EtcdExternal // KubeKey's default: programs on the etcd hosts
		}
	}
	components.drop("calicoctl", "no component of kkbundle uses it; list it under files if the site needs it")
	f.kubekeyNetwork(&common)
	for _, kind := range []manifest.Distribution{manifest.DistributionKubernetes, manifest.DistributionK3s} {
		base, c := common, choices{registries: registries}
		base.Kubernetes.Distribution = kind
		for _, k := range spec.objects("kubernetesDistributions") {
			if t := manifest.Distribution(k.text("type")); t == kind ||
				t == "" && kind == manifest.DistributionKubernetes {
				c.versions = append(c.versions, withV(k.text("version")))
			}
		}
		if kind == manifest.DistributionKubernetes {
			base.Kubernetes.Distribution = ""
			c.runtimes = f.kubekeyRuntimes(components)
		} else if len(c.versions) > 0 {
			components.drop("containerRuntimes", "k3s has its own runtime, etcd, crictl and CNI plugins")
			f.k3s(&base, c.versions)
		}
		f.clusters(base, c)
	}
	components.skip("containerRuntimes")
	components.rest()
	for _, k := range spec.objects("kubernetesDistributions") {
		if kind := k.text("type"); kind != "" && kind != "kubernetes" && kind != "k3s" {
			f.note(k.node, "kubernetesDistributions: %s was not carried over: kkbundle installs kubernetes and k3s",
				shorten(kind))
		}
		k.skip("version")
		k.rest()
	}
}

// k3s removes the components that K3s brings itself from a cluster, and writes versions in K3s's format.
func (f *reader) k3s(base *manifest.Cluster, versions []string) {
	base.Components = maps.Clone(base.Components)
	for _, name := range []string{"etcd", "crictl", "cni-plugins"} {
		delete(base.Components, name)
	}
	base.Etcd.Type = ""
	for i, version := range versions {
		number := strings.TrimSuffix(version, "-k3s")
		if versions[i] = kubekey.K3sRelease(number); versions[i] != number {
			f.noteAt(0, "k3s %s: its first release %s is used", number, versions[i])
		}
	}
}

// kubekeyRuntimes returns all listed runtimes: the first is the cluster's, and each other one gives another cluster.
func (f *reader) kubekeyRuntimes(components *object) []manifest.CRI {
	var list []manifest.CRI
	for _, runtime := range components.objects("containerRuntimes") {
		one := manifest.CRI{Type: manifest.RuntimeType(runtime.text("type")), Version: withV(runtime.text("version"))}
		runtime.rest()
		if slices.ContainsFunc(list, func(o manifest.CRI) bool { return o.Type == one.Type }) {
			f.note(runtime.node, "components.containerRuntimes: %s %s was not carried over: the first version of %s counts", shorten(string(one.Type)), shorten(one.Version), shorten(string(one.Type)))
			continue
		}
		list = append(list, one)
	}
	return list
}

// kubekeyNetwork guesses the network from the images: the file does not name it, and KubeKey defaults to calico.
func (f *reader) kubekeyNetwork(cluster *manifest.Cluster) {
	for _, image := range f.Bundle.Images {
		if name := networkOf(image.Name); name != "" && (cluster.CNI.Type == "" || cluster.CNI.Type > name) {
			cluster.CNI.Type = name
		}
	}
	cluster.CNI.Type = cmp.Or(cluster.CNI.Type, manifest.NetworkCalico)
	f.noteAt(0, "cni.type %s was guessed from the listed images, since the file does not name the network: check it",
		cluster.CNI.Type)
}

// networkOf returns the pod network that an image belongs to, "" for none. Upstream has a namespace for each; KubeKey's
// mirrors have all images in one, such as kubesphereio/cilium.
func networkOf(image string) manifest.NetworkType {
	repository, _, _ := strings.Cut(image, "@")
	if at := strings.LastIndexByte(repository, ':'); at > strings.LastIndexByte(repository, '/') {
		repository = repository[:at]
	}
	switch base := path.Base(repository); {
	case strings.Contains("/"+repository, "/cilium/"), base == "cilium", strings.HasPrefix(base, "operator-generic"):
		return manifest.NetworkCilium
	case strings.Contains("/"+repository, "/flannel/"), strings.HasPrefix(base, "flannel"):
		return manifest.NetworkFlannel
	case strings.Contains(repository, "kube-ovn"):
		return manifest.NetworkKubeOVN
	case strings.Contains(repository, "hybridnet"):
		return manifest.NetworkHybridnet
	case strings.Contains("/"+repository, "/calico/"), base == "kube-controllers", base == "typha",
		base == "pod2daemon-flexvol":
		return manifest.NetworkCalico
	}
	return ""
}

// withV returns a version in kkbundle's format.
func withV(version string) string {
	if version != "" && version[0] >= '0' && version[0] <= '9' {
		return "v" + version
	}
	return version
}
