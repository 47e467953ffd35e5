package e2e

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// A podRuntime is what a cluster's pods run with, and what is looked at on its nodes.
type podRuntime struct {
	cri     string // cluster.yaml's
	release string // of Kubernetes; "" is the lab's own
	with    []software.Extra
	given   []string // files that are published and cannot be built here: URLs without a scheme
	task    string   // what the install is killed at
	version string   // what nodes say that they run
	unit    string
	// running is what has to run on a node, as pgrep's pattern; left is what a reset must not leave of it.
	running, left string
	// byHand, if set, is what an operator does on a node with the programs of cri.tools.
	byHand func(*thread, *testing.T)
}

// The archives of cri.tools, which have to be given: the catalog's for Kubernetes 1.36.
func crictlGiven() []string {
	const archive = "github.com/kubernetes-sigs/cri-tools/releases/download/v1.36.0/crictl-v1.36.0-linux-amd64.tar.gz"
	return []string{archive, archive + ".sha256"}
}

func nerdctlGiven() []string {
	const release = "github.com/containerd/nerdctl/releases/download/v2.2.1/"
	return []string{release + "nerdctl-2.2.1-linux-amd64.tar.gz", release + "SHA256SUMS"}
}

// TestRuntimeTools installs two nodes with containerd, crictl and nerdctl, and uses both programs by hand.
func TestRuntimeTools(t *testing.T) {
	runtimeThread(t, podRuntime{
		cri:     "cri: {type: containerd, tools: [crictl, nerdctl]}",
		given:   slices.Concat(crictlGiven(), nerdctlGiven()),
		task:    "runtime-tools",
		version: "containerd://",
		unit:    "containerd",
		running: "^/usr/local/bin/containerd ?",
		left: `ls -d /etc/containerd /etc/crictl.yaml /etc/nerdctl /run/containerd /var/lib/containerd/* /var/lib/nerdctl 2>/dev/null; ls /usr/local/bin;
			ps -eo comm= | grep containerd`,
		byHand: func(th *thread, t *testing.T) {
			th.crictl(t, onControlPlanes, th.ownName())
			th.nerdctl(t)
		},
	})
}

// crictl looks at pods, containers and images of the second host, and runs a program in a container. Each of pulls is
// what crictl pull is given.
func (th *thread) crictl(t *testing.T, pulls ...string) {
	pod := strings.TrimSpace(th.on(t, 2, "crictl ps --quiet --label io.kubernetes.pod.namespace=web"))
	lookup := pod + " /labapp lookup localhost"
	lines := [][2]string{
		{"crictl info", `"type": "RuntimeReady"`},
		{"crictl pods --namespace web", "Ready"},
		{"crictl ps", "kube-proxy"},
		{"crictl stats", "kube-proxy"},
		{"crictl inspect " + pod, `"io.kubernetes.pod.namespace": "web"`},
		{"crictl exec --sync " + lookup, "127.0.0.1"},
		{"crictl exec " + lookup, "127.0.0.1"},
	}
	for _, pull := range pulls {
		lines = append(lines, [2]string{"crictl pull " + pull, "Image is up to date"})
	}
	for _, line := range append(lines, [2]string{"crictl images", "docker.io/lab/labapp"}) {
		if got := th.on(t, 2, line[0]); !strings.Contains(got, line[1]) {
			t.Errorf("%s: want %q in\n%s", line[0], line[1], got)
		}
	}
}

// ownName is the lab's application by the registry's own name.
func (th *thread) ownName() string { return th.lab.Hosts[0].Address + ":5000/docker.io/lab/labapp:1" }

// onControlPlanes are images that no worker has before somebody pulls them there.
const (
	onControlPlanes = "registry.k8s.io/kube-scheduler:" + software.KubernetesVersion
	onThemToo       = "registry.k8s.io/kube-controller-manager:" + software.KubernetesVersion
)

