package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

const registryVIP = "10.250.0.90"

// TestRegistryPair installs two registry hosts with a shared address, and loses one of them. keepalived is Debian's:
// the bundle brings it, so the machine that builds needs a way to deb.debian.org.
func TestRegistryPair(t *testing.T) {
	th := start(t, scenario{
		hosts:  3,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {3}, "image_registry": {2, 3}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "imageRegistry: {type: registry}",
				"imageRegistry: {type: registry, vip: "+registryVIP+"}")
			rewrite(t, filepath.Join(dir, "manifest.yaml"), "images:\n",
				"packages:\n  - {distribution: debian/12}\nimages:\n")
		},
	})
	steps(t, []step{
		{"two registry hosts with the same images", th.installPair},
		{"a rerun changes nothing", th.rerunHA},
		{"the host with the address is lost, and pods are pulled", th.loseRegistry},
		{"a run that is not about the lost host", th.limitedPair},
		{"the lost host comes back, and the address stays", th.registryBack},
		{"a registry that does not answer loses the address", th.stopRegistry},
		{"reset takes the address away", func(t *testing.T) { th.resetReplicas(t, 2, 3) }},
	})
}

// TestRegistrySpread installs a cluster with three registry hosts that share an address, whose nodes each ask another
// one first.
func TestRegistrySpread(t *testing.T) {
	th := start(t, scenario{
		hosts:  3,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {2, 3}, "image_registry": {1, 2, 3}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "imageRegistry: {type: registry}",
				"imageRegistry: {type: registry, vip: "+registryVIP+"}\nimageDistribution: {registries: spread}")
			rewrite(t, filepath.Join(dir, "manifest.yaml"), "images:\n",
				"packages:\n  - {distribution: debian/12}\nimages:\n")
		},
	})
	th.makeBundle(t)
	steps(t, []step{
		{"three registry hosts", func(t *testing.T) {
			r := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("install: %s", r.took.Round(100*time.Millisecond))
			th.nodesAre(t, 1, "host1", "host2", "host3")
			if got := th.registryHolders(t, 1, 2, 3); len(got) != 1 {
				t.Errorf("the address is had by hosts %v", got)
			}
		}},
		{"each node asks the host that comes first in its list", th.firstRegistries},
		{"a rerun changes nothing", th.rerunHA},
		{"a registry is lost, and pods are pulled", th.loseReplica},
		{"reset takes the address away", func(t *testing.T) { th.resetReplicas(t, 1, 2, 3) }},
		{"no packet left the hosts' network", th.packets},
	})
}

// replicas returns the numbers of the registry hosts that a host asks, in its order.
func (th *thread) replicas(t *testing.T, number int) []int {
	t.Helper()
	out := th.on(t, number, `sed -n 's|^\[host."https://\([0-9.]*\):5000/v2/[^"]*"\]$|\1|p' /etc/containerd/certs.d/docker.io/hosts.toml`)
	var order []int
	for _, address := range strings.Fields(out) {
		for i, h := range th.lab.Hosts {
			if h.Address == address {
				order = append(order, i+1)
			}
		}
	}
	if len(order) != len(th.lab.Hosts) || !strings.HasSuffix(strings.TrimSpace(out), registryVIP) {
		t.Fatalf("host%d asks\n%s", number, out)
	}
	return order
}

