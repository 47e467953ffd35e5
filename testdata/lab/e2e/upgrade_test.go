package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// An upgraded is the lab that the subtests of TestUpgrade share.
type upgraded struct {
	*thread
	next    string // the bundle of the next release
	release software.KubernetesRelease
}

// TestUpgrade upgrades a cluster of two nodes to the next minor release while an application answers. Both nodes run pods. Each
// release is compiled from its own sources, with its own etcd and CoreDNS.
func TestUpgrade(t *testing.T) {
	const to = software.Kubernetes135
	th := &upgraded{release: software.KubernetesReleases()[to], thread: start(t, scenario{hosts: 2, with: []software.Extra{to}, groups: hosts.Groups{
		"kube_control_plane": {1}, "etcd": {1}, "image_registry": {1}, "kube_worker": {1, 2},
	}})}
	steps(t, []step{
		{"two bundles, one cluster", th.begin},
		{"install says that it is an upgrade", th.notInstall},
		{"an unhealthy cluster is refused", th.refused},
		{"killed, continued, upgraded, and the application answers", th.upgrade},
		{"everything is of the next version", th.verify},
		{"a rerun changes nothing", th.again},
		{"no packet left the hosts' network", th.packets},
	})
}

func (th *upgraded) begin(t *testing.T) {
	th.makeBundle(t)
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"),
		software.KubernetesVersion, th.release.Version, "kubelet: {failCgroupV1: false}", "kubelet: {failCgroupV1: false}\n  maxPods: 120")
	rewrite(t, filepath.Join(th.dir, "manifest.yaml"), "version: 1.0.0", "version: 1.1.0")
	th.next = filepath.Join(th.dir, "lab-1.1.0.kkb")
	th.connected(t, "build", "-o", th.next, "manifest.yaml").must(t, 0)
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install of %s: %s", software.KubernetesVersion, r.took.Round(time.Second))
	th.apply(t, steady)
	th.kubectl(t, "-n steady rollout status deployment/steady --timeout=2m")
}

// steady is an application whose pods are told to go in time, so that it can answer while nodes are drained.
const steady = `
apiVersion: v1
kind: Namespace
metadata: {name: steady}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: steady, namespace: steady}
spec:
  replicas: 2
  selector: {matchLabels: {app: steady}}
  template:
    metadata: {labels: {app: steady}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
        - name: labapp
          image: docker.io/lab/labapp:1
          readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
          lifecycle: {preStop: {sleep: {seconds: 5}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: steady, namespace: steady}
spec: {minAvailable: 1, selector: {matchLabels: {app: steady}}}
---
apiVersion: v1
kind: Service
metadata: {name: steady, namespace: steady}
spec:
  type: NodePort
  selector: {app: steady}
  ports: [{port: 80, targetPort: 8080, nodePort: 30081}]
`

func (th *upgraded) apply(t *testing.T, objects string) {
	t.Helper()
	cmd := th.lab.SSH(t.Context(), th.lab.Hosts[0], "kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f -")
	cmd.Stdin = strings.NewReader(objects)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// with is a kkbundle command with the next bundle.
func (th *upgraded) with(t *testing.T, command string, flags ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{command, "-i", th.inventory, "--known-hosts", th.lab.KnownHostsFile()}, flags...)
	return th.lab.Command(t.Context(), th.kkbundle, append(args, th.next)...)
}

func (th *upgraded) notInstall(t *testing.T) {
	r := run(t, th.with(t, "install")).must(t, 12)
	if !strings.Contains(r.stderr, "kkbundle upgrade") {
		t.Errorf("want what to do instead, got\n%s", r.stderr)
	}
}