// nerdctl sees the pods of the second host, pulls an image as they do, and runs a container, which stays.
func (th *thread) nerdctl(t *testing.T) {
	if got := th.on(t, 2, "nerdctl ps"); !strings.Contains(got, "k8s://web/") {
		t.Errorf("nerdctl does not see the pods:\n%s", got)
	}
	before := th.kubectl(t, "get nodes,pods --all-namespaces --no-headers --output=custom-columns=N:.metadata.name,P:.status.podIP")
	th.on(t, 2, "nerdctl pull --quiet "+onThemToo)
	th.on(t, 2, "nerdctl pull --quiet "+th.ownName())
	th.on(t, 2, "nerdctl run --detach --name by-hand --publish 18080:8080 docker.io/lab/labapp:1 serve")
	th.waitFor(t, time.Minute, "the container answers", 2, "curl -fsS --max-time 5 http://127.0.0.1:18080/")
	if got := th.on(t, 2, "nerdctl logs by-hand; nerdctl exec by-hand /labapp lookup localhost"); !strings.Contains(got,
		"127.0.0.1") {
		t.Errorf("nerdctl exec: %s", got)
	}
	th.pulls(t) // new pods are still in the pod network
	if after := th.kubectl(t, "get nodes,pods --all-namespaces --no-headers --output=custom-columns=N:.metadata.name,P:.status.podIP"); after != before {
		t.Errorf("the pods were\n%s, and are\n%s", before, after)
	}
}

// TestDocker installs two nodes with Docker and cri-dockerd. Docker is built here, cri-dockerd has to be given.
func TestDocker(t *testing.T) {
	number := "0.3.21" // the catalog's
	runtimeThread(t, podRuntime{
		cri:  "cri: {type: docker, tools: [crictl]}",
		with: []software.Extra{software.Docker},
		given: append(crictlGiven(), "github.com/Mirantis/cri-dockerd/releases/download/v"+number+"/cri-dockerd-"+number+
			".amd64.tgz"),
		task:    "docker",
		version: "docker://" + strings.TrimPrefix(software.DockerVersion, "v"),
		unit:    "docker cri-docker",
		running: "^/usr/local/bin/(dockerd|cri-dockerd) ?",
		left: `ls -d /etc/docker /run/docker /run/docker.sock /run/cri-dockerd.sock /var/lib/docker/* /var/lib/cri-dockerd 2>/dev/null; ls /usr/local/bin;
			ip -br link | grep docker; iptables-save | grep -E 'DOCKER|docker0|FORWARD DROP'; ps -eo comm= | grep -E 'docker|containerd'`,
		byHand: func(th *thread, t *testing.T) { // Docker has no mirrors and no login but the caller's
			th.crictl(t, `--auth "$(sed -n 's/.*"auth": *"\([^"]*\)".*/\1/p' /var/lib/kubelet/config.json | head -1)" `+th.ownName())
		},
	})
}

// TestCRIO installs two nodes with CRI-O, whose archive has to be given.
func TestCRIO(t *testing.T) {
	version := "v1.36.1" // the catalog's for Kubernetes 1.36
	runtimeThread(t, podRuntime{
		cri: "cri: {type: crio, tools: [crictl]}",
		given: append(crictlGiven(),
			"storage.googleapis.com/cri-o/artifacts/cri-o.amd64."+version+".tar.gz",
			"storage.googleapis.com/cri-o/artifacts/cri-o.amd64."+version+".tar.gz.sha256sum",
		),
		task:    "crio",
		version: "cri-o://" + strings.TrimPrefix(version, "v"),
		unit:    "crio",
		running: "^/usr/local/bin/crio ?",
		left: `ls -d /etc/crio /etc/containers /run/crio /var/run/crio /run/containers /var/lib/containers/* /var/lib/crio 2>/dev/null; ls /usr/local/bin /usr/local/libexec 2>/dev/null | grep -v -e : -e '^$';
			ps -eo comm= | grep -E 'crio|conmon'`,
		byHand: func(th *thread, t *testing.T) { th.crictl(t, onControlPlanes, th.ownName()) },
	})
}

// TestContainerd1 installs two nodes with containerd 1.7, whose configuration is another. Kubernetes 1.35 is the last
// release for it.
func TestContainerd1(t *testing.T) {
	version := software.Containerd1Version
	runtimeThread(t, podRuntime{
		cri:     "cri: {type: containerd, version: " + version + "}",
		release: software.KubernetesReleases()[software.Kubernetes135].Version,
		with:    []software.Extra{software.Kubernetes135, software.Containerd1},
		task:    "containerd",
		version: "containerd://" + strings.TrimPrefix(version, "v"),
		unit:    "containerd",
		running: "^/usr/local/bin/containerd ?",
		left:    `ls -d /etc/containerd /run/containerd /var/lib/containerd/* 2>/dev/null; ls /usr/local/bin; ps -eo comm= | grep containerd`,
	})
}

