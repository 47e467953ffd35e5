package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestEndpointMove installs one control plane with the default endpoint, changes the runtime's configuration while a
// worker is lost, moves the endpoint to haproxy with a kill on the way, and goes on to three control planes. Then the
// first one is lost.
func TestEndpointMove(t *testing.T) {
	th := start(t, scenario{
		hosts: 5, groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {2, 3}, "image_registry": {2}},
		edit: func(t *testing.T, dir string) {
			// haproxy's image is in the bundle from the first on; the endpoint of the first install is the default.
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}",
				"etcd: {type: internal}\ncontrolPlaneEndpoint: {type: haproxy}")
		},
	})
	steps(t, []step{
		{"one control plane at its own address", th.installDefault},
		{"install leaves another configuration of the runtime to upgrade", th.runtimeIsUpgrades},
		{"upgrade goes on without a lost worker, and catches up", th.withoutAWorker},
		{"install refers to endpoint move", th.refersToMove},
		{"the endpoint is moved, with a kill", th.moveEndpoint},
		{"from one control plane to three, and the first is lost", th.oneToThree},
	})
}

// command is a kkbundle command with the bundle and a cluster file beside the manifest.
func (th *thread) command(t *testing.T, cluster string, args ...string) *exec.Cmd {
	t.Helper()
	args = append(args, "-i", th.inventory, "--known-hosts", th.lab.KnownHostsFile(), "-c",
		filepath.Join(th.dir, cluster))
	return th.lab.Command(t.Context(), th.kkbundle, append(args, th.bundle())...)
}

