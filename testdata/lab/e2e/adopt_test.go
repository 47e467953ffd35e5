package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestAdopt describes a cluster that kubeadm's own commands have made, a control plane and a worker, from one address
// and with an inventory. Files and objects stay as they are, and the written files are what the cluster is.
func TestAdopt(t *testing.T) {
	th := start(t, scenario{hosts: 2, noCluster: true})
	found, given := filepath.Join(th.dir, "found"), filepath.Join(th.dir, "given")
	steps(t, []step{
		{"build, for the genuine programs and images", th.makeBundle},
		{"programs as a distribution has them", th.ownPrograms},
		{"kubeadm init and join", th.ownCluster},
		{"adopt finds the nodes from one control plane, and changes nothing", func(t *testing.T) {
			th.changesNothing(t, func() {
				r := th.adopt(t, "--host", "root@"+th.lab.Hosts[0].Address, "-o", found).must(t, 0)
				t.Logf("adopt: %s\n%s", r.took.Round(100*time.Millisecond), r.stdout)
				for line := range strings.Lines(r.stdout) {
					if len(strings.TrimSuffix(line, "\n")) > 80 {
						t.Errorf("more than 80 columns: %q", line)
					}
				}
			})
		}},
		{"the files are what the cluster is", func(t *testing.T) { th.isDescribed(t, found) }},
		{"adopt with an inventory says the same", func(t *testing.T) {
			th.changesNothing(t, func() {
				r := th.adopt(t, "-i", th.inventory, "-o", given, "--json").must(t, 0)
				var report struct {
					Version int
					Layout  string
					Nodes   []struct{ Name string }
				}
				if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || report.Version != 1 ||
					report.Layout != "kubeadm" || len(report.Nodes) != 2 {
					t.Errorf("%v: %s", err, r.stdout)
				}
			})
			if a, b := read(t, found, "cluster.yaml"), read(t, given, "cluster.yaml"); a != b {
				t.Errorf("the cluster files differ:\n%s", difference(a, b))
			}
		}},
	})
}