// refused plants what would hold up drains for ever. A plan is shown all the same, and nothing is changed.
func (th *upgraded) refused(t *testing.T) {
	th.kubectl(t, "-n steady create poddisruptionbudget never --selector=app=steady --max-unavailable=0")
	th.kubectl(t, "-n steady run alone --image=docker.io/lab/labapp:1 --command -- /labapp sleep")
	th.kubectl(t, "-n steady wait --for=condition=Ready pod/alone --timeout=1m")
	eventually(t, "the budget knows its pods", func() bool {
		return strings.TrimSpace(th.kubectl(t, "-n steady get poddisruptionbudget never -o jsonpath={.status.desiredHealthy}")) == "2"
	})
	before := th.snapshot(t)
	r := run(t, th.with(t, "upgrade", "--yes")).must(t, 12)
	for _, want := range []string{
		software.KubernetesVersion + " -> " + th.release.Version, "settings that change: kubernetes.maxPods",
		"PodDisruptionBudget steady/never wants 2 of its 2 pods", "pod steady/alone on",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	th.kubectl(t, "-n steady delete poddisruptionbudget/never pod/alone")
	r = run(t, th.with(t, "upgrade", "--dry-run")).must(t, 0)
	t.Logf("refused and dry run: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if after := th.snapshot(t); after != before {
		t.Errorf("a refused upgrade and a dry run changed something:\n%s", difference(before, after))
	}
}

// killUpgrade runs an upgrade and ends it without a word once the task has begun on the host and the line is true there.
func (th *upgraded) killUpgrade(t *testing.T, task string, number int, line string) {
	t.Helper()
	h := th.lab.Hosts[number-1]
	cmd := th.with(t, "upgrade", "--yes", "--json")
	var errs bytes.Buffer
	killed := make(chan struct{})
	watched := false
	cmd.Stderr = io.MultiWriter(&errs, lines(func(data []byte) {
		var e struct{ Task, State, Host string }
		if json.Unmarshal(data, &e) != nil || e.Task != task || e.Host != h.Name || e.State != "started" || watched {
			return
		}
		watched = true
		go func() {
			defer close(killed)
			for th.lab.SSH(t.Context(), h, line).Run() != nil && t.Context().Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
			_ = cmd.Process.Kill()
		}()
	}))
	begin := time.Now()
	err := cmd.Run()
	if !watched || cmd.ProcessState.ExitCode() >= 0 {
		t.Fatalf("the upgrade ended by itself, before %s on %s: %v\n%s", task, h.Name, err, errs.String())
	}
	<-killed
	t.Logf("killed in %s on %s after %s", task, h.Name, time.Since(begin).Round(time.Second))
}

func (th *upgraded) upgrade(t *testing.T) {
	stop := th.watch(t)
	begin := time.Now()
	th.killUpgrade(t, "control-plane", 1, "ls -d /etc/kubernetes/tmp/kubeadm-backup-manifests*")
	th.killUpgrade(t, "kubelet", 2, "true")
	r := run(t, th.with(t, "upgrade", "--yes")).must(t, 0)
	t.Logf("the third run took %s, all three %s\n%s", r.took.Round(time.Second), time.Since(begin).Round(time.Second), r.stderr)
	stop()
	work := strings.TrimSuffix(th.inventory, ".yaml") + ".work"
	saved, err := filepath.Glob(filepath.Join(work, "upgrade", "*-"+software.KubernetesVersion+"-to-"+th.release.Version, "etcd.db"))
	if err != nil || len(saved) != 1 {
		t.Errorf("want one snapshot of etcd from before, got %q, %v", saved, err)
	}
	for _, file := range saved {
		if info, err := os.Stat(file); err != nil || info.Size() < 1<<20 || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
}

// watch asks the application all the time, by both nodes in turn, until stop is called, which says for how long it did not
// answer and fails the test if that was longer than a client that tries again bears.
func (th *upgraded) watch(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	const script = `while :; do for h; do
		if curl -s -o /dev/null --max-time 1 "http://$h:30081/"; then echo "$h $(date +%s%3N) ok"; else echo "$h $(date +%s%3N) failed"; fi
	done; sleep 0.1; done`
	cmd := th.lab.Command(ctx, "sh", "-c", script, "sh", th.lab.Hosts[0].Address, th.lab.Hosts[1].Address)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	type gap struct {
		last          int64
		asked, failed int
		longest       time.Duration
	}
	seen := map[string]*gap{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			fields := strings.Fields(s.Text())
			if len(fields) != 3 {
				continue
			}
			now, _ := strconv.ParseInt(fields[1], 10, 64)
			g := seen[fields[0]]
			if g == nil {
				g = &gap{last: now}
				seen[fields[0]] = g
			}
			g.asked++
			if fields[2] != "ok" {
				g.failed++
				continue
			}
			g.longest = max(g.longest, time.Duration(now-g.last)*time.Millisecond)
			g.last = now
		}
	}()
	return func() {
		cancel()
		<-read
		_ = cmd.Wait() // it was told to end
		for address, g := range seen {
			t.Logf("by %s: %d of %d questions were not answered, the longest time between two answers was %s", address, g.failed, g.asked, g.longest)
			if g.longest > 15*time.Second {
				t.Errorf("by %s the application did not answer for %s", address, g.longest)
			}
		}
		if len(seen) != 2 {
			t.Errorf("the application was asked by %d nodes, not 2", len(seen))
		}
	}
}

func (th *upgraded) verify(t *testing.T) {
	nodes := th.kubectl(t, "get nodes --no-headers")
	if strings.Count(nodes, " Ready ") != 2 || strings.Count(nodes, th.release.Version) != 2 || strings.Contains(nodes, "SchedulingDisabled") {
		t.Errorf("want two nodes that are Ready, got\n%s", nodes)
	}
	if version := th.kubectl(t, "get --raw=/version"); !strings.Contains(version, th.release.Version) {
		t.Errorf("the API server is\n%s", version)
	}
	images := th.kubectl(t, "-n kube-system get pods -o jsonpath={.items[*].spec.containers[*].image}")
	if strings.Contains(images, software.KubernetesVersion) || strings.Count(images, th.release.Version) != 5 {
		t.Errorf("want the images of 3 components and 2 proxies, got %s", images)
	}
	for _, want := range []string{"etcd:" + th.release.EtcdImage, "coredns:" + th.release.CoreDNS} {
		if !strings.Contains(images, want) {
			t.Errorf("want the image %s, got %s", want, images)
		}
	}
	if pods := th.kubectl(t, "get nodes -o jsonpath={.items[*].status.capacity.pods}"); pods != "120 120" {
		t.Errorf("the new setting of the cluster file is not in force: %s pods", pods)
	}
	if marks := th.kubectl(t, "get nodes -o jsonpath={.items[*].metadata.annotations}"); strings.Contains(marks, "kkbundle.io/upgrading") {
		t.Errorf("nodes are still marked: %s", marks)
	}
	for number := range 2 {
		const kept = "/usr/local/lib/kkbundle/before-upgrade/" + software.KubernetesVersion + "/usr/local/bin/kubelet"
		if got := th.on(t, number+1, kept+" --version"); !strings.Contains(got, software.KubernetesVersion) {
			t.Errorf("what was kept of host%d is %s", number+1, got)
		}
	}
}

func (th *upgraded) again(t *testing.T) {
	before := th.snapshot(t)
	for _, command := range []string{"upgrade", "install"} {
		r := run(t, th.with(t, command)).must(t, 0)
		if !strings.Contains(r.stderr, "0 changed") {
			t.Errorf("%s: want 0 changed, got\n%s", command, r.stderr)
		}
		t.Logf("%s again: %s", command, r.took.Round(100*time.Millisecond))
	}
	if after := th.snapshot(t); after != before {
		t.Errorf("the rerun changed something:\n%s", difference(before, after))
	}
}
