package manifest

import (
	"strings"
	"testing"
)

func TestKubeadmChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"kubeadm: {apiserver: {}}":                                                                                   "kubernetes.kubeadm.apiserver: kubeadm has no such key here; did you mean apiServer?",
		"kubeadm: {apiServer: {extraArgs: {--v: 2}}}":                                                                "without dashes",
		"kubeadm: {apiServer: {extraArgs: [{name: v}]}}":                                                             "extraArgs[0]: want name and value",
		"kubeadm: {apiServer: {extraArgs: {v: [1]}}}":                                                                "want one value",
		"kubeadm: {apiServer: {extraArgs: 7}}":                                                                       "want arguments as NAME: VALUE",
		"kubeadm: {apiServer: {extraVolumes: [{name: a, hostPath: /a, mountPath: /a}, {name: a}]}}":                  "a is there twice",
		"kubeadm: {apiServer: {certSANs: api.example}}":                                                              "certSANs: want a list",
		"kubeadm: {etcd: {local: {extraVolumes: []}}}":                                                               "kubeadm has no such key here",
		"kubeadm: {networking: {podSubnet: 10.0.0.0/16}}":                                                            "write kubernetes.podCIDR",
		"kubeadm: {kubernetesVersion: v1.33.1}":                                                                      "write kubernetes.version",
		"kubelet: {kind: KubeletConfiguration}":                                                                      "kubernetes.kubelet.kind: leave it out",
		"patches: [p/apiserver.yaml]":                                                                                "is not a patch name",
		"patches: [a/etcd0+merge.yaml, b/etcd0+merge.yaml]":                                                          "is there twice, first on line",
		"patches: [etcd0+merge.yaml, kubeletconfiguration.json, 'corednsdeployment+json.yaml']":                      "",
		"kubeadm: {apiServer: {extraArgs: {v: 2}, certSANs: [a]}, scheduler: {extraEnvs: [{name: A, value: b}]}}":    "",
		"kubeadm: {apiServer: {extraArgs: [{name: v, value: '2'}, {name: v, value: '3'}]}, proxy: {disabled: true}}": "",
		"version: v1.30.1, kubeadm: {apiServer: {timeoutForControlPlane: 4m}}":                                       "",
		"version: v1.30.1, kubeadm: {proxy: {disabled: true}}":                                                       "kubeadm has no such key here",
		"version: v1.30.1, kubeadm: {apiServer: {extraArgs: [{name: v, value: '2'}, {name: v, value: '3'}]}}":        "v is there twice, which kubeadm before 1.31 cannot pass on",
		"version: v1.30.1, patches: [corednsdeployment.yaml]":                                                        "kubeadm patches CoreDNS since 1.32",
	} {
		if !strings.Contains(text, "version:") {
			text = "version: v1.34.3, " + text
		}
		_, err := ParseCluster("c", []byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {"+text+"}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestMaskSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"kubernetes: {version: v1.34.3, maxPods: 500}\ncni: {ipv4MaskSize: 23}":                                                                 "",
		"kubernetes: {version: v1.34.3, maxPods: 500}":                                                                                          "500 is not between 1 and 254, which a node's /24 holds",
		"kubernetes: {version: v1.34.3, podCIDR: 10.1.0.0/26}\ncni: {ipv4MaskSize: 24}":                                                         "each node takes a /24 of it",
		"kubernetes: {version: v1.34.3, maxPods: 60, podCIDR: 10.1.0.0/25}\ncni: {ipv4MaskSize: 26}":                                            "",
		"kubernetes: {version: v1.34.3, podCIDR: 'fd00:1::/40', serviceCIDR: 'fd00:2::/112'}":                                                   "write cni.ipv6MaskSize of at most 56",
		"kubernetes: {version: v1.34.3, podCIDR: 'fd00:1::/48', serviceCIDR: 'fd00:2::/112', maxPods: 110}":                                     "",
		"kubernetes: {version: v1.34.3, podCIDR: '10.1.0.0/16,fd00:1::/48', serviceCIDR: '10.2.0.0/16,fd00:2::/112'}\ncni: {ipv6MaskSize: 124}": "write cni.ipv6MaskSize of at most 64",
	} {
		c, err := ParseCluster("c", []byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\n"+text+"\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err == nil && c.CheckInstall() != nil {
			t.Errorf("%s: %v", text, c.CheckInstall())
		}
	}
}

func TestNodeMarksChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"labels: {kubernetes.io/hostname: x}":                "kubernetes.io/hostname is set by Kubernetes itself",
		"annotations: {kkbundle.io/taints: x}":               "kkbundle.io/taints is set by Kubernetes itself",
		"labels: {node-role.kubernetes.io/control-plane: x}": "is set by Kubernetes itself",
		"labels: {node-role.kubernetes.io/storage: ''}":      "",
		"labels: {topology.kubernetes.io/zone: a}":           "",
	} {
		_, err := ParseInventory("i", []byte("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  a: {address: 10.0.0.1, "+text+"}\ngroups: {kube_control_plane: [a]}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