// adopt runs kkbundle adopt in the hosts' network, with the lab's key as the user's own.
func (th *thread) adopt(t *testing.T, flags ...string) result {
	t.Helper()
	home := t.TempDir()
	key, err := os.ReadFile(th.lab.KeyFile())
	if err == nil {
		err = os.Mkdir(filepath.Join(home, ".ssh"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(home, ".ssh", "id_ed25519"), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := th.lab.Command(t.Context(), th.kkbundle, slices.Concat([]string{"adopt"}, flags,
		[]string{"--known-hosts", th.lab.KnownHostsFile()})...)
	cmd.Env = append(os.Environ(), "HOME="+home)
	return run(t, cmd)
}

// changesNothing does something and compares files, units and objects before and after.
func (th *thread) changesNothing(t *testing.T, do func()) {
	t.Helper()
	const line = `find /etc /usr/local /opt /root /home /srv /var/lib/kkbundle /usr/bin -xdev -type f ! -path '*/.cache/*' ! -name .sudo_as_admin_successful -exec sha256sum {} + 2>/dev/null | sort -k 2
		ls -la --time-style=+ /var/lib | sort; ip -br link | awk '{print $1}' | sort; ip -4 route | sort; test ! -e /var/lib/kkbundle`
	look := func() string { return th.on(t, 1, line) + th.on(t, 2, line) + th.snapshot(t) }
	before := look()
	do()
	if after := look(); after != before {
		t.Errorf("something changed:\n%s", difference(before, after))
	}
}

func read(t *testing.T, names ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(names...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The cluster that kubeadm makes.
const ownKubeadm = `apiVersion: kubeadm.k8s.io/v1beta4
kind: %s
nodeRegistration: {name: %s, ignorePreflightErrors: [SystemVerification], imagePullPolicy: Never, kubeletExtraArgs: [{name: node-ip, value: %s}]}
`

const ownConfig = `localAPIEndpoint: {advertiseAddress: %s}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %s
networking: {podSubnet: 10.244.0.0/16, dnsDomain: site.local}
apiServer: {certSANs: [api.example], extraArgs: [{name: event-ttl, value: 2h0m0s}]}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
maxPods: 60
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// ownNetwork is a pod network of one file: enough for ready nodes.
const ownNetwork = `{"cniVersion": "1.0.0", "name": "own", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// ownPrograms gives the hosts containerd, runc, the CNI plugins and Kubernetes' programs where packages have them.
func (th *thread) ownPrograms(t *testing.T) {
	files := map[string]string{
		"containerd":  "tar xz -C /usr",
		"runc":        "cat >/usr/sbin/runc && chmod 0755 /usr/sbin/runc",
		"cni-plugins": "mkdir -p /opt/cni/bin && tar xz -C /opt/cni/bin",
	}
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		files[name] = fmt.Sprintf("cat >/usr/bin/%[1]s && chmod 0755 /usr/bin/%[1]s", name)
	}
	for name, line := range files {
		file := filepath.Join(th.dir, "own-"+name)
		th.connected(t, "extract", th.bundle(), name, "-o", file).must(t, 0)
		for n := range 2 {
			th.feedFile(t, n+1, file, line)
		}
	}
	pause := ""
	for image := range strings.FieldsSeq(th.on(t, 1, "kubeadm config images list --kubernetes-version "+
		software.KubernetesVersion+" 2>/dev/null")) {
		if strings.Contains(image, "/pause:") {
			pause = image
		}
	}
	for n := range 2 {
		th.on(t, n+1, fmt.Sprintf(`mkdir -p /etc/containerd /etc/cni/net.d /usr/lib/systemd/system/kubelet.service.d
			printf 'version = 3\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "%s"\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]\nSystemdCgroup = true\n' >/etc/containerd/config.toml
			printf '[Service]\nType=notify\nDelegate=yes\nKillMode=process\nExecStart=/usr/bin/containerd\n[Install]\nWantedBy=multi-user.target\n' >/usr/lib/systemd/system/containerd.service
			printf '[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\nRestartSec=10\n[Install]\nWantedBy=multi-user.target\n' >/usr/lib/systemd/system/kubelet.service
			printf '[Service]\nEnvironment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"\nEnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS\n' >/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf
			printf 'net.ipv4.ip_forward = 1\n' >/etc/sysctl.d/k8s.conf; sysctl -q -w net.ipv4.ip_forward=1
			systemctl daemon-reload && systemctl enable --now containerd && systemctl enable kubelet`, pause))
		th.send(t, n+1, "/etc/cni/net.d/10-own.conflist", "644", strings.NewReader(fmt.Sprintf(ownNetwork, n)))
	}
	th.ownImages(t)
}

// ownImages loads the bundle's images that kubeadm lists into both hosts' containerd.
func (th *thread) ownImages(t *testing.T) {
	for image := range strings.FieldsSeq(th.on(t, 1, "kubeadm config images list --kubernetes-version "+
		software.KubernetesVersion+" 2>/dev/null")) {
		file := filepath.Join(th.dir, "own-image.tar")
		th.connected(t, "extract", th.bundle(), image, "--format", "docker-archive", "--platform", "linux/amd64", "-o",
			file, "--force").must(t, 0)
		for n := range 2 {
			th.feedFile(t, n+1, file, "ctr -n k8s.io images import -")
		}
	}
}

// ownCluster runs kubeadm init on the first host and kubeadm join on the second.
func (th *thread) ownCluster(t *testing.T) {
	first, second := th.lab.Hosts[0], th.lab.Hosts[1]
	th.send(t, 1, "/root/init.yaml", "600", strings.NewReader(
		fmt.Sprintf(ownKubeadm, "InitConfiguration", first.Name, first.Address)+
			fmt.Sprintf(ownConfig, first.Address, software.KubernetesVersion)))
	out := th.on(t, 1, "kubeadm init --config /root/init.yaml 2>&1")
	t.Logf("kubeadm init ended with\n%s", out[max(0, len(out)-600):])
	token := strings.TrimSpace(th.on(t, 1, "kubeadm token create 2>/dev/null"))
	pin := strings.TrimSpace(th.on(t, 1, "openssl x509 -pubkey -noout -in /etc/kubernetes/pki/ca.crt | openssl pkey -pubin -outform DER | sha256sum | cut -d' ' -f1"))
	th.send(t, 2, "/root/join.yaml", "600", strings.NewReader(
		fmt.Sprintf(ownKubeadm, "JoinConfiguration", second.Name, second.Address)+fmt.Sprintf(
			"discovery: {bootstrapToken: {apiServerEndpoint: \"%s:6443\", token: %s, caCertHashes: [\"sha256:%s\"]}}\n",
			first.Address, token, pin)))
	th.on(t, 2, "kubeadm join --config /root/join.yaml 2>&1 && rm /root/join.yaml")
	th.kubectl(t, "wait node --all --for=condition=Ready --timeout=120s")
	th.kubectl(t, "rollout status daemonset/kube-proxy -n kube-system --timeout=120s")
}

// isDescribed compares the written files with what kubeadm was told.
func (th *thread) isDescribed(t *testing.T, dir string) {
	c, err := manifest.ParseCluster("cluster.yaml", []byte(read(t, dir, "cluster.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(read(t, dir, "inventory.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, h := range inv.Hosts() {
		hosts = append(hosts, fmt.Sprint(h.Name, " ", h.Address, " ", h.InternalIPv4, " ", h.Roles))
	}
	containerd := strings.Fields(th.on(t, 1, "containerd --version"))[2]
	for what, one := range map[string][2]string{
		"name": {c.Metadata.Name, "kubernetes"}, "version": {c.Kubernetes.Version, software.KubernetesVersion},
		"pods": {c.Kubernetes.PodCIDR.String(), "10.244.0.0/16"}, "services": {c.Kubernetes.ServiceCIDR.String(), "10.96.0.0/12"},
		"domain": {c.DNS.Domain, "site.local"}, "maxPods": {fmt.Sprint(c.Kubernetes.MaxPods), "60"},
		"kubelet":    {fmt.Sprint(c.Kubernetes.Kubelet), "map[failCgroupV1:false]"},
		"etcd":       {string(c.Etcd.Type) + " " + c.Etcd.DataDir, "internal /var/lib/etcd"},
		"endpoint":   {string(c.ControlPlaneEndpoint.Type), "local"},
		"containerd": {c.CRI.Version, "v" + strings.TrimPrefix(containerd, "v")},
		"network":    {string(c.CNI.Type), "none"}, "registry": {string(c.ImageRegistry.Type), "none"},
		"hosts": {strings.Join(hosts, "; "), fmt.Sprintf("%[1]s %[2]s %[2]s [kube_control_plane etcd k8s_cluster]; %[3]s %[4]s %[4]s [kube_worker k8s_cluster]",
			th.lab.Hosts[0].Name, th.lab.Hosts[0].Address, th.lab.Hosts[1].Name, th.lab.Hosts[1].Address)},
	} {
		if one[0] != one[1] {
			t.Errorf("%s: got %q, want %q", what, one[0], one[1])
		}
	}
	api, _ := c.Kubernetes.Kubeadm["apiServer"].(map[string]any)
	if got := fmt.Sprint(api); !strings.Contains(got, "event-ttl") || !strings.Contains(got, "api.example") {
		t.Errorf("kubeadm's settings: %s", got)
	}
}