func (th *thread) installDefault(t *testing.T) {
	th.makeBundle(t)
	before, after := filepath.Join(th.dir, "before.yaml"), filepath.Join(th.dir, "classes.yaml")
	data, err := os.ReadFile(filepath.Join(th.dir, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{before, after} {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		rewrite(t, file, "controlPlaneEndpoint: {type: haproxy}\n", "")
	}
	const classes = "cri: {runtimeClasses: [{name: lab, type: io.containerd.runsc.v1}]}\netcd: {type: internal}"
	rewrite(t, after, "etcd: {type: internal}", classes)
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"), "etcd: {type: internal}", classes)
	r := run(t, th.command(t, "before.yaml", "install")).must(t, 0)
	t.Logf("install: %s", r.took.Round(time.Second))
	for number, want := range map[int]string{2: "https://10.250.0.11:6443", 3: "https://10.250.0.11:6443"} {
		if got := th.on(t, number,
			"grep -o 'https://.*' /etc/kubernetes/kubelet.conf"); strings.TrimSpace(got) != want {
			t.Errorf("host%d reaches the API server by %s", number, got)
		}
	}
}

// starts are the processes of containerd on the hosts.
func (th *thread) starts(t *testing.T, numbers ...int) string {
	t.Helper()
	var all []string
	for _, number := range numbers {
		all = append(all, strings.TrimSpace(th.on(t, number, "systemctl show -p MainPID --value containerd")))
	}
	return strings.Join(all, " ")
}

func (th *thread) runtimeIsUpgrades(t *testing.T) {
	before := th.starts(t, 1, 2, 3)
	r := run(t, th.command(t, "classes.yaml", "install")).must(t, 12)
	for _, want := range []string{
		"containerd (another program or configuration) on host1, host2, host3",
		"kkbundle upgrade -i INVENTORY BUNDLE",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	if after := th.starts(t, 1, 2, 3); after != before {
		t.Errorf("containerd was restarted: %s, then %s", before, after)
	}
}

func (th *thread) withoutAWorker(t *testing.T) {
	if err := th.lab.Kill(t.Context(), th.lab.Hosts[2]); err != nil {
		t.Fatal(err)
	}
	r := run(t, th.command(t, "classes.yaml", "upgrade", "--yes")).must(t, 13)
	if !strings.Contains(r.stderr, "--without host3") {
		t.Errorf("want how to go on without it, got\n%s", r.stderr)
	}
	r = run(t, th.command(t, "classes.yaml", "upgrade", "--yes", "--without", "host3", "--disable-eviction")).must(t, 0)
	t.Logf("upgrade of the runtime without host3: %s\n%s", r.took.Round(time.Second), r.stderr)
	if !strings.Contains(r.stderr, "left as they are (--without)") {
		t.Errorf("want that host3 was left, got\n%s", r.stderr)
	}
	if err := th.lab.Start(t.Context(), th.lab.Hosts[2]); err != nil {
		t.Fatal(err)
	}
	th.nodesAre(t, 1, "host1", "host2", "host3")
	r = run(t, th.command(t, "classes.yaml", "upgrade", "--yes", "--disable-eviction")).must(t, 0)
	t.Logf("upgrade of host3: %s", r.took.Round(time.Second))
	if got := th.on(t, 3, "grep -c runsc /etc/containerd/config.toml"); strings.TrimSpace(got) == "0" {
		t.Errorf("host3 has not caught up")
	}
	if r = run(t, th.command(t, "classes.yaml", "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
}

func (th *thread) refersToMove(t *testing.T) {
	r := run(t, th.command(t, "cluster.yaml", "install")).must(t, 12)
	if !strings.Contains(r.stderr, "kkbundle endpoint move") {
		t.Errorf("want what to do instead, got\n%s", r.stderr)
	}
}

func (th *thread) moveEndpoint(t *testing.T) {
	killCommandAt(t, th.command(t, "cluster.yaml", "endpoint", "move", "--yes", "--json"), "node-endpoint")
	r := run(t, th.command(t, "cluster.yaml", "endpoint", "move", "--yes")).must(t, 0)
	t.Logf("endpoint move after a kill: %s\n%s", r.took.Round(time.Second), r.stderr)
	for _, number := range []int{2, 3} {
		if got := th.on(t, number,
			"grep -o 'https://.*' /etc/kubernetes/kubelet.conf; getent hosts api.lab.internal"); got != "https://api.lab.internal:6443\n127.0.0.1       api.lab.internal\n" {
			t.Errorf("host%d reaches the API server by\n%s", number, got)
		}
	}
	if proxy := th.kubectl(t,
		"-n kube-system get configmap kube-proxy -o jsonpath={.data.kubeconfig\\\\.conf}"); !strings.Contains(proxy,
		"https://127.0.0.1:6443") {
		t.Errorf("kube-proxy reaches the API server by\n%s", proxy)
	}
	if config := th.kubectl(t, "-n kube-system get configmap kubeadm-config -o yaml"); !strings.Contains(config,
		"controlPlaneEndpoint: api.lab.internal:6443") {
		t.Errorf("kubeadm's configuration:\n%s", config)
	}
	th.nodesAre(t, 1, "host1", "host2", "host3")
	for _, args := range [][]string{{"install"}, {"endpoint", "move", "--yes"}} {
		if r = run(t, th.command(t, "cluster.yaml", args...)).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
			t.Errorf("%q: want 0 changed, got\n%s", args, r.stderr)
		}
	}
}

func (th *thread) oneToThree(t *testing.T) {
	if err := th.lab.WriteInventory(th.inventory, hosts.Groups{
		"kube_control_plane": {1, 4, 5}, "kube_worker": {2, 3},
		"image_registry": {2},
	}); err != nil {
		t.Fatal(err)
	}
	r := run(t, th.command(t, "cluster.yaml", "nodes", "add", "--yes")).must(t, 0)
	t.Logf("two control planes added: %s", r.took.Round(time.Second))
	th.nodesAre(t, 1, "host1", "host2", "host3", "host4", "host5")
	if err := th.lab.Kill(t.Context(), th.lab.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	for _, number := range []int{2, 3} {
		th.waitFor(t, time.Minute, "the worker reaches an API server", number,
			"curl -fsS --max-time 5 --cacert /etc/kubernetes/pki/ca.crt https://api.lab.internal:6443/readyz")
	}
	th.nodesAre(t, 4, "host2", "host3", "host4", "host5")
}
