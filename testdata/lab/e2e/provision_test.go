package e2e

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestProvision makes a control plane from a cloud-init document and a worker from an Ignition document, as Cluster
// API's kubeadm provider writes them. No Cluster API controller runs. Images come from a company's registry.
func TestProvision(t *testing.T) {
	const address = "10.250.0.13:5443/mirror"
	ca := newCompanyCA(t, "Company registries")
	th := start(t, scenario{
		hosts:  3,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {2}},
		edit: func(t *testing.T, dir string) {
			useCompanyRegistry(t, dir, address, ca)
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "cni: {type: flannel}", "cni: {type: none}")
		},
	})
	th.companyRegistry(t, 3, ca)
	write(t, th.dir, map[string]string{"init.yaml": cloudInit, "join.ign": ignition(t)})
	th.makeBundle(t)
	provision := func(t *testing.T, host, document string) result {
		t.Helper()
		cmd := th.lab.Command(t.Context(), th.kkbundle, "provision", "-i", th.inventory, "-c",
			filepath.Join(th.dir, "cluster.yaml"),
			"--known-hosts", th.lab.KnownHostsFile(), host, filepath.Join(th.dir, document), th.bundle())
		cmd.Env = append(os.Environ(), "SITE_REGISTRY="+companyPassword)
		r := run(t, cmd).must(t, 0)
		t.Logf("provision %s: %s\n%s", host, r.took.Round(100*time.Millisecond), r.stderr)
		return r
	}
	steps(t, []step{
		{"push", func(t *testing.T) { th.pushToCompany(t, address) }},
		{"a cloud-init document makes a control plane", func(t *testing.T) {
			provision(t, "host1", "init.yaml")
			th.on(t, 1, "cat /run/cluster-api/bootstrap-success.complete")
		}},
		{"an Ignition document joins a worker", func(t *testing.T) { provision(t, "host2", "join.ign") }},
		{"both are nodes", func(t *testing.T) { // not ready: a document brings no pod network
			eventually(t, "two nodes", func() bool {
				return strings.Count(th.kubectl(t, "get nodes --no-headers"), software.KubernetesVersion) == 2
			})
		}},
		{"the same documents again change nothing", func(t *testing.T) {
			const identity = "sha256sum /etc/kubernetes/kubelet.conf /var/lib/kubelet/config.yaml; systemctl show kubelet -p ActiveEnterTimestampMonotonic"
			before := th.on(t, 1, identity) + th.on(t, 2, identity)
			provision(t, "host1", "init.yaml")
			provision(t, "host2", "join.ign")
			if after := th.on(t, 1, identity) + th.on(t, 2, identity); after != before {
				t.Errorf("changed:\n%s", difference(before, after))
			}
		}},
		{"no packet left the hosts' network", th.packets},
	})
}

const bootstrapToken = "abcdef.0123456789abcdef"

// The documents skip SystemVerification, as kubeadm asks for on a machine with control groups of version 1, beside
// failCgroupV1.
const cloudInit = `## template: jinja
#cloud-config
write_files:
  - path: /run/kubeadm/kubeadm.yaml
    owner: root:root
    permissions: '0640'
    content: |
      ---
      apiVersion: kubeadm.k8s.io/v1beta4
      kind: ClusterConfiguration
      kubernetesVersion: ` + software.KubernetesVersion + `
      controlPlaneEndpoint: 10.250.0.11:6443
      networking: {podSubnet: 10.233.64.0/18, serviceSubnet: 10.233.0.0/18}
      ---
      apiVersion: kubeadm.k8s.io/v1beta4
      kind: InitConfiguration
      bootstrapTokens: [{token: ` + bootstrapToken + `, ttl: 24h0m0s}]
      localAPIEndpoint: {advertiseAddress: 10.250.0.11, bindPort: 6443}
      nodeRegistration: {name: host1, criSocket: "unix:///run/containerd/containerd.sock", kubeletExtraArgs: [{name: node-ip, value: 10.250.0.11}]}
      ---
      apiVersion: kubelet.config.k8s.io/v1beta1
      kind: KubeletConfiguration
      cgroupDriver: systemd
      failCgroupV1: false
      ---
      apiVersion: kubeproxy.config.k8s.io/v1alpha1
      kind: KubeProxyConfiguration
      conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
  - path: /run/cluster-api/placeholder
    owner: root:root
    permissions: '0640'
    content: "This file makes the directory"
runcmd:
  - "kubeadm init --ignore-preflight-errors=SystemVerification --config /run/kubeadm/kubeadm.yaml && echo success > /run/cluster-api/bootstrap-success.complete"
`

const joinConfiguration = `apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {bootstrapToken: {apiServerEndpoint: "10.250.0.11:6443", token: ` + bootstrapToken + `, unsafeSkipCAVerification: true}}
nodeRegistration: {name: host2, criSocket: "unix:///run/containerd/containerd.sock", kubeletExtraArgs: [{name: node-ip, value: 10.250.0.12}]}
`

// ignition returns a document of the form of Cluster API's kubeadm provider: files, and a unit that runs kubeadm once.
func ignition(t *testing.T) string {
	t.Helper()
	file := func(path string, mode int, text string) map[string]any {
		return map[string]any{"path": path, "mode": mode, "contents": map[string]any{"source": "data:," +
			url.PathEscape(text)}}
	}
	const unit = "[Unit]\nConditionPathExists=/etc/kubeadm.yml\n[Service]\nType=oneshot\nExecStart=/etc/kubeadm.sh\n[Install]\nWantedBy=multi-user.target\n"
	document, err := json.Marshal(map[string]any{
		"ignition": map[string]any{"version": "3.0.0"},
		"storage": map[string]any{"files": []any{
			file("/etc/kubeadm.yml", 0o600, joinConfiguration),
			file("/etc/kubeadm.sh", 0o700,
				"#!/bin/bash\nset -e\nkubeadm join --ignore-preflight-errors=SystemVerification --config /etc/kubeadm.yml\nmv /etc/kubeadm.yml /tmp/\n"),
		}},
		"systemd": map[string]any{"units": []any{map[string]any{
			"name": "kubeadm.service", "enabled": true,
			"contents": unit,
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(document)
}
