package network

import (
	"context"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

func flannel() Network {
	return Network{
		Name: manifest.NetworkFlannel, Title: "flannel", NodeShares: true,
		Images: []string{"flannel", "flannel-cni-plugin"},
		Chart:  &Chart{Namespace: "kube-flannel", Everywhere: true, Values: flannelValues, After: recreateDNSPods},
		Ports:  []Port{{Protocol: "udp", Number: 8472, For: "VXLAN", Caller: PeersCall}},
		Interfaces: []Interface{
			{"cni0", Carries | Stays | Telling},
			{"flannel*", 0},
			{"flannel.1", Carries | Stays},
			{"flannel-v6.1", Carries | Stays},
			{"flannel.*", Telling}, // of any number of a VXLAN
			{"flannel-*", Telling},
			{"veth*", 0},
		},
		Modules: []string{"vxlan"},
		Agents:  []string{"kube-flannel-ds", "kube-flannel"},
		Configs: []string{"10-flannel.conflist"},
		Rules:   []string{"FLANNEL-"},
		// k3s has flannel in itself, and whoever installs a network of their own may have taken flannel: no task of
		// ours tells of either. Its pod installs the plugin beside the others.
		Leaves: Leaves{Paths: []string{"/opt/cni/bin/flannel", "/run/flannel"}, Always: true},
	}
}

// flannelValues sets flannel's images as the bundle names them, and selects its interface by the hosts' addresses. By
// default flannel uses the interface of the default route, which may be missing or the wrong one. From v0.28.10 on
// its chart has a health server on port 8081 of all addresses, and flannel ends if it is taken: haproxy's health has
// it on every worker.
func flannelValues(s Site) (map[string]any, error) {
	c := s.Cluster
	args := []any{"--ip-masq", "--kube-subnet-mgr"}
	for _, n := range s.Nodes {
		args = append(args, "--iface="+n.IP.String())
	}
	image, err := catalog.ImageOf(c, "flannel")
	if err != nil {
		return nil, err
	}
	plugin, err := catalog.ImageOf(c, "flannel-cni-plugin")
	if err != nil {
		return nil, err
	}
	own := map[string]any{"args": args, "image": image.Value(), "image_cni": plugin.Value()}
	if c.ControlPlaneEndpoint.Type == manifest.EndpointHAProxy {
		own["healthz"] = map[string]any{"port": 0} // without the server, and without the chart's probes of it
	}
	values := map[string]any{
		"podCidr": "", // the chart's default is another network, and invalid for a cluster without IPv4
		"flannel": own,
	}
	for _, p := range c.Kubernetes.PodCIDR {
		if p.Addr().Is4() {
			values["podCidr"] = p.String()
		} else {
			values["podCidrv6"] = p.String()
		}
	}
	return values, nil
}

// recreateDNSPods deletes pending CoreDNS pods. A node becomes ready with flannel's configuration, a moment before
// flannel knows the node's addresses. Pods started in between fail, and the kubelet retries after 10 to 15 seconds
// (backOffPeriod of https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/kubelet/kubelet.go).
func recreateDNSPods(ctx context.Context, on Kubectl) error {
	_, err := on.Kubectl(ctx, "delete", "pods", "--namespace="+kube.SystemNamespace, kube.DNSSelector,
		"--field-selector=status.phase=Pending", "--wait=false")
	return err
}