// runtimeThread installs a cluster of two nodes with another runtime than the default, in two runs of which the first
// is killed, and takes it away again.
func runtimeThread(t *testing.T, r podRuntime) {
	t.Helper()
	th := start(t, scenario{hosts: 2, with: r.with, given: r.given, edit: func(t *testing.T, dir string) {
		rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}\n", r.cri+"\netcd: {type: internal}\n",
			software.KubernetesVersion, cmp.Or(r.release, software.KubernetesVersion))
	}})
	th.nodes, th.pristine = 2, th.traces(t)
	th.makeBundle(t)
	steps(t, []step{
		{"an install killed at the runtime and at kubeadm init continues", func(t *testing.T) {
			th.killAt(t, r.task)
			th.killAt(t, "kubeadm-init")
			got := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("%s\n%s", got.took.Round(100*time.Millisecond), got.stderr)
		}},
		{"the nodes run it and nothing else", func(t *testing.T) { th.runs(t, r) }},
		{"the cluster works", th.cluster},
		{"pods pull from the site's registry by its own name", th.pulls},
		{"its programs serve operators", func(t *testing.T) {
			if r.byHand != nil {
				r.byHand(th, t)
			}
		}},
		{"a rerun changes nothing", th.rerun},
		{"pods live on when the runtime is started again", func(t *testing.T) { th.restarts(t, r) }},
		{"status says healthy", th.looks},
		{"reset leaves nothing, and everything as it was", func(t *testing.T) { th.resetRuntime(t, r) }},
		{"no packet left the hosts' network", th.packets},
	})
}

func (th *thread) runs(t *testing.T, r podRuntime) {
	got := th.kubectl(t, "get nodes --output=jsonpath='{range .items[*]}{.status.nodeInfo.containerRuntimeVersion}{\"\\n\"}{end}'")
	if strings.Count(got, r.version) != th.nodes {
		t.Errorf("nodes run\n%s; want %s", got, r.version)
	}
	for number := range th.nodes {
		th.on(t, number+1, "pgrep -f '"+r.running+"'")
		th.on(t, number+1, "systemctl is-active "+r.unit)
	}
}

// pulls runs a pod on each node that has to ask the site's registry, by its address.
func (th *thread) pulls(t *testing.T) {
	for number := range th.nodes {
		name := fmt.Sprintf("puller%d", number+1)
		image := th.ownName()
		overrides := fmt.Sprintf(`{"spec":{"nodeName":%q,"tolerations":[{"operator":"Exists"}]}}`,
			th.lab.Hosts[number].Name)
		th.kubectl(t, "run "+name+" --image="+image+" --image-pull-policy=Always --overrides='"+overrides+"'")
		th.kubectl(t, "wait pod/"+name+" --for=condition=Ready --timeout=60s")
		th.kubectl(t, "delete pod "+name+" --wait --grace-period=1")
	}
}

// restarts restarts the runtime of the second host: its pods are the same afterwards, and new ones start.
func (th *thread) restarts(t *testing.T, r podRuntime) {
	const pods = "-n web get pods --output=jsonpath='{range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}'"
	before := th.kubectl(t, pods)
	th.on(t, 2, "systemctl restart "+r.unit)
	eventually(t, "the node is ready", func() bool {
		return strings.Contains(th.kubectl(t, "get node host2 --no-headers"), " Ready ")
	})
	if after := th.kubectl(t, pods); after != before {
		t.Errorf("the pods were\n%s, and are\n%s", before, after)
	}
	th.pulls(t)
}

func (th *thread) resetRuntime(t *testing.T, r podRuntime) {
	got := run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
	t.Logf("reset: %s", got.took.Round(100*time.Millisecond))
	for number := range th.nodes {
		if out := th.on(t, number+1, r.left+
			"; ps -eo comm= | grep -E '^(kube|etcd|pause|labapp|flanneld)'; true"); out != "" {
			t.Errorf("host%d still has\n%s", number+1, out)
		}
	}
	if after := th.traces(t); after != th.pristine {
		t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
	}
	run(t, th.site(t, "reset", "--yes", "--with-data")).must(t, 0)
}
