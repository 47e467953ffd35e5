package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// A side is what a cluster runs before or after its move.
type side struct {
	software.KubernetesRelease
	containerd, flannel string
	cilium, calico      string // instead of flannel
	values              string // a file of cni.values, if any
}

// network returns the network's name and version.
func (s side) network() (name, version string) {
	switch {
	case s.cilium != "":
		return "cilium", s.cilium
	case s.calico != "":
		return "calico", s.calico
	}
	return "flannel", s.flannel
}

// lines are those of the cluster file for runtime and network.
func (s side) lines() string {
	name, version := s.network()
	if s.values != "" {
		version += ", values: [" + s.values + "]"
	}
	return "cni: {type: " + name + ", version: " + version + "}\ncri: {type: containerd, version: " + s.containerd + "}"
}

// A moved is a cluster that goes to another release and, where it can, back. Its workers run the application.
type moved struct {
	name   string // in the table of moves
	hosts  int
	groups hosts.Groups
	with   []software.Extra
	// given are files that cannot be built here.
	given []string
	// from and to are the ends of the way, over the releases between them.
	from, to side
	over     []string
	// plan is what the rehearsal says of each step.
	plan []string
	// stuck is the reason why there is no way back, if there is none.
	stuck string
	// etcdType is of the cluster file.
	etcdType manifest.EtcdType
	// endpoint is a further line of the cluster file, if any.
	endpoint string
	// forth and back are the places where kkbundle is killed.
	forth, back []kill
	// everywhere kills it in each task on each host, besides.
	everywhere bool
	// delta brings the next bundle to the site as the bundle before and a delta.
	delta bool
}

// An upgraded is the lab that the subtests of an upgrade share.
type upgraded struct {
	*thread
	moved
	next string // the bundle of the next release
}

// kubeadmBegan holds when kubeadm has begun to replace the pods of a control plane.
const kubeadmBegan = "ls -d /etc/kubernetes/tmp/kubeadm-backup-manifests*"

// TestUpgrade upgrades a cluster of two nodes to the next minor release and rolls it back, while an application
// answers. Both nodes run pods. Each release is compiled from its own sources, with its own etcd and CoreDNS.
func TestUpgrade(t *testing.T) {
	m := toNextMinor("1 control plane, 2 nodes", twoNodes())
	m.forth = []kill{{"control-plane", 1, kubeadmBegan}, {"kubelet", 2, "true"}}
	m.back = []kill{{"kubelet", 2, "true"}, {"control-plane", 1, m.etcdIsBack()}}
	upgradeAndBack(t, m)
}

// TestUpgradeKilled is TestUpgrade with kkbundle killed in each task on each host, up to two times in those that take
// long.
func TestUpgradeKilled(t *testing.T) {
	m := toNextMinor("1 control plane, 2 nodes; killed in every task", twoNodes())
	m.everywhere = true
	upgradeAndBack(t, m)
}

// TestUpgradeHA upgrades three control planes and two workers to the next minor release and rolls them back, while an
// application answers.
func TestUpgradeHA(t *testing.T) {
	m := toNextMinor("3 control planes, 2 workers", hosts.Groups{
		"kube_control_plane": {1, 2, 3}, "image_registry": {4},
		"kube_worker": {4, 5},
	})
	m.hosts, m.endpoint = 5, haproxyEndpoint
	m.forth = []kill{{"control-plane", 2, kubeadmBegan}, {"kubelet", 5, "true"}}
	m.back = []kill{{"kubelet", 5, "true"}, {"control-plane", 2, m.etcdIsBack()}}
	upgradeAndBack(t, m)
}

// TestUpgradeExternalEtcd is TestUpgradeHA with etcd on three hosts of its own. Its flannel goes to a release whose
// health server would take haproxy's port.
func TestUpgradeExternalEtcd(t *testing.T) {
	m := toNextMinor("3 control planes, 2 workers, external etcd",
		hosts.Groups{"kube_control_plane": {1, 2, 3}, "image_registry": {4}, "kube_worker": {4, 5}, "etcd": {6, 7, 8}})
	m.hosts, m.etcdType, m.endpoint = 8, manifest.EtcdExternal, haproxyEndpoint
	m.with, m.to.flannel = append(m.with, software.FlannelNext), software.FlannelNextVersion
	m.forth = []kill{{"etcd", 7, "true"}, {"control-plane", 2, kubeadmBegan}}
	m.back = []kill{{"etcd", 7, "true"}, {"kubelet", 5, "true"}}
	upgradeAndBack(t, m)
}

