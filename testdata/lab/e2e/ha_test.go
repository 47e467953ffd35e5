package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestHA loses the first of three control planes, replaces it, and restores etcd. Both workers have a haproxy of
// their own. The registry is on a worker. The sixth host replaces the first.
func TestHA(t *testing.T) {
	th := start(t, scenario{
		hosts:  6,
		groups: hosts.Groups{"kube_control_plane": {1, 2, 3}, "kube_worker": {4, 5}, "image_registry": {4}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}",
				"etcd: {type: internal, backup: {every: 30m, keep: 2}}\ncontrolPlaneEndpoint: {type: haproxy}")
		},
	})
	steps(t, []step{
		{"three control planes and two workers", th.installHA},
		{"a rerun changes nothing", th.rerunHA},
		{"etcd gets another quota", th.quotaHA},
		{"a control plane is lost, and nodes and kubectl go on", th.loseControlPlane},
		{"another takes its place", th.replaceControlPlane},
		{"etcd is restored from a backup", th.restoreEtcd},
	})
}

func (th *thread) installHA(t *testing.T) {
	th.makeBundle(t)
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install: %s", r.took.Round(100*time.Millisecond))
	th.nodesAre(t, 2, "host1", "host2", "host3", "host4", "host5")
	members := th.on(t, 1, etcdctl("member list"))
	if strings.Count(members, "started") != 3 {
		t.Errorf("etcd's members:\n%s", members)
	}
	for _, worker := range []int{4, 5} {
		if got := th.on(t, worker,
			"grep -o 'server: .*' /etc/kubernetes/kubelet.conf; getent hosts api.lab.internal; ss -ltn | grep -c 127.0.0.1:6443"); got != "server: https://api.lab.internal:6443\n127.0.0.1       api.lab.internal\n1\n" {
			t.Errorf("host%d reaches the API server by\n%s", worker, got)
		}
	}
}

func (th *thread) rerunHA(t *testing.T) {
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("rerun: %s", r.took.Round(100*time.Millisecond))
	if !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
}

// quotaHA raises the quota of kubeadm's etcd. The control plane that joins later gets it, too.
func (th *thread) quotaHA(t *testing.T) {
	th.raiseQuota(t, "pgrep --full '^etcd .*--quota-backend-bytes=3221225472'", 1, 2, 3)
}