// manifestsAsked returns how often a registry host was asked what the application's tag is.
func (th *thread) manifestsAsked(t *testing.T, number int) int {
	t.Helper()
	out := th.on(t, number, `journalctl --unit=kkbundle-registry --no-pager | grep -c '/v2/docker.io/lab/labapp/manifests/1'; true`)
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (th *thread) firstRegistries(t *testing.T) {
	for node := range len(th.lab.Hosts) {
		order := th.replicas(t, node+1)
		before := map[int]int{}
		for _, n := range order {
			before[n] = th.manifestsAsked(t, n)
		}
		th.pull(t, th.lab.Hosts[node].Name)
		for i, n := range order {
			if asked := th.manifestsAsked(t, n) > before[n]; asked != (i == 0) {
				t.Errorf("host%d asks hosts %v; host%d was asked: %t", node+1, order, n, asked)
			}
		}
		t.Logf("host%d asks hosts %v", node+1, order)
	}
}

// loseReplica stops the registry that the control plane asks first.
func (th *thread) loseReplica(t *testing.T) {
	first := th.replicas(t, 1)[0]
	th.on(t, first, "systemctl stop kkbundle-registry")
	begin := time.Now()
	th.pull(t, "host1")
	t.Logf("with host%d's registry stopped: %s", first, time.Since(begin).Round(100*time.Millisecond))
	r := run(t, th.site(t, "install")).must(t, 0)
	if !strings.Contains(r.stderr, "1 changed") {
		t.Errorf("want the registry started and nothing else changed, got\n%s", r.stderr)
	}
}

// registryHolders are the numbers of the hosts that have the shared address.
func (th *thread) registryHolders(t *testing.T, numbers ...int) []int {
	t.Helper()
	var list []int
	for _, n := range numbers {
		if strings.TrimSpace(th.on(t, n, "ip -o -4 addr show to "+registryVIP+"/32")) != "" {
			list = append(list, n)
		}
	}
	return list
}

func (th *thread) installPair(t *testing.T) {
	th.makeBundle(t)
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install: %s", r.took.Round(100*time.Millisecond))
	th.nodesAre(t, 1, "host1", "host3")
	if got := th.registryHolders(t, 2, 3); len(got) != 1 {
		t.Errorf("the address is had by hosts %v", got)
	}
	const digests = "cd /var/lib/kkbundle/registry && find . -path '*/_manifests/tags/*/current/link' | sort | xargs grep -H ."
	two, three := th.on(t, 2, digests), th.on(t, 3, digests)
	if two != three || strings.Count(two, "sha256:") < 10 {
		t.Errorf("the registries differ, or are empty:\n%s\n%s", two, three)
	}
	if got := th.on(t, 1, "grep -l 'https://"+registryVIP+
		":5000' /etc/containerd/certs.d/*/hosts.toml | wc -l; grep -L 'https://"+registryVIP+
		":5000' /etc/containerd/certs.d/*/hosts.toml"); strings.TrimSpace(got) == "0" || strings.Contains(got, "/") {
		t.Errorf("host1 pulls from elsewhere:\n%s", got)
	}
}

// pull runs a pod on a host that has to ask the registry for its image, whatever the host has.
func (th *thread) pull(t *testing.T, host string) {
	t.Helper()
	begin := time.Now()
	th.kubectl(t, `run pulls --image=docker.io/lab/labapp:1 --image-pull-policy=Always --overrides='{"spec":{"nodeName":"`+host+`"}}'`)
	th.kubectl(t, "wait pod pulls --for=condition=Ready --timeout=90s")
	t.Logf("a pod on %s runs after %s", host, time.Since(begin).Round(100*time.Millisecond))
	th.kubectl(t, "delete pod pulls --now")
}

// loseRegistry pulls the plug of the registry host that has the address; where that is the worker, of the other one
// after the address was moved there, because the worker is needed.
func (th *thread) loseRegistry(t *testing.T) {
	th.pull(t, "host1")
	if th.registryHolders(t, 2, 3)[0] == 3 {
		th.on(t, 3, "systemctl restart kkbundle-registry-address")
		eventually(t, "the address moves to host2", func() bool { return len(th.registryHolders(t, 2)) == 1 })
	}
	if err := th.lab.Kill(t.Context(), th.lab.Hosts[1]); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	eventually(t, "the address moves to host3", func() bool { return len(th.registryHolders(t, 3)) == 1 })
	t.Logf("the address has moved after %s", time.Since(begin).Round(100*time.Millisecond))
	th.pull(t, "host1")
	th.kubectl(t, "-n web scale deployment web --replicas=4")
	th.kubectl(t, "-n web rollout status deployment web --timeout=60s")
}

func (th *thread) limitedPair(t *testing.T) {
	if r := run(t, th.site(t, "install")); r.code == 0 || !strings.Contains(r.stderr, "host2") {
		t.Errorf("an install of all hosts without host2: exit code %d\n%s", r.code, r.stderr)
	}
	r := run(t, th.site(t, "install", "--limit", "host1")).must(t, 0)
	if !strings.Contains(r.stderr, "host2") || !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want a word about host2 and 0 changed, got\n%s", r.stderr)
	}
}

