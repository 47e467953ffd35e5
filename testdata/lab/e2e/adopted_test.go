package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// An adopted is a cluster that kubeadm's own commands have made and kkbundle takes over.
type adopted struct {
	*upgraded
	files  string // the directory of its files
	before string // its state
}

// TestAdopted takes over a cluster that kubeadm's own commands have made, gives it back, takes it over again, adds a
// node, and upgrades it to the next minor release, while an application answers. The pod network is the test's own, and
// its packets are not counted.
func TestAdopted(t *testing.T) {
	own, to := software.OwnRelease(), software.KubernetesReleases()[software.Kubernetes137]
	th := &adopted{upgraded: &upgraded{moved: moved{
		name:  "1 control plane, 2 workers; made by kubeadm's own commands and taken over",
		hosts: 3, groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1, 2}},
		etcdType: manifest.EtcdInternal, over: []string{own.Version},
		from: side{KubernetesRelease: own, containerd: software.ContainerdVersion},
		to:   side{KubernetesRelease: to, containerd: software.ContainerdVersion},
	}}}
	th.thread = start(t, scenario{hosts: 3, noCluster: true, with: []software.Extra{software.Kubernetes137}})
	th.files, th.nodes = filepath.Join(th.dir, "site"), 2
	steps(t, []step{
		{"build, for the genuine programs and images", th.makeBundle},
		{"programs as a distribution has them", th.ownPrograms},
		{"kubeadm init and join", th.ownCluster},
		{"an application on both nodes", th.application},
		{"taken over: nothing that runs is changed", th.take},
		{"status, certificates and a backup of etcd", th.lookAfter},
		{"given back: no trace is left", th.giveBack},
		{"taken over again, as the files say", th.takeAgain},
		{"a node is added", th.add},
		{"upgraded, and the application answers", th.upgradeAdopted},
		{"a rerun changes nothing", th.again},
		{"it is not given back now", th.notGivenBack},
	})
}

// application runs pods on both nodes, which reach each other by routes.
func (th *adopted) application(t *testing.T) {
	image := filepath.Join(th.dir, "own-image.tar")
	th.connected(t, "extract", th.bundle(), "docker.io/lab/labapp:1", "--format", "docker-archive", "--platform",
		"linux/amd64", "-o", image, "--force").must(t, 0)
	for n := range 2 {
		th.feedFile(t, n+1, image, "ctr -n k8s.io images import -")
	}
	th.routes(t)
	// The hosts have no name server to forward to.
	th.on(t, 1, `export KUBECACHEDIR=/tmp/kubectl KUBECONFIG=/etc/kubernetes/admin.conf
		kubectl -n kube-system get configmap coredns -o yaml | sed '/forward \. /,/}/d' | kubectl apply -f - 2>/dev/null
		kubectl -n kube-system rollout restart deployment/coredns && kubectl -n kube-system rollout status deployment/coredns --timeout=2m`)
	th.kubectl(t, "taint nodes host1 node-role.kubernetes.io/control-plane-")
	th.apply(t, steady)
	th.kubectl(t, "-n steady rollout status deployment/steady --timeout=5m")
}

// routes leads each host to the pods of the others.
func (th *adopted) routes(t *testing.T) {
	for n := range th.nodes {
		for other := range th.nodes {
			if n != other {
				th.on(t, n+1, fmt.Sprintf("ip route replace 10.244.%d.0/24 via %s", other, th.lab.Hosts[other].Address))
			}
		}
	}
}

