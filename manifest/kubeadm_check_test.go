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
		"kubeadm: {apiServer: {extraArgs: {audit-policy-file: /etc/kubernetes/audit.yaml}}}":                         "kubernetes.kubeadm.apiServer.extraArgs.audit-policy-file: audit-policy-file: kube-apiserver does not see /etc/kubernetes/audit.yaml of its host and would not start: mount the file with extraVolumes",
		"kubeadm: {scheduler: {extraArgs: [{name: config, value: /etc/kubernetes/sched.yaml}]}}":                     "kubernetes.kubeadm.scheduler.extraArgs[0]: config: kube-scheduler does not see",
		"kubeadm: {scheduler: {extraArgs: [{name: config, value: /etc/kubernetes/s/a.yaml}], extraVolumes: [{name: a, hostPath: /etc/x, mountPath: /etc/kubernetes/s/}]}}":                                         "",
		"kubeadm: {scheduler: {extraArgs: [{name: config, value: /etc/kubernetes/s.yaml}], extraVolumes: [{name: a, hostPath: /etc/x, mountPath: /etc/kubernetes/s}]}}":                                            "does not see",
		"kubeadm: {apiServer: {extraArgs: {oidc-ca-file: /etc/kubernetes/pki/oidc.pem, audit-policy-file: /etc/kubernetes/security/audit-policy.yaml, runtime-config: api/all=true, audit-log-path: /var/log/a}}}": "",
		"kubeadm: {apiServer: {extraArgs: {audit-policy-file: /a}}}, patches: [p/kube-apiserver0+merge.yaml]":                                                                                                      "",
		"version: v1.30.1, patches: [corednsdeployment.yaml]": "kubeadm patches CoreDNS since 1.32",
	} {
		if !strings.Contains(text, "version:") {
			text = "version: v1.34.3, " + text
		}
		_, err := ParseCluster("c",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {"+text+"}\n"))
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
		c, err := ParseCluster("c", []byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\n"+text+
			"\n"))
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
		_, err := ParseInventory("i",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  a: {address: 10.0.0.1, "+text+
				"}\ngroups: {kube_control_plane: [a]}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestOnePlace: values that kkbundle uses are refused in the sections of other programs, in either form of kubeadm's
// arguments, with the key that is meant. Values that change nothing there, and all other settings, are accepted.
func TestOnePlace(t *testing.T) {
	t.Parallel()
	const own = "it has a place of its own in the cluster file: "
	for text, want := range map[string]string{
		"kubeadm: {networking: {dnsDomain: k8s.corp.example}}":                                                                "kubernetes.kubeadm.networking.dnsDomain: " + own + "write dns.domain",
		"kubeadm: {networking: {serviceSubnet: 10.0.0.0/16}}":                                                                 "write kubernetes.serviceCIDR",
		"kubeadm: {etcd: {local: {dataDir: /data/etcd}}}":                                                                     "kubernetes.kubeadm.etcd.local.dataDir: " + own + "write etcd.dataDir",
		"kubeadm: {etcd: {local: {extraArgs: [{name: data-dir, value: /d}]}}}":                                                "kubernetes.kubeadm.etcd.local.extraArgs[0]: data-dir: " + own + "write etcd.dataDir",
		"kubeadm: {etcd: {local: {extraArgs: {quota-backend-bytes: 1}}}}":                                                     "write etcd.quota",
		"kubeadm: {etcd: {local: {extraArgs: {listen-client-urls: 'https://0.0.0.0'}}}}":                                      "addresses are those of the inventory",
		"kubeadm: {etcd: {local: {imageTag: 3.6.99-0}}}":                                                                      "write components.etcd.version",
		"kubeadm: {etcd: {external: {endpoints: ['https://10.0.0.1:2379']}}}":                                                 "write etcd.type: provided",
		"kubeadm: {dns: {imageTag: v9.0.0}}":                                                                                  "write components.coredns.version",
		"kubeadm: {imageRepository: k8s.site}":                                                                                "name images of another registry in a file under catalog",
		"kubeadm: {controllerManager: {extraArgs: {node-cidr-mask-size: '26'}}}":                                              "kubernetes.kubeadm.controllerManager.extraArgs.node-cidr-mask-size: " + own + "write cni.ipv4MaskSize",
		"kubeadm: {controllerManager: {extraArgs: [{name: v, value: '2'}, {name: node-cidr-mask-size-ipv6, value: '80'}]}}":   "controllerManager.extraArgs[1]: node-cidr-mask-size-ipv6: " + own + "write cni.ipv6MaskSize",
		"kubeadm: {controllerManager: {extraArgs: {cluster-cidr: 10.0.0.0/16}}}":                                              "write kubernetes.podCIDR",
		"kubeadm: {controllerManager: {extraArgs: {allocate-node-cidrs: 'false'}}}":                                           "nodes take their networks from kubernetes.podCIDR",
		"kubeadm: {controllerManager: {extraArgs: {allocate-node-cidrs: 'true'}}}":                                            "",
		"kubeadm: {apiServer: {extraArgs: {service-cluster-ip-range: null}}}":                                                 "write kubernetes.serviceCIDR",
		"kubeadm: {apiServer: {extraArgs: {secure-port: 8443}}}":                                                              "checks and probes expect the default port",
		"kubeadm: {apiServer: {extraArgs: {bind-address: 127.0.0.1}}}":                                                        "nodes and balancers use every address",
		"kubeadm: {apiServer: {extraArgs: {bind-address: '::'}}}":                                                             "",
		"kubeadm: {apiServer: {extraArgs: {etcd-servers: 'https://10.0.0.1:2379'}}}":                                          "write etcd.type: provided",
		"kubeadm: {apiServer: {extraArgs: {tls-cert-file: /a.crt}}}":                                                          "kubernetes.kubeadm.apiServer.certSANs",
		"kubeadm: {scheduler: {extraArgs: {secure-port: 1}}}":                                                                 "default port",
		"kubeadm: {scheduler: {extraArgs: {bind-address: 0.0.0.0}}, controllerManager: {extraArgs: {bind-address: 0.0.0.0}}}": "",

		"kubelet: {maxPods: 200}":                                                               "kubernetes.kubelet.maxPods: " + own + "write kubernetes.maxPods",
		"kubelet: {clusterDomain: a.example}":                                                   "write dns.domain",
		"kubelet: {clusterDNS: [10.0.0.10]}":                                                    "pods ask the cluster's DNS",
		"kubelet: {cgroupDriver: cgroupfs}":                                                     "both use systemd",
		"kubelet: {containerRuntimeEndpoint: x}":                                                "write cri.type",
		"kubelet: {staticPodPath: /x}":                                                          "/etc/kubernetes/manifests",
		"kubelet: {address: 10.0.0.1, port: 1}":                                                 "default port",
		"kubelet: {address: 0.0.0.0}":                                                           "",
		"kubelet: {authentication: {x509: {clientCAFile: /x}}}":                                 "certificates are in /etc/kubernetes/pki",
		"kubelet: {authentication: {webhook: {cacheTTL: 1m}}}":                                  "",
		"kubeProxy: {mode: ipvs}":                                                               "write kubernetes.proxyMode",
		"kubeProxy: {clusterCIDR: 10.0.0.0/16}":                                                 "write kubernetes.podCIDR",
		"kubeProxy: {ipvs: {strictARP: true}, metricsBindAddress: 0.0.0.0}":                     "",
		"kubeadm: {apiServer: {extraArgs: [{name: anonymous-auth, value: 'false'}]}}":           "kubeadm join and balancers ask without a login and would get 401",
		"kubeadm: {apiServer: {extraArgs: {anonymous-auth: false}}}":                            "write kubernetes.security: hardened",
		"kubeadm: {apiServer: {extraArgs: {anonymous-auth: F}}}":                                "would get 401",
		"kubeadm: {apiServer: {extraArgs: {anonymous-auth: 'true', allow-privileged: 'true'}}}": "",
		"kubeadm: {apiServer: {extraArgs: {anonymous-auth: null}}}":                             "",
		"kubeadm: {apiServer: {extraArgs: {enable-bootstrap-token-auth: 'false'}}}":             "nodes join with bootstrap tokens",
		"kubeadm: {apiServer: {extraArgs: {allow-privileged: 'false'}}}":                        "run privileged",
		"kubeadm: {apiServer: {extraArgs: {authorization-mode: 'RBAC,Webhook'}}}":               "need the modes Node and RBAC",
		"kubeadm: {apiServer: {extraArgs: {authorization-mode: 'Webhook,RBAC,Node'}}}":          "",
		"kubeadm: {controllerManager: {extraArgs: {controllers: '*'}}}":                         "write *,bootstrapsigner,tokencleaner",
		"kubeadm: {controllerManager: {extraArgs: {controllers: '*,bootstrapsigner,-ttl'}}}":    "",
		"kubelet: {registerNode: false}":                                                        "a node that registers itself",
		"kubeadm: {apiServer: {certSANs: [Api.example]}}":                                       "certSANs[0]: \"Api.example\" is neither an address nor a DNS name in lower case",
		"kubeadm: {apiServer: {certSANs: [10.0.0.1, 'fd00::1', '*.api.example', api.example]}}": "",
		"kubeadm: {etcd: {local: {peerCertSANs: ['a b']}}}":                                     "peerCertSANs[0]",
		"kubeadm: {networking: null, etcd: {local: null}}":                                      "",
	} {
		_, err := ParseCluster("c",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3, "+
				text+"}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	_, err := ParseInventory("i",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  a: {address: 10.0.0.1, cluster: {kubernetes: {kubelet: {maxPods: 20}}}}\ngroups: {kube_control_plane: [a]}\n"))
	if err == nil || !strings.Contains(err.Error(), "hosts[a].cluster.kubernetes.kubelet.maxPods: "+own) {
		t.Errorf("in an inventory: %v", err)
	}
}

// The sizes of nodes' networks have one place, so that they are checked beside arguments of the controller manager,
// too.
func TestMaskSizesBesideArguments(t *testing.T) {
	t.Parallel()
	_, err := ParseCluster("c",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3, maxPods: 500, kubeadm: {controllerManager: {extraArgs: {v: '2'}}}}\n"))
	if err == nil || !strings.Contains(err.Error(), "500 is not between 1 and 254") {
		t.Error(err)
	}
}

// TestSiteAddresses: addresses of the site lie outside the cluster's networks, and two things do not share one.
func TestSiteAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"controlPlaneEndpoint: {type: kube-vip, address: 10.233.64.9}":                                              "controlPlaneEndpoint.address: 10.233.64.9 lies in kubernetes.podCIDR, where nodes do not look for the site",
		"controlPlaneEndpoint: {type: external, address: '10.233.0.9:6443'}":                                        "controlPlaneEndpoint.address: 10.233.0.9 lies in kubernetes.serviceCIDR",
		"imageRegistry: {type: registry, vip: 10.233.64.9}":                                                         "imageRegistry.vip: 10.233.64.9 lies in kubernetes.podCIDR",
		"imageRegistry: {type: existing, address: '10.233.0.9:5000/a'}":                                             "imageRegistry.address: 10.233.0.9 lies in kubernetes.serviceCIDR",
		"etcd: {type: provided, endpoints: ['https://10.233.0.9:2379'], ca: a, cert: a, key: a}":                    "etcd.endpoints[0]: 10.233.0.9 lies in kubernetes.serviceCIDR",
		"controlPlaneEndpoint: {type: kube-vip, address: 10.0.0.9}, imageRegistry: {type: registry, vip: 10.0.0.9}": "imageRegistry.vip: 10.0.0.9 is controlPlaneEndpoint.address, too",
		"controlPlaneEndpoint: {type: kube-vip, address: 10.0.0.9}, imageRegistry: {type: registry, vip: 10.0.0.8}": "",
		"kubernetes: {version: v1.34.3, podCIDR: 127.0.0.0/16}":                                                     "kubernetes.podCIDR: 127.0.0.0/16 is no network for pods and services",
		"kubernetes: {version: v1.34.3, serviceCIDR: 169.254.0.0/16}":                                               "kubernetes.serviceCIDR: 169.254.0.0/16 is no network",
		"kubernetes: {version: v1.34.3, podCIDR: 224.0.0.0/16}":                                                     "kubernetes.podCIDR: 224.0.0.0/16 is no network",
	} {
		if !strings.Contains(text, "version:") {
			text = "kubernetes: {version: v1.34.3}, " + text
		}
		_, err := ParseCluster("c", []byte("{apiVersion: kkbundle.io/v1, kind: Cluster, metadata: {name: a}, "+text+"}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