func (th *thread) registryBack(t *testing.T) {
	if err := th.lab.Start(t.Context(), th.lab.Hosts[1]); err != nil {
		t.Fatal(err)
	}
	th.waitFor(t, time.Minute, "host2's registry is back", 2,
		"systemctl is-active kkbundle-registry kkbundle-registry-address")
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
	if got := th.registryHolders(t, 2, 3); len(got) != 1 || got[0] != 3 {
		t.Errorf("the address is had by hosts %v, and was host3's", got)
	}
}

// stopRegistry: the host is well, and what it serves is not.
func (th *thread) stopRegistry(t *testing.T) {
	th.on(t, 3, "systemctl stop kkbundle-registry")
	begin := time.Now()
	eventually(t, "the address moves to host2",
		func() bool { return len(th.registryHolders(t, 2)) == 1 && len(th.registryHolders(t, 3)) == 0 })
	t.Logf("the address has moved after %s", time.Since(begin).Round(100*time.Millisecond))
	th.pull(t, "host1")
	r := run(t, th.site(t, "install")).must(t, 0)
	if !strings.Contains(r.stderr, "1 changed") {
		t.Errorf("want the registry started and nothing else changed, got\n%s", r.stderr)
	}
}

// resetReplicas looks at registry hosts after a reset; the packages stay there.
func (th *thread) resetReplicas(t *testing.T, numbers ...int) {
	run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	for _, n := range numbers {
		if left := th.on(t, n, "ip -o -4 addr show to "+registryVIP+
			"/32; ls -d /etc/kkbundle /var/lib/kkbundle /etc/systemd/system/kkbundle-* 2>/dev/null; pgrep -a keepalived || true"); left != "" {
			t.Errorf("reset leaves on host%d:\n%s", n, left)
		}
	}
}

// TestRegistryPrograms installs a cluster whose hosts take programs from the registry, and lets a host that lost one of
// them have it from kkbundle while it does not reach the registry.
func TestRegistryPrograms(t *testing.T) {
	th := start(t, scenario{
		hosts:  4,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {3, 4}, "image_registry": {2}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "imageRegistry: {type: registry}",
				"imageRegistry: {type: registry}\nimageDistribution: {programs: registry}")
		},
	})
	th.makeBundle(t)
	steps(t, []step{
		{"programs come from the registry", func(t *testing.T) {
			r := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("install: %s", r.took.Round(100*time.Millisecond))
			th.nodesAre(t, 1, "host1", "host3", "host4")
			log := th.installLog(t)
			for _, host := range []string{"host1", "host3", "host4"} {
				pulled, sent := th.programs(log, host)
				t.Logf("%s took from the registry: %s", host, strings.Join(pulled, ", "))
				if len(pulled) < 3 || len(sent) > 0 {
					t.Errorf("%s took %q from the registry, and was sent %q", host, pulled, sent)
				}
			}
		}},
		{"a rerun changes nothing", th.rerunHA},
		{"cut off from the registry, a host is sent what it lacks", func(t *testing.T) {
			before := len(th.installLog(t))
			th.on(t, 4, "rm /usr/local/bin/kubeadm; iptables -I OUTPUT -p tcp --dport 5000 -j DROP")
			run(t, th.site(t, "install", "--limit", "host4", "--force")).must(t, 0) // the precheck refuses such a host
			th.on(t, 4, "iptables -D OUTPUT -p tcp --dport 5000 -j DROP")
			pulled, sent := th.programs(th.installLog(t)[before:], "host4")
			if len(sent) == 0 || len(pulled) > 0 {
				t.Errorf("host4 took %q from the registry, and was sent %q", pulled, sent)
			}
			th.on(t, 4, "kubeadm version -o short")
		}},
		{"no packet left the hosts' network", th.packets},
	})
}

// installLog returns install.log.
func (th *thread) installLog(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(strings.TrimSuffix(th.lab.InventoryFile(), ".yaml")+".work", "install.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

// programs returns what a log says of the files that a host took from the registry, and of those that it was sent.
func (th *thread) programs(log, host string) (pulled, sent []string) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, " "+host+" ") {
			continue
		}
		if _, item, ok := strings.Cut(line, "opened in the bundle: file "); ok {
			sent = append(sent, strings.TrimSpace(item))
		}
		if _, item, ok := strings.Cut(line, "from the registry "); ok && !strings.Contains(line, "not from the registry") {
			pulled = append(pulled, strings.TrimSpace(item))
		}
	}
	return pulled, sent
}
