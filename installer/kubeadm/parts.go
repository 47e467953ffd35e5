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

// The control plane's components by their names in ClusterConfiguration.
const (
	apiServer         = "apiServer"
	controllerManager = "controllerManager"
	scheduler         = "scheduler"
)

// Parts returns the parts of kubeadm's configuration, one per feature. Guarded API servers use the security files.
func Parts(r *task.Site, guarded bool) []task.KubeadmPart {
	return []task.KubeadmPart{
		cri.PreloadPart(r),
		endpoint.Part(r),
		NetworkPart(r),
		shutdownPart(),
		securityPart(r, guarded),
		etcd.Part(r),
		NodeDNSPart(r.Cluster),
	}
}

// component merges the parts for one component of the control plane.
func (k Config) component(name string) kube.Document {
	flags := map[string]string{}
	var volumes, names []any
	for _, p := range k.parts {
		maps.Copy(flags, p.Flags[name])
		for _, v := range p.Volumes[name] {
			volumes = append(volumes, kube.Document{
				"name": v.Name, "hostPath": v.Path, "mountPath": v.Path,
				"pathType": v.Kind, "readOnly": !v.Writable,
			})
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

// args renders command line arguments.
func (k Config) args(flags map[string]string) any {
	var list []argument
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		list = append(list, argument{name, flags[name]})
	}
	return k.renderArgs(list)
}

// NodeDNSPart sets the DNS address of pods to the cache on their node.
func NodeDNSPart(c *manifest.Cluster) task.KubeadmPart {
	if !c.DNS.NodeLocal || task.TakesServiceAddress(c) {
		return task.KubeadmPart{}
	}
	return task.KubeadmPart{Kubelet: kube.Document{"clusterDNS": []any{manifest.NodeDNSAddress}}}
}

// shutdownPart makes a stopping API server refuse new requests with 429, which clients repeat, and end two seconds
// after the last answer. By default it waits up to a minute for watches, and the kubelet kills it after 30 seconds
// (ShutdownSendRetryAfter in https://github.com/kubernetes/apiserver/blob/v0.36.3/pkg/server/genericapiserver.go).
func shutdownPart() task.KubeadmPart {
	return task.KubeadmPart{Flags: map[string]map[string]string{apiServer: {"shutdown-send-retry-after": "true"}}}
}

// NetworkPart sets the size of each node's pod network, and adds the control planes' IPv6 addresses to certificates:
// kubeadm adds only the advertised address.
func NetworkPart(r *task.Site) task.KubeadmPart {
	part := task.KubeadmPart{Flags: map[string]map[string]string{controllerManager: task.MaskFlags(r.Cluster)}}
	for _, t := range r.WithRole(manifest.RoleControlPlane) {
		if t.IP6.IsValid() {
			part.Names = append(part.Names, t.IP6.String())
		}
	}
	if r.Cluster.Kubernetes.ProxyMode == manifest.ProxyIPVS &&
		r.Cluster.ControlPlaneEndpoint.Type == manifest.EndpointKubeVIP {
		// kube-vip announces its address by ARP; with IPVS, every node would answer for it.
		part.KubeProxy = kube.Document{"ipvs": kube.Document{"strictARP": true}}
	}
	return part
}