// loseControlPlane pulls the plug of the first control plane, which made the cluster and which everything was joined
// through.
func (th *thread) loseControlPlane(t *testing.T) {
	if err := th.lab.Kill(t.Context(), th.lab.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for _, number := range []int{4, 5} { // as the kubelet does it, through the worker's own proxy
		th.waitFor(t, time.Minute, fmt.Sprintf("host%d reaches an API server", number), number,
			"curl -fsS --max-time 5 --cacert /etc/kubernetes/pki/ca.crt https://api.lab.internal:6443/readyz")
	}
	t.Logf("the workers have an API server again after %s", time.Since(begin).Round(100*time.Millisecond))
	// The cluster notices that the host is gone, and of no other that it were.
	th.waitFor(t, 2*time.Minute, "host1 is missed", 2,
		"kubectl --kubeconfig /etc/kubernetes/admin.conf get node host1 --no-headers | grep NotReady")
	now := strings.TrimSpace(th.on(t, 2, "date -u +%Y-%m-%dT%H:%M:%S"))
	for _, name := range []string{"host2", "host3", "host4", "host5"} {
		th.waitFor(t, time.Minute, name+" still says that it lives", 2,
			"kubectl --kubeconfig /etc/kubernetes/admin.conf -n kube-node-lease get lease "+name+
				" -o jsonpath='{.spec.renewTime}' | awk '{exit !($0 > \""+now+"\")}'")
	}
	th.nodesAre(t, 2, "host2", "host3", "host4", "host5")
	r := run(t, th.site(t, "install", "--limit", "host5")).must(t, 0)
	t.Logf("a run without it: %s", r.took.Round(100*time.Millisecond))
	// admin.conf is now another control plane's, which keeps no proofs yet: Secrets are rewritten, and the network
	// and joining are proven anew.
	if !strings.Contains(r.stderr, "host1") || !strings.Contains(r.stderr, "4 changed") {
		t.Errorf("want a word about host1, and nothing changed but admin-conf, encrypt-secrets, verify-network and verify-join, got\n%s", r.stderr)
	}
}

// replaceControlPlane takes the lost one out of cluster and inventory, and puts another host in, which is interrupted
// when etcd has heard of it.
func (th *thread) replaceControlPlane(t *testing.T) {
	r := run(t, th.nodesCommand(t, "delete", "host2")).must(t, 12)
	if !strings.Contains(r.stderr, "only 1 of the 2 remaining etcd members would be healthy") {
		t.Errorf("want that etcd cannot spare it, got\n%s", r.stderr)
	}
	r = run(t, th.nodesCommand(t, "delete", "--unreachable", "host1")).must(t, 0)
	t.Logf("the lost one deleted: %s", r.took.Round(100*time.Millisecond))
	if members := th.on(t, 2, etcdctl("member list")); strings.Contains(members, "host1") {
		t.Errorf("etcd still has it:\n%s", members)
	}
	groups := hosts.Groups{"kube_control_plane": {6, 2, 3}, "kube_worker": {4, 5}, "image_registry": {4}}
	if err := th.lab.WriteInventory(th.inventory, groups); err != nil {
		t.Fatal(err)
	}
	th.killAddition(t, th.lab.Hosts[5].Address)
	r = run(t, th.nodesCommand(t, "add")).must(t, 0)
	t.Logf("another added: %s", r.took.Round(100*time.Millisecond))
	if members := th.on(t, 2, etcdctl("member list")); strings.Count(members, "started") != 3 ||
		strings.Count(members, "\n") != 3 {
		t.Errorf("etcd's members:\n%s", members)
	}
	th.on(t, 6, "pgrep --full '^etcd .*--quota-backend-bytes=3221225472'")
	th.admin = 6
	th.nodesAre(t, 6, "host2", "host3", "host4", "host5", "host6")
	for _, worker := range []int{4, 5} {
		config := th.on(t, worker, "cat /etc/kkbundle/haproxy.cfg")
		if strings.Contains(config, "host1") || !strings.Contains(config, "server host6 10.250.0.16:6443") {
			t.Errorf("host%d's proxy has not followed:\n%s", worker, config)
		}
	}
	r = run(t, th.site(t, "install")).must(t, 0)
	if !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
}

// killAddition runs nodes add and ends it without a word (SIGKILL) as soon as etcd has a member at the address.
func (th *thread) killAddition(t *testing.T, address string) {
	t.Helper()
	cmd := th.nodesCommand(t, "add")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		// it fails for a moment now and then
		members, _ := th.lab.SSH(t.Context(), th.lab.Hosts[1], etcdctl("member list")).Output()
		if strings.Contains(string(members), "https://"+address+":2380") {
			_ = cmd.Process.Kill()
			if err := <-ended; err == nil {
				t.Fatalf("the addition was not killed\n%s", out.String())
			}
			return
		}
		select {
		case err := <-ended:
			t.Fatalf("the addition ended before etcd heard of the host: %v\n%s", err, out.String())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// nodesCommand is kkbundle nodes in the hosts' network.
func (th *thread) nodesCommand(t *testing.T, command string, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"nodes", command, "-i", th.inventory, "--known-hosts", th.lab.KnownHostsFile(), "--yes"},
		args...)
	return th.lab.Command(t.Context(), th.kkbundle, append(args, th.bundle())...)
}

// etcdctl is a shell line that asks the host's own etcd, in its container.
func etcdctl(args string) string {
	return `ctr -n k8s.io task exec --exec-id e2e-$$ $(ctr -n k8s.io container ls -q 'labels."io.kubernetes.container.name"==etcd' | while read c; do
		ctr -n k8s.io task ls | grep -q "$c.*RUNNING" && echo $c; done | head -1) etcdctl --cacert /etc/kubernetes/pki/etcd/ca.crt \
		--cert /etc/kubernetes/pki/etcd/server.crt --key /etc/kubernetes/pki/etcd/server.key ` + args
}

// nodesAre waits until these nodes, and no others but lost ones, are ready.
func (th *thread) nodesAre(t *testing.T, on int, want ...string) {
	t.Helper()
	var ready []string
	eventually(t, "ready: "+strings.Join(want, ", "), func() bool {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					Conditions []struct{ Type, Status string }
				}
			}
		}
		if err := json.Unmarshal([]byte(th.on(t, on,
			"KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes -o json")),
			&list); err != nil {
			t.Fatal(err)
		}
		ready = nil
		for _, n := range list.Items {
			for _, c := range n.Status.Conditions {
				if c.Type == "Ready" && c.Status == "True" {
					ready = append(ready, n.Metadata.Name)
				}
			}
		}
		slices.Sort(ready)
		return slices.Equal(ready, want)
	})
}