// TestUpgradeRuntime is TestUpgrade with the next lines of containerd and flannel at the same time, under running pods.
func TestUpgradeRuntime(t *testing.T) {
	m := toNextMinor("1 control plane, 2 nodes; containerd 2.1 to 2.3", twoNodes())
	m.with = append(m.with, software.Containerd21, software.FlannelNext)
	m.from.containerd, m.to.flannel = software.Containerd21Version, software.FlannelNextVersion
	m.forth = []kill{{"containerd", 2, "true"}}
	m.back = []kill{{"containerd", 1, "true"}}
	upgradeAndBack(t, m)
}

// TestUpgradeOld goes from Kubernetes 1.33 to 1.34, over the etcd that repairs lists of members, and from containerd
// 1.7 to 2.3. etcd's data move on to 3.6, so that there is no way back.
func TestUpgradeOld(t *testing.T) {
	releases := software.KubernetesReleases()
	from, to := releases[software.Kubernetes133], releases[software.Kubernetes134]
	upgradeAndBack(t, moved{
		name: "1 control plane, 2 nodes; etcd 3.5.24 to 3.5.32 to 3.6.5, containerd 1.7 to 2.3", hosts: 2,
		groups: twoNodes(), etcdType: manifest.EtcdInternal,
		with: []software.Extra{
			software.Kubernetes133, software.Kubernetes134, software.Containerd1,
			software.FlannelNext,
		},
		from: side{KubernetesRelease: from, containerd: software.Containerd1Version, flannel: software.FlannelVersion},
		to:   side{KubernetesRelease: to, containerd: software.ContainerdVersion, flannel: software.FlannelNextVersion},
		over: []string{from.Version},
		plan: []string{
			from.Version + " takes etcd 3.5.32-0", "step " + from.Version + ": etcd 3.5.24 -> 3.5.32;",
			"step " + to.Version + ": etcd 3.5.32 -> 3.6.5, coredns v1.12.0 -> v1.12.1;",
		},
		stuck: "have moved on to 3.6, which etcd 3.5.24 cannot read",
		forth: []kill{
			{"control-plane", 1, "grep -q etcd:3.5.32 /etc/kubernetes/manifests/etcd.yaml"},
			{"containerd", 2, "true"},
		},
	})
}