// own are the files, units and processes of the two nodes, and the objects in the API; without the copies of an
// adoption, and what etcd backup has brought.
func (th *adopted) own(t *testing.T) string {
	t.Helper()
	const line = `find /etc /root /home /srv /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /usr/bin -xdev -type f ! -path '*/.cache/*' ! -name .sudo_as_admin_successful -exec sha256sum {} + 2>/dev/null | sort -k 2
		pidof kubelet containerd; ip -br link | awk '!/^veth/ {print $1}' | sort; ip -4 route | sort`
	var b strings.Builder
	for line := range strings.Lines(th.on(t, 1, line) + th.on(t, 2, line) + th.snapshot(t)) {
		if !strings.Contains(line, " /usr/local/lib/kkbundle/before-adoption/") && !strings.Contains(line, " /usr/local/bin/etcd") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (th *adopted) traces(t *testing.T) string {
	t.Helper()
	const line = "ls -d /var/lib/kkbundle /usr/local/lib/kkbundle 2>/dev/null || true"
	return th.on(t, 1, line) + th.on(t, 2, line)
}

func (th *adopted) take(t *testing.T) {
	th.before = th.own(t)
	r := th.adopt(t, "--host", "root@"+th.lab.Hosts[0].Address, "-o", th.files, "--yes").must(t, 0)
	t.Logf("adopt --yes: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if after := th.own(t); after != th.before {
		t.Errorf("something changed:\n%s", difference(th.before, after))
	}
	r = th.adopt(t, "--host", "root@"+th.lab.Hosts[0].Address, "-o", th.files+"2").must(t, 12)
	if !strings.Contains(r.stderr, "it was adopted already") {
		t.Errorf("adopted twice: %s", r.stderr)
	}
	// What --host cannot know: the lab logs in with a key of its own.
	th.inventory = filepath.Join(th.files, "inventory.yaml")
	th.writeInventory(t, 1, 2)
}

// writeInventory puts some of the hosts into the inventory as workers.
func (th *adopted) writeInventory(t *testing.T, workers ...int) {
	t.Helper()
	groups := hosts.Groups{"kube_control_plane": {1}, "kube_worker": workers}
	if err := th.lab.WriteInventory(th.inventory, groups); err != nil {
		t.Fatal(err)
	}
}

// withFiles runs a command with the files of the adoption.
func (th *adopted) withFiles(t *testing.T, command string, flags ...string) result {
	t.Helper()
	args := append(strings.Fields(command), "-i", th.inventory, "-c", filepath.Join(th.files, "cluster.yaml"),
		"--known-hosts", th.lab.KnownHostsFile())
	return run(t, th.lab.Command(t.Context(), th.kkbundle, append(args, flags...)...))
}

func (th *adopted) lookAfter(t *testing.T) {
	r := th.withFiles(t, "status").must(t, 0)
	t.Logf("status\n%s", r.stdout)
	th.withFiles(t, "certs check").must(t, 0)
	file := filepath.Join(th.dir, "etcd.db")
	th.ownBundle(t)
	run(t, th.site(t, "etcd backup", "-o", file)).must(t, 0)
	if info, err := os.Stat(file); err != nil || info.Size() < 1<<20 {
		t.Errorf("the backup: %v, %v", info, err)
	}
	for _, cmd := range []*exec.Cmd{th.site(t, "reset", "--yes"), th.nodesCommand(t, "delete", "host2"), th.site(t, "install")} {
		if r := run(t, cmd).must(t, 12); !strings.Contains(r.stderr, "kkbundle upgrade") {
			t.Errorf("%s: programs of others are not spared: %s", cmd, r.stderr)
		}
	}
}

func (th *adopted) giveBack(t *testing.T) {
	r := th.adopt(t, "-o", th.files, "--undo", "--yes").must(t, 0)
	t.Logf("adopt --undo: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if after := th.own(t); after != th.before {
		t.Errorf("it is not as before:\n%s", difference(th.before, after))
	}
	if left := strings.TrimSpace(th.traces(t)); left != "" {
		t.Errorf("left: %s", left)
	}
}

func (th *adopted) takeAgain(t *testing.T) {
	before := th.own(t)
	th.adopt(t, "-o", th.files, "--yes").must(t, 0)
	if after := th.own(t); after != before {
		t.Errorf("something changed:\n%s", difference(before, after))
	}
}

// ownBundle builds a bundle for the cluster as it is.
func (th *adopted) ownBundle(t *testing.T) {
	t.Helper()
	cluster := filepath.Join(th.dir, "cluster.yaml")
	if err := os.WriteFile(cluster, []byte(read(t, th.files, "cluster.yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(th.bundle()); err != nil {
		t.Fatal(err)
	}
	th.makeBundle(t)
}

func (th *adopted) add(t *testing.T) { th.join(t) }

// join adds the third host.
func (th *adopted) join(t *testing.T, flags ...string) {
	t.Helper()
	th.writeInventory(t, 1, 2, 3)
	// The site's network comes to a node that has joined, as by a DaemonSet.
	cmd := th.lab.SSH(t.Context(), th.lab.Hosts[2], `until test -e /etc/kubernetes/kubelet.conf; do sleep 1; done
		mkdir -p /etc/cni/net.d && cat >/etc/cni/net.d/10-own.conflist`)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(ownNetwork, 2))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := run(t, th.nodesCommand(t, "add", flags...)).must(t, 0)
	t.Logf("nodes add: %s", r.took.Round(100*time.Millisecond))
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	th.nodes = 3
	th.routes(t)
	th.nodesAre(t, 1, "host1", "host2", "host3")
}

func (th *adopted) upgradeAdopted(t *testing.T) {
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"), "version: "+th.from.Version,
		"version: "+th.to.Version+"\n  upgradeFrom: "+th.from.Version)
	rewrite(t, filepath.Join(th.dir, "manifest.yaml"), "version: 1.0.0", "version: 1.1.0")
	th.next = filepath.Join(th.dir, "lab-1.1.0.kkb")
	th.connected(t, "build", "-o", th.next, "manifest.yaml").must(t, 0)
	r := run(t, th.withNext(t, "upgrade", "--plan")).must(t, 0)
	t.Logf("the plan\n%s", r.stderr)
	th.move(t, results.Move{From: th.from.Version, To: th.to.Version}, []kill{{"kubelet", 2, "true"}},
		func(flags ...string) *exec.Cmd { return th.withNext(t, "upgrade", flags...) })
	if nodes := th.kubectl(t, "get nodes --no-headers"); strings.Count(nodes, " Ready ") != 3 ||
		strings.Count(nodes, th.to.Version) != 3 {
		t.Errorf("want 3 nodes that are Ready, got\n%s", nodes)
	}
	if m := th.moves[len(th.moves)-1]; m.Missed != 0 {
		t.Errorf("%d of %d questions were missed", m.Missed, m.Asked)
	}
	for n := range 3 {
		th.on(t, n+1, "pgrep -f '^/usr/local/bin/containerd' && pgrep -f '^/usr/local/bin/kubelet '")
	}
}

func (th *adopted) notGivenBack(t *testing.T) {
	r := th.adopt(t, "-o", th.files, "--undo", "--yes").must(t, 12)
	if !strings.Contains(r.stderr, "nothing was changed") {
		t.Errorf("%s", r.stderr)
	}
}
