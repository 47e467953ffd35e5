package installer

import (
	"maps"
	"slices"
)

// The control plane's components, by the names that ClusterConfiguration has for them.
const (
	apiServer         = "apiServer"
	controllerManager = "controllerManager"
	scheduler         = "scheduler"
)

// A configPart is what one concern of a cluster (its etcd, its endpoint, its security) adds to what kubeadm is told. Later
// parts win over earlier ones, and the cluster file wins over all.
type configPart struct {
	// flags are the components' command line arguments, without dashes.
	flags map[string]map[string]string
	// volumes are paths of the host that the components see, read-only unless said otherwise.
	volumes map[string][]hostVolume
	// names are more names and addresses in the API server's certificate.
	names []string
	// cluster, kubelet and kubeProxy are merged into ClusterConfiguration, KubeletConfiguration and KubeProxyConfiguration.
	cluster, kubelet, kubeProxy document
}

// A hostVolume is a path of the host in a component's container, at the same place.
type hostVolume struct {
	name, path string
	// kind is a HostPathType, such as File or DirectoryOrCreate.
	kind     string
	writable bool
}

// parts are what the cluster's concerns add to kubeadm's configuration, each in the file of its feature.
func (r *Site) parts() []configPart {
	return []configPart{
		r.preloadPart(),
		r.endpointPart(),
		r.networkPart(),
		r.securityPart(),
		r.etcdPart(),
		nodeDNSPart(r.cluster),
	}
}

// component returns what the parts add to one component of the control plane.
func (k kubeadmConfig) component(name string) document {
	flags := map[string]string{}
	var volumes, names []any
	for _, p := range k.parts {
		maps.Copy(flags, p.flags[name])
		for _, v := range p.volumes[name] {
			volumes = append(volumes, document{"name": v.name, "hostPath": v.path, "mountPath": v.path, "pathType": v.kind, "readOnly": !v.writable})
		}
		for _, n := range p.names {
			names = append(names, n)
		}
	}
	d := document{}
	if len(flags) > 0 {
		d["extraArgs"] = k.args(flags)
	}
	if len(volumes) > 0 {
		d["extraVolumes"] = volumes
	}
	if name == apiServer && len(names) > 0 {
		d["certSANs"] = names
	}
	return d
}

// args writes command line arguments: a list in v1beta4, a mapping before.
func (k kubeadmConfig) args(flags map[string]string) any {
	if !k.beta4 {
		d := document{}
		for name, value := range flags {
			d[name] = value
		}
		return d
	}
	var list []any
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		list = append(list, document{"name": name, "value": flags[name]})
	}
	return list
}