// TestUpgradePatch goes to the next patch release of Kubernetes. Its bundle is not at the site: there is the bundle
// before, and a delta. Hosts that were reset are then installed with both.
func TestUpgradePatch(t *testing.T) {
	releases := software.KubernetesReleases()
	from, to := releases[software.Kubernetes134], releases[software.Kubernetes1344]
	th := upgradeAndBack(t, moved{
		name: "1 control plane, 2 nodes; the next bundle as a delta", hosts: 2, groups: twoNodes(),
		etcdType: manifest.EtcdInternal, delta: true,
		with:  []software.Extra{software.Kubernetes134, software.Kubernetes1344},
		from:  side{KubernetesRelease: from, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		to:    side{KubernetesRelease: to, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		forth: []kill{{"control-plane", 1, kubeadmBegan}},
		back:  []kill{{"kubelet", 2, "true"}},
	})
	steps(t, []step{
		{"hosts that were reset are installed with the delta", th.installNext},
		{"still no packet left the hosts' network", th.packets},
	})
}

// TestUpgradeNew goes from Kubernetes 1.35 over 1.36 to 1.37, with etcd 3.7. Its data move on, so that there is no
// way back.
func TestUpgradeNew(t *testing.T) {
	releases := software.KubernetesReleases()
	from, over, to := releases[software.Kubernetes135], software.KubernetesVersion, releases[software.Kubernetes137]
	upgradeAndBack(t, moved{
		name:  "1 control plane, 2 nodes; over " + over + ", etcd 3.6.6 to 3.6.13 to 3.7.0, containerd 2.1 to 2.3",
		hosts: 2, groups: twoNodes(),
		etcdType: manifest.EtcdInternal,
		with: []software.Extra{
			software.Kubernetes135, software.Kubernetes137, software.Containerd21,
			software.FlannelNext,
		},
		from: side{
			KubernetesRelease: from, containerd: software.Containerd21Version,
			flannel: software.FlannelVersion,
		},
		to: side{
			KubernetesRelease: to, containerd: software.ContainerdVersion,
			flannel: software.FlannelNextVersion,
		},
		over: []string{over},
		plan: []string{
			over + " takes etcd 3.6.13-0", "step " + over + ": etcd 3.6.6 -> 3.6.13, coredns v1.13.1 -> v1.14.2;",
			"step " + to.Version + ": etcd 3.6.13 -> 3.7.0, coredns v1.14.2 -> v1.14.6;",
		},
		stuck: "the copies of host1 lead back to " + over,
		forth: []kill{{"control-plane", 1, kubeadmBegan}, {"containerd", 2, "true"}},
	})
}

// TestUpgradeMembers goes from Kubernetes 1.36 to 1.37 with three members of etcd, over the release of etcd 3.6 that
// 3.7 goes together with. Kills leave members of two releases together for a while, and the application goes on.
func TestUpgradeMembers(t *testing.T) {
	own, to := software.OwnRelease(), software.KubernetesReleases()[software.Kubernetes137]
	upgradeAndBack(t, moved{
		name:  "3 control planes, 2 workers; etcd 3.6.8 to 3.6.13 to 3.7.0",
		hosts: 5, groups: hosts.Groups{"kube_control_plane": {1, 2, 3}, "image_registry": {4}, "kube_worker": {4, 5}},
		etcdType: manifest.EtcdInternal, endpoint: haproxyEndpoint,
		with: []software.Extra{software.Kubernetes137},
		from: side{KubernetesRelease: own, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		to:   side{KubernetesRelease: to, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		over: []string{own.Version},
		plan: []string{
			own.Version + " takes etcd 3.6.13-0", "step " + own.Version + ": etcd 3.6.8 -> 3.6.13;",
			"step " + to.Version + ": etcd 3.6.13 -> 3.7.0, coredns v1.14.2 -> v1.14.6;",
		},
		stuck: "have moved on to 3.7, which etcd 3.6.13 cannot read",
		forth: []kill{
			{"control-plane", 2, "grep -q etcd:3.6.13 /etc/kubernetes/manifests/etcd.yaml"},
			{"control-plane", 2, "grep -q etcd:3.7.0 /etc/kubernetes/manifests/etcd.yaml"},
		},
	})
}

// TestUpgradeAway changes a setting of two nodes, and takes the only API server away for more than a minute before
// the worker is drained. Its clients then wait longer than the upgrade needs to get there, while the application
// answers.
func TestUpgradeAway(t *testing.T) {
	own := side{
		KubernetesRelease: software.OwnRelease(), containerd: software.ContainerdVersion,
		flannel: software.FlannelVersion,
	}
	th := newUpgraded(t, moved{
		name:  "1 control plane, 2 nodes; another setting, the API server taken away for 70 s before the worker's drain",
		hosts: 2, groups: twoNodes(),
		etcdType: manifest.EtcdInternal, from: own, to: own,
	})
	steps(t, []step{
		{"two bundles, one cluster", th.begin},
		{"the API server is away, and the application answers", th.upgradeAway},
		{"the nodes have the setting", func(t *testing.T) { th.podsOfNodes(t, "120") }},
		{"no packet left the hosts' network", th.packets},
	})
}

// takeAway ends the API server of a host, and lets its kubelet start it again after a time.
const takeAway = `m=/etc/kubernetes/manifests/kube-apiserver.yaml
mv $m /root/ && kill -9 $(pidof kube-apiserver); sleep 70; mv /root/kube-apiserver.yaml $m`

// upgradeAway upgrades, and takes the API server away when the control plane is complete: as soon as it answers
// again, the worker's turn comes.
func (th *upgraded) upgradeAway(t *testing.T) {
	stop := th.watch(t)
	begin := time.Now()
	cmd := th.withNext(t, "upgrade", "--yes", "--json")
	var errs bytes.Buffer
	var away sync.WaitGroup
	taken := false
	cmd.Stderr = io.MultiWriter(&errs, lines(func(data []byte) {
		e := eventOf(data)
		if e.Task == "services" && e.State == "changed" {
			t.Logf("the Services of all nodes followed the API after %s", e.Duration)
		}
		if e.Task == "record" && e.State == "started" && e.Host == th.lab.Hosts[0].Name && !taken {
			taken = true
			away.Go(func() {
				if out, err := th.lab.SSH(t.Context(), th.lab.Hosts[0], takeAway).CombinedOutput(); err != nil {
					t.Errorf("the API server was not taken away: %v\n%s", err, out)
				}
			})
		}
	}))
	err := cmd.Run()
	away.Wait()
	m := results.Move{
		From: th.from.Version, To: th.to.Version, Topology: th.name,
		Seconds: int(time.Since(begin).Seconds()),
	}
	stop(&m)
	if err != nil || !taken {
		t.Fatalf("taken away: %t; %v\n%s", taken, err, errs.String())
	}
	t.Logf("%d of %d questions were missed, the API was away for %v ms", m.Missed, m.Asked, m.Away)
	th.moves = append(th.moves, m)
}

// An event is a line that kkbundle prints with --json.
type event struct {
	Task, State, Host string
	Duration          json.RawMessage
}

// eventOf decodes an event; other lines are none of a task.
func eventOf(data []byte) (e event) {
	if json.Unmarshal(data, &e) != nil {
		return event{}
	}
	return e
}

const haproxyEndpoint = "controlPlaneEndpoint: {type: haproxy}"

// twoNodes are a control plane and a worker, and both run pods.
func twoNodes() hosts.Groups {
	return hosts.Groups{"kube_control_plane": {1}, "etcd": {1}, "image_registry": {1}, "kube_worker": {1, 2}}
}

// toNextMinor returns the move to the lab's own release from the one before.
func toNextMinor(name string, groups hosts.Groups) moved {
	from, to := software.KubernetesReleases()[software.Kubernetes135], software.OwnRelease()
	return moved{
		name: name, hosts: 2, groups: groups, etcdType: manifest.EtcdInternal,
		with: []software.Extra{software.Kubernetes135},
		from: side{KubernetesRelease: from, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		to:   side{KubernetesRelease: to, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		plan: []string{"step " + to.Version + ": etcd 3.6.6 -> 3.6.8, coredns v1.13.1 -> v1.14.2;"},
	}
}

// newUpgraded starts the lab of a move.
func newUpgraded(t *testing.T, m moved) *upgraded {
	t.Helper()
	th := &upgraded{moved: m, thread: start(t, scenario{
		hosts: m.hosts, with: m.with, given: m.given, groups: m.groups,
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), software.KubernetesVersion, m.from.Version,
				"etcd: {type: internal}", "etcd: {type: "+string(m.etcdType)+"}\n"+m.endpoint, "cni: {type: flannel}",
				m.from.lines())
		},
	})}
	members := slices.Sorted(slices.Values(slices.Concat(m.groups["kube_control_plane"], m.groups["kube_worker"])))
	th.nodes = len(slices.Compact(members))
	return th
}

func upgradeAndBack(t *testing.T, m moved) *upgraded {
	t.Helper()
	th := newUpgraded(t, m)
	back := step{"killed, rolled back, and the application answers", th.rollback}
	if m.stuck != "" {
		back = step{"a rollback is refused, and changes nothing", th.noRollback}
	}
	steps(t, []step{
		{"two bundles, one cluster", th.begin},
		{"install says that it is an upgrade", th.notInstall},
		{"an unhealthy cluster is refused", th.refused},
		{"killed, continued, upgraded, and the application answers", th.upgrade},
		{"everything is of the next version", th.verify},
		{"a rerun changes nothing", th.again},
		back,
		{"no packet left the hosts' network", th.packets},
	})
	return th
}

// etcdIsBack holds when a control plane has the manifest of its older etcd again.
func (m moved) etcdIsBack() string {
	return "grep -q etcd:" + m.from.EtcdImage + " /etc/kubernetes/manifests/etcd.yaml"
}

// last returns the release before the last step of the way.
func (m moved) last() string {
	way := append([]string{m.from.Version}, m.over...)
	return way[len(way)-1]
}

func (th *upgraded) begin(t *testing.T) {
	th.makeBundle(t)
	version := th.to.Version
	if len(th.over) > 0 {
		version += "\n  upgradeFrom: " + th.from.Version
	}
	rewrite(t, filepath.Join(th.dir, "cluster.yaml"), th.from.Version, version, th.from.lines(), th.to.lines(),
		"kubelet: {failCgroupV1: false}", "kubelet: {failCgroupV1: false}\n  maxPods: 120")
	rewrite(t, filepath.Join(th.dir, "manifest.yaml"), "version: 1.0.0", "version: 1.1.0")
	th.next = filepath.Join(th.dir, "lab-1.1.0.kkb")
	th.connected(t, "build", "-o", th.next, "manifest.yaml").must(t, 0)
	if th.delta {
		th.next = th.asDelta(t)
	}
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install of %s: %s", th.from.Version, r.took.Round(time.Second))
	th.apply(t, steady)
	th.kubectl(t, "-n steady rollout status deployment/steady --timeout=5m")
}

// asDelta replaces the next bundle by a delta. It returns the argument that stands for the bundle in commands:
// OLD.kkb+NEW.kkd.
func (th *upgraded) asDelta(t *testing.T) string {
	t.Helper()
	delta := filepath.Join(th.dir, "lab-1.1.0.kkd")
	r := th.connected(t, "delta", th.bundle(), th.next, "-o", delta).must(t, 0)
	t.Logf("delta: %s\n%s", r.took.Round(time.Second), r.stderr)
	if err := os.Remove(th.next); err != nil {
		t.Fatal(err)
	}
	return th.bundle() + "+" + delta
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
	cmd := th.lab.SSH(t.Context(), th.lab.Hosts[0],
		"KUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf apply -f -")
	cmd.Stdin = strings.NewReader(objects)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// withNext is a kkbundle command with the next bundle.
func (th *upgraded) withNext(t *testing.T, command string, flags ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{command, "-i", th.inventory, "--known-hosts", th.lab.KnownHostsFile()}, flags...)
	return th.lab.Command(t.Context(), th.kkbundle, append(args, th.next)...)
}

func (th *upgraded) notInstall(t *testing.T) {
	r := run(t, th.withNext(t, "install")).must(t, 12)
	if !strings.Contains(r.stderr, "kkbundle upgrade") {
		t.Errorf("want what to do instead, got\n%s", r.stderr)
	}
}

// refused plants what would hold up drains for ever. A plan is shown all the same, and nothing is changed.
func (th *upgraded) refused(t *testing.T) {
	th.kubectl(t, "-n steady create poddisruptionbudget never --selector=app=steady --max-unavailable=0")
	th.kubectl(t, "-n steady run alone --image=docker.io/lab/labapp:1 --command -- /labapp sleep")
	th.kubectl(t, "-n steady wait --for=condition=Ready pod/alone --timeout=5m")
	eventually(t, "the budget knows its pods", func() bool {
		return strings.TrimSpace(th.kubectl(t,
			"-n steady get poddisruptionbudget never -o jsonpath={.status.desiredHealthy}")) == "2"
	})
	before := th.snapshot(t)
	r := run(t, th.withNext(t, "upgrade", "--yes")).must(t, 12)
	way := slices.Compact(slices.Concat([]string{th.from.Version}, th.over, []string{th.to.Version}))
	for _, want := range []string{
		strings.Join(way, " -> "), "settings that change: kubernetes.maxPods",
		"PodDisruptionBudget steady/never wants 2 of its 2 pods", "pod steady/alone on",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	th.kubectl(t, "-n steady delete poddisruptionbudget/never pod/alone")
	r = run(t, th.withNext(t, "upgrade", "--plan")).must(t, 0)
	for _, want := range append(th.replaces(), "expected time: unknown") {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	t.Logf("refused and dry run: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if after := th.snapshot(t); after != before {
		t.Errorf("a refused upgrade and a dry run changed something:\n%s", difference(before, after))
	}
}

// replaces returns what the plan says of the way.
func (m moved) replaces() []string {
	list := slices.Clone(m.plan)
	switch {
	case m.from.containerd != m.to.containerd:
		list = append(list, "changes: containerd "+m.from.containerd+" -> "+m.to.containerd)
	case m.from.Pause != m.to.Pause: // which containerd's configuration names
		list = append(list, "changes: containerd (another program or configuration) on",
			"host2: replaces containerd, kubelet")
	default:
		list = append(list, "host2: replaces kubelet")
	}
	if m.from.flannel != m.to.flannel {
		list = append(list, "changes: flannel "+m.from.flannel+" -> "+m.to.flannel)
	}
	return list
}

// A kill says where a run is ended without a word: once a task has begun on a host and the line is true there.
type kill struct {
	task string
	host int
	line string
}

// killRun runs a command of kkbundle and ends it.
func (th *upgraded) killRun(t *testing.T, cmd *exec.Cmd, at kill) {
	t.Helper()
	h := th.lab.Hosts[at.host-1]
	var errs bytes.Buffer
	killed := make(chan struct{})
	watched := false
	cmd.Stderr = io.MultiWriter(&errs, lines(func(data []byte) {
		e := eventOf(data)
		if e.Task == "services" && e.State == "changed" {
			t.Logf("the Services of all nodes followed the API after %s", e.Duration)
		}
		if e.Task != at.task || e.Host != h.Name || e.State != "started" || watched {
			return
		}
		watched = true
		go func() {
			defer close(killed)
			for th.lab.SSH(t.Context(), h, at.line).Run() != nil && t.Context().Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
			_ = cmd.Process.Kill()
		}()
	}))
	begin := time.Now()
	err := cmd.Run()
	if !watched || cmd.ProcessState.ExitCode() >= 0 {
		t.Fatalf("the command ended by itself, before %s on %s: %v\n%s", at.task, h.Name, err, errs.String())
	}
	<-killed
	t.Logf("killed in %s on %s after %s", at.task, h.Name, time.Since(begin).Round(time.Second))
}

// killEverywhere runs a command again and again, ends each run in a task and on a host where fewer have ended, and
// returns how many it ended. The last run has completed.
func (th *upgraded) killEverywhere(t *testing.T, command func(flags ...string) *exec.Cmd) (kills int) {
	t.Helper()
	const most = 200
	for ended := map[string]int{}; kills < most; kills++ {
		c := cutter{cmd: command("--yes", "--json"), ended: ended}
		begin := time.Now()
		at, out, err := c.run()
		if at == "" {
			if err != nil {
				t.Fatalf("after %d kills: %v\n%s", kills, err, out)
			}
			return kills
		}
		ended[at]++
		t.Logf("killed in %s after %s", at, time.Since(begin).Round(time.Second))
	}
	t.Fatalf("not complete after %d kills", most)
	return 0
}

// A cutter ends a command once: some time after a task has begun, or when it has changed something sooner.
type cutter struct {
	cmd   *exec.Cmd
	ended map[string]int // runs that were ended, by task and host

	mu     sync.Mutex
	watch  *time.Timer // of the task that is to be ended
	task   string
	killed bool
}

// run runs the command and returns the task that it was ended in, "" if it ended by itself.
func (c *cutter) run() (at, out string, err error) {
	var errs bytes.Buffer
	c.cmd.Stderr = io.MultiWriter(&errs, lines(c.event))
	err = c.cmd.Run()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watch != nil {
		c.watch.Stop()
	}
	if !c.killed || c.cmd.ProcessState.ExitCode() >= 0 {
		return "", errs.String(), err
	}
	return c.task, "", nil
}

func (c *cutter) event(data []byte) {
	var e struct{ Phase, Task, State, Host string }
	if json.Unmarshal(data, &e) != nil || e.Task == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delays := []time.Duration{time.Second, 10 * time.Second}
	at := e.Phase + "/" + e.Task + "@" + e.Host
	switch n := c.ended[at]; {
	case c.killed || n == len(delays):
	case e.State == "started" && c.watch == nil:
		c.task, c.watch = at, time.AfterFunc(delays[n], func() { c.kill(at) })
	case e.State == "changed" && n == 0:
		c.task, c.killed = at, true
		_ = c.cmd.Process.Kill()
	case e.State != "started" && c.task == at && c.watch.Stop():
		c.task, c.watch = "", nil
	}
}

// kill ends the command in the task that is watched.
func (c *cutter) kill(at string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.task == at && !c.killed {
		c.killed = true
		_ = c.cmd.Process.Kill()
	}
}

// move kills a command at several places, runs it to its end, and keeps what clients noticed.
func (th *upgraded) move(t *testing.T, m results.Move, kills []kill, command func(flags ...string) *exec.Cmd) {
	t.Helper()
	stop := th.watch(t)
	begin := time.Now()
	for _, at := range kills {
		th.killRun(t, command("--yes", "--json"), at)
	}
	m.Kills = len(kills)
	if th.everywhere {
		m.Kills += th.killEverywhere(t, command)
	}
	r := run(t, command("--yes"))
	m.Seconds, m.Topology = int(time.Since(begin).Seconds()), th.name
	stop(&m)
	r.must(t, 0)
	t.Logf("the last run took %s, all %d s\n%s", r.took.Round(time.Second), m.Seconds, r.stderr)
	th.moves = append(th.moves, m)
}

func (th *upgraded) upgrade(t *testing.T) {
	th.move(t, results.Move{From: th.from.Version, To: th.to.Version}, th.forth,
		func(flags ...string) *exec.Cmd { return th.withNext(t, "upgrade", flags...) })
	work := strings.TrimSuffix(th.inventory, ".yaml") + ".work"
	saved, err := filepath.Glob(filepath.Join(work, "upgrade", "*-"+th.from.Version+"-to-"+th.to.Version, "etcd.db"))
	if err != nil || len(saved) != 1 {
		t.Errorf("want one snapshot of etcd from before, got %q, %v", saved, err)
	}
	for _, file := range saved {
		if info, err := os.Stat(file); err != nil || info.Size() < 1<<20 || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
}

// rollback goes back with the first bundle. What was written after the upgrade stays.
func (th *upgraded) rollback(t *testing.T) {
	th.wayBack(t)
	th.kubectl(t, "-n steady create configmap written --from-literal=after=upgrade")
	th.move(t, results.Move{From: th.to.Version, To: th.from.Version, Rollback: true}, th.back,
		func(flags ...string) *exec.Cmd { return th.site(t, "upgrade", append(flags, "--rollback")...) })
	if got := th.kubectl(t, "-n steady get configmap written -o jsonpath={.data.after}"); got != "upgrade" {
		t.Errorf("what was written after the upgrade is %q", got)
	}
	th.running(t, th.from)
	th.podsOfNodes(t, "110")
	before := th.snapshot(t)
	for _, command := range []string{"upgrade --rollback", "install"} {
		r := run(t, th.site(t, command)).must(t, 0)
		if !strings.Contains(r.stderr, "0 changed") {
			t.Errorf("%s: want 0 changed, got\n%s", command, r.stderr)
		}
	}
	if after := th.snapshot(t); after != before {
		t.Errorf("the rerun changed something:\n%s", difference(before, after))
	}
	for number := range th.nodes {
		if left := th.on(t, number+1,
			"ls -d /usr/local/lib/kkbundle/before-upgrade /etc/kubernetes/tmp/kubeadm-* 2>/dev/null || true"); left != "" {
			t.Errorf("host%d still has\n%s", number+1, left)
		}
	}
}

// wayBack checks that status names the last step and what its copies lead to.
func (th *upgraded) wayBack(t *testing.T) {
	t.Helper()
	status := run(t, th.withNext(t, "status", "--wait", "5m")).must(t, 0)
	if !strings.Contains(status.stdout, "to "+th.last()+", ") || !strings.Contains(status.stdout, "succeeded") {
		t.Errorf("status names neither the upgrade nor the way back:\n%s", status.stdout)
	}
}

// noRollback tries to go back where it is impossible, with either bundle.
func (th *upgraded) noRollback(t *testing.T) {
	th.wayBack(t)
	before := th.snapshot(t)
	r := run(t, th.site(t, "upgrade", "--yes", "--rollback")).must(t, 12)
	if !strings.Contains(r.stderr, th.stuck) {
		t.Errorf("no %q in\n%s", th.stuck, r.stderr)
	}
	run(t, th.withNext(t, "upgrade", "--yes", "--rollback")).must(t, 12)
	if after := th.snapshot(t); after != before {
		t.Errorf("a refused rollback changed something:\n%s", difference(before, after))
	}
}

// watch asks the application all the time, by both workers in turn and about ten times a second, and the API as
// often, by the way of the last worker's kubelet, until stop is called. stop fails the test if the application did
// not answer for longer than a client that tries again bears.
func (th *upgraded) watch(t *testing.T) (stop func(*results.Move)) {
	workers := th.groups["kube_worker"]
	last := th.lab.Hosts[workers[len(workers)-1]-1]
	api := strings.TrimSpace(th.on(t, last.Number, "sed -n 's/.*server: //p' /etc/kubernetes/kubelet.conf")) + "/readyz"
	args := []string{"-c", askAgain, "sh"}
	for _, number := range workers {
		args = append(args, "http://"+th.lab.Hosts[number-1].Address+":30081/")
	}
	ctx, cancel := context.WithCancel(t.Context())
	answers := ask(t, th.lab.Command(ctx, "sh", args...), th.lab.SSH(ctx, last, "set -- "+api+"; "+askAgain))
	return func(m *results.Move) {
		cancel()
		seen := answers()
		if len(seen) != 3 { // the application by two nodes, and the API
			t.Errorf("questions were asked by %d ways, not 3", len(seen))
		}
		if g := seen[api]; g != nil {
			for _, d := range g.times {
				m.Away = append(m.Away, int(d.Milliseconds()))
			}
			delete(seen, api)
		}
		for url, g := range seen {
			m.Asked, m.Missed = m.Asked+g.asked, m.Missed+g.failed
			g.bearable(t, url)
		}
	}
}

func (th *upgraded) verify(t *testing.T) {
	th.running(t, th.to)
	th.podsOfNodes(t, "120")
	if marks := th.kubectl(t, "get nodes -o jsonpath={.items[*].metadata.annotations}"); strings.Contains(marks,
		"kkbundle.io/upgrading") {
		t.Errorf("nodes are still marked: %s", marks)
	}
	kept := "/usr/local/lib/kkbundle/before-upgrade/" + th.last()
	for number := range th.nodes {
		left := th.on(t, number+1, "ls -d "+kept+"/finished "+kept+
			"/usr /etc/kubernetes/tmp/kubeadm-* 2>/dev/null || true")
		if strings.TrimSpace(left) != kept+"/finished" {
			t.Errorf("host%d should have a way back without programs, and no copies of kubeadm's:\n%s", number+1, left)
		}
	}
}

// installNext brings up the next release on hosts that were reset.
func (th *upgraded) installNext(t *testing.T) {
	run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	r := run(t, th.withNext(t, "install")).must(t, 0)
	t.Logf("install of %s: %s", th.to.Version, r.took.Round(time.Second))
	th.running(t, th.to)
	th.podsOfNodes(t, "120")
	again := run(t, th.withNext(t, "install")).must(t, 0)
	if !strings.Contains(again.stderr, "0 changed") {
		t.Errorf("install again: want 0 changed, got\n%s", again.stderr)
	}
}

// running checks the versions of everything that kubeadm installs, of external etcd, of containerd and of flannel.
func (th *upgraded) running(t *testing.T, want side) {
	t.Helper()
	runtimes := th.kubectl(t, "get nodes -o jsonpath={.items[*].status.nodeInfo.containerRuntimeVersion}")
	if strings.Count(runtimes, "containerd://"+strings.TrimPrefix(want.containerd, "v")) != th.nodes {
		t.Errorf("want containerd %s on each node, got %s", want.containerd, runtimes)
	}
	selected, image := "-n kube-flannel get pods", "flannel:"+want.flannel
	switch {
	case want.cilium != "":
		selected, image = "-n kube-system get pods --selector=k8s-app=cilium", "cilium/cilium:"+want.cilium
	case want.calico != "":
		selected, image = "-n calico-system get pods --selector=k8s-app=calico-node", "calico/node:"+want.calico
	}
	network := th.kubectl(t, selected+" -o jsonpath={.items[*].spec.containers[*].image},{.items[*].status.phase}")
	if strings.Count(network, image) != th.nodes || strings.Count(network, "Running") != th.nodes {
		t.Errorf("want %s running on each node, got %s", image, network)
	}
	nodes := th.kubectl(t, "get nodes --no-headers")
	if strings.Count(nodes, " Ready ") != th.nodes || strings.Count(nodes, want.Version) != th.nodes ||
		strings.Contains(nodes, "SchedulingDisabled") {
		t.Errorf("want %d nodes that are Ready, got\n%s", th.nodes, nodes)
	}
	planes := th.groups["kube_control_plane"]
	for _, number := range planes {
		if got := th.kubectl(t, "--server=https://"+th.lab.Hosts[number-1].Address+
			":6443 get --raw=/version"); !strings.Contains(got, want.Version) {
			t.Errorf("the API server of host%d is\n%s", number, got)
		}
	}
	images := th.kubectl(t, "-n kube-system get pods -o jsonpath={.items[*].spec.containers[*].image}")
	if strings.Count(images, ":"+want.Version) != 3*len(planes)+th.nodes {
		t.Errorf("want the images of 3 components for each control plane and of a proxy for each node, got %s", images)
	}
	if !strings.Contains(images, "coredns:"+want.CoreDNS) {
		t.Errorf("want CoreDNS %s, got %s", want.CoreDNS, images)
	}
	if th.etcdType == manifest.EtcdInternal {
		if strings.Count(images, "etcd:"+want.EtcdImage) != len(planes) {
			t.Errorf("want etcd %s on each control plane, got %s", want.EtcdImage, images)
		}
		return
	}
	for _, number := range th.groups["etcd"] { // a replaced program that still runs is "(deleted)"
		got := th.on(t, number, "etcd --version | head -n 1; readlink /proc/$(pidof etcd)/exe")
		if lines := strings.Split(got, "\n"); lines[0] != "etcd Version: "+strings.TrimPrefix(want.Etcd, "v") ||
			!strings.HasSuffix(lines[1], "/etcd") {
			t.Errorf("host%d runs %s", number, got)
		}
	}
}

// podsOfNodes checks the kubelets' limit of pods, a setting of the cluster file that differs between the bundles.
func (th *upgraded) podsOfNodes(t *testing.T, want string) {
	t.Helper()
	got := strings.Fields(th.kubectl(t, "get nodes -o jsonpath={.items[*].status.capacity.pods}"))
	if len(got) != th.nodes || slices.ContainsFunc(got, func(pods string) bool { return pods != want }) {
		t.Errorf("want %s pods for each node, got %s", want, got)
	}
}

func (th *upgraded) again(t *testing.T) {
	before := th.snapshot(t)
	for _, command := range []string{"upgrade", "install"} {
		r := run(t, th.withNext(t, command)).must(t, 0)
		if !strings.Contains(r.stderr, "0 changed") {
			t.Errorf("%s: want 0 changed, got\n%s", command, r.stderr)
		}
		t.Logf("%s again: %s", command, r.took.Round(100*time.Millisecond))
	}
	if after := th.snapshot(t); after != before {
		t.Errorf("the rerun changed something:\n%s", difference(before, after))
	}
}