// waitFor runs a shell line on a host until it succeeds.
func (th *thread) waitFor(t *testing.T, limit time.Duration, what string, number int, line string) {
	t.Helper()
	h, err := th.lab.Host(number)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		var out []byte
		if out, err = th.lab.SSH(ctx, h, line).CombinedOutput(); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v\n%s", what, limit, err, out)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// vip is an address in the hosts' network that no host has.
const vip = "10.250.0.100"

// TestHAVIP installs a control plane behind an address that kube-vip announces. One host is enough for what is ours:
// that kubeadm init gets through it, and what is left behind.
func TestHAVIP(t *testing.T) {
	th := start(t, vipScenario(1, "etcd: {type: internal}",
		hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}, "image_registry": {1}}))
	th.makeBundle(t)
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install: %s", r.took.Round(100*time.Millisecond))
	got := th.on(t, 1, "ip -o -4 addr show to "+vip+
		"/32 | wc -l; grep -h server: /etc/kubernetes/admin.conf; grep -c super-admin /etc/kubernetes/manifests/kube-vip.yaml || true")
	if want := "1\n    server: https://" + vip + ":6443\n0\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if holder := th.vipHolder(t, 1); holder != "host1" {
		t.Errorf("the address is %q's", holder)
	}
	if r = run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
	run(t, th.site(t, "reset", "--yes")).must(t, 0)
	if left := th.on(t, 1, "ip -o -4 addr show to "+vip+"/32"); left != "" {
		t.Errorf("reset leaves %s", left)
	}
}

// vipScenario is a cluster behind an address of kube-vip, whose program has to be given.
func vipScenario(number int, etcd string, groups hosts.Groups) scenario {
	return scenario{
		hosts: number, groups: groups,
		with: []software.Extra{software.KubeVIP}, given: []string{software.KubeVIPProgram},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}", etcd+
				"\ncontrolPlaneEndpoint: {type: kube-vip, address: "+vip+"}")
			rewrite(t, filepath.Join(dir, "web.yaml"), "replicas: 2", "replicas: 1")
		},
	}
}

// vipHolder is the node that the lease names, asked on a control plane.
func (th *thread) vipHolder(t *testing.T, number int) string {
	t.Helper()
	return th.on(t, number, "kubectl --kubeconfig /etc/kubernetes/admin.conf -n kube-system get lease plndr-cp-lock"+
		" -o jsonpath={.spec.holderIdentity}")
}

// TestHAVIPMoves loses the one of three control planes that holds kube-vip's address; another one takes it.
func TestHAVIPMoves(t *testing.T) {
	vipMoves(t, "etcd: {type: internal}", hosts.Groups{
		"kube_control_plane": {1, 2, 3}, "kube_worker": {3}, "image_registry": {3},
	})
}

// TestHAVIPMovesOfTwo loses the one of two control planes that holds kube-vip's address; the other one takes it.
// Their etcd has a third member, because etcd of two members cannot lose one.
func TestHAVIPMovesOfTwo(t *testing.T) {
	vipMoves(t, "etcd: {type: external}", hosts.Groups{
		"kube_control_plane": {1, 2}, "kube_worker": {3},
		"etcd": {1, 2, 3}, "image_registry": {3},
	})
}

// vipMoves installs three nodes and loses the control plane that holds the address.
func vipMoves(t *testing.T, etcd string, groups hosts.Groups) {
	t.Helper()
	th := start(t, vipScenario(3, etcd, groups))
	th.makeBundle(t)
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install: %s", r.took.Round(100*time.Millisecond))
	th.nodesAre(t, 1, "host1", "host2", "host3")
	first := th.vipHolder(t, 1)
	if first != "host1" && first != "host2" {
		t.Fatalf("the address is %q's; this test loses host1 or host2", first)
	}
	lost, other := 1, 2
	if first == "host2" {
		lost, other = 2, 1
	}
	if err := th.lab.Kill(t.Context(), th.lab.Hosts[lost-1]); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	th.waitFor(t, 2*time.Minute, "an API server answers at the address again", 3,
		"curl -fsS --max-time 5 --cacert /etc/kubernetes/pki/ca.crt https://"+vip+":6443/readyz")
	t.Logf("the address answers again after %s", time.Since(begin).Round(100*time.Millisecond))
	th.waitFor(t, 2*time.Minute, first+" is missed", other,
		"kubectl --kubeconfig /etc/kubernetes/admin.conf get node "+first+" --no-headers | grep NotReady")
	if now := th.vipHolder(t, other); now == first || now == "" {
		t.Errorf("the address is still %q's", now)
	}
	th.nodesAre(t, other, th.lab.Hosts[other-1].Name, "host3")
}
