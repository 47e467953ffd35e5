package kubeadm

import (
	"maps"
	"slices"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// The control plane's components, by the names that ClusterConfiguration has for them.
const (
	apiServer         = "apiServer"
	controllerManager = "controllerManager"
	scheduler         = "scheduler"
)

// parts are what the cluster's concerns add to kubeadm's configuration, each in the file of its feature.
func Parts(r *task.Site) []task.KubeadmPart {
	return []task.KubeadmPart{
		cri.PreloadPart(r),
		endpoint.Part(r),
		NetworkPart(r),
		securityPart(r),
		etcd.Part(r),
		NodeDNSPart(r.Cluster),
	}
}

// component returns what the parts add to one component of the control plane.
func (k Config) component(name string) kube.Document {
	flags := map[string]string{}
	var volumes, names []any
	for _, p := range k.parts {
		maps.Copy(flags, p.Flags[name])
		for _, v := range p.Volumes[name] {
			volumes = append(volumes, kube.Document{"name": v.Name, "hostPath": v.Path, "mountPath": v.Path, "pathType": v.Kind, "readOnly": !v.Writable})
		}
		for _, n := range p.Names {
			names = append(names, n)
		}
	}
	d := kube.Document{}
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
func (k Config) args(flags map[string]string) any {
	if !k.beta4 {
		d := kube.Document{}
		for name, value := range flags {
			d[name] = value
		}
		return d
	}
	var list []any
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		list = append(list, kube.Document{"name": name, "value": flags[name]})
	}
	return list
}

// NodeDNSPart tells kubelets where pods find DNS.
func NodeDNSPart(c *manifest.Cluster) task.KubeadmPart {
	if !c.DNS.NodeLocal || kube.TakesServiceAddress(c) {
		return task.KubeadmPart{}
	}
	return task.KubeadmPart{Kubelet: kube.Document{"clusterDNS": []any{kube.NodeDNSAddress}}}
}

// NetworkPart is what the cluster's networks add: what each node takes of them, and the control planes' second addresses,
// since kubeadm puts only the one that it advertises into certificates.
func NetworkPart(r *task.Site) task.KubeadmPart {
	part := task.KubeadmPart{Flags: map[string]map[string]string{controllerManager: task.MaskFlags(r.Cluster)}}
	for _, t := range r.WithRole(manifest.RoleControlPlane) {
		if t.IP6.IsValid() {
			part.Names = append(part.Names, t.IP6.String())
		}
	}
	if r.Cluster.Kubernetes.ProxyMode == manifest.ProxyIPVS && r.Cluster.ControlPlaneEndpoint.Type == manifest.EndpointKubeVIP {
		// kube-vip answers for its address by ARP; with services' addresses on an interface, every node would.
		part.KubeProxy = kube.Document{"ipvs": kube.Document{"strictARP": true}}
	}
	return part
}
