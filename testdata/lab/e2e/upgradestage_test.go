package e2e

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestUpgradeStaged stages an upgrade to the next minor release twice, and upgrades.
func TestUpgradeStaged(t *testing.T) {
	own, to := software.OwnRelease(), software.KubernetesReleases()[software.Kubernetes137]
	th := newUpgraded(t, moved{
		name:  "1 control plane, 2 nodes; staged",
		hosts: 2, groups: twoNodes(), etcdType: manifest.EtcdInternal, with: []software.Extra{software.Kubernetes137},
		from: side{KubernetesRelease: own, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		to:   side{KubernetesRelease: to, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		over: []string{own.Version},
	})
	steps(t, []step{
		{"two bundles, one cluster", th.begin},
		{"a stage touches no pod, and a second one moves nothing", th.stage},
		{"the nodes are upgraded, and the application answers", th.upgrade},
		{"the next release runs", func(t *testing.T) { th.running(t, th.to) }},
		{"no packet left the hosts' network", th.packets},
	})
}

// TestUpgradeWindow upgrades to the next minor release, installs the hosts anew with the release before, stages the
// upgrade, and makes it again in parts: the control plane alone, what a window is too short for, and windows until all
// nodes are there. The rate is that of a slow line.
func TestUpgradeWindow(t *testing.T) {
	own, to := software.OwnRelease(), software.KubernetesReleases()[software.Kubernetes137]
	th := newUpgraded(t, moved{
		name: "1 control plane, 2 workers; sent at 8 MB a second", hosts: 3,
		groups: hosts.Groups{"kube_control_plane": {1}, "etcd": {1}, "image_registry": {1}, "kube_worker": {2, 3}},
		with:   []software.Extra{software.Kubernetes137}, etcdType: manifest.EtcdInternal,
		from: side{KubernetesRelease: own, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		to:   side{KubernetesRelease: to, containerd: software.ContainerdVersion, flannel: software.FlannelVersion},
		over: []string{own.Version},
	})
	steps(t, []step{
		{"two bundles, one cluster", th.begin},
		{"upgraded in one run, with nothing staged", func(t *testing.T) {
			th.move(t, results.Move{From: th.from.Version, To: th.to.Version}, nil, th.slowly(t))
		}},
		{"the release before on hosts that were reset", func(t *testing.T) {
			run(t, th.withNext(t, "reset", "--yes", "--with-data")).must(t, 0)
			run(t, th.site(t, "install")).must(t, 0)
			th.apply(t, steady)
			th.kubectl(t, "-n steady rollout status deployment/steady --timeout=5m")
		}},
		{"staged, and upgraded in windows", th.windows},
		{"the next release runs", func(t *testing.T) { th.running(t, th.to) }},
		{"no packet left the hosts' network", th.packets},
	})
}

// slowly returns upgrades with the next bundle at the rate of a slow line.
func (th *upgraded) slowly(t *testing.T) func(flags ...string) *exec.Cmd {
	return func(flags ...string) *exec.Cmd { return th.withNext(t, "upgrade", append(flags, "--rate", "8M")...) }
}

// windows stages the upgrade, makes it in parts, and compares its time with that of the upgrade before.
func (th *upgraded) windows(t *testing.T) {
	upgrade := th.slowly(t)
	stage := run(t, upgrade("--stage", "--yes")).must(t, 0)
	t.Logf("the stage took %s", stage.took.Round(time.Second))
	stop := th.watch(t)
	m := results.Move{
		From: th.from.Version, To: th.to.Version, Topology: th.name + "; staged, in windows",
		Stage: int(stage.took.Seconds()),
	}
	var took time.Duration
	// part runs a part of the upgrade, whose end is known by its exit code. A refused one does nothing.
	part := func(flags ...string) result {
		r := run(t, upgrade(append(flags, "--yes")...))
		if r.code != 12 {
			took += r.took
			m.Runs++
		}
		t.Logf("%v: exit code %d after %s, kubelets %s\n%s", flags, r.code, r.took.Round(time.Second),
			th.kubectl(t, "get nodes -o jsonpath={.items[*].status.nodeInfo.kubeletVersion}"), r.stderr)
		return r
	}
	if r := part("--window", "10s").must(t, 12); !strings.Contains(r.stderr, "the window of 10s is too short") {
		t.Errorf("want the time of a node, got\n%s", r.stderr)
	}
	// The run ends after the first of two steps, which brings changed settings to the canary.
	if r := part("--canary", "host2").must(t, 25); !strings.Contains(r.stderr, "left: host1, host2, host3") {
		t.Errorf("want all hosts to be left, got\n%s", r.stderr)
	}
	paused := 0
	for window := 5 * time.Second; window < time.Hour; window *= 2 {
		r := part("--window", window.String(), "--check", `test -n "$KKBUNDLE_NODES"`)
		if r.code == 0 {
			break
		}
		if paused++; r.code != 25 && r.code != 12 {
			r.must(t, 25)
		}
	}
	if paused == 0 {
		t.Error("no window was too short for the last node")
	}
	m.Seconds = int(took.Seconds())
	stop(&m)
	before := th.moves[0].Seconds
	t.Logf("in one run, not staged: %d s; staged, in %d runs: %d s; %d windows were too short", before, m.Runs,
		m.Seconds, paused)
	th.moves = append(th.moves, m)
}

// stage stages twice.
func (th *upgraded) stage(t *testing.T) {
	state := func() string {
		return th.kubectl(t, `get pods -A -o jsonpath='{range .items[*]}{.metadata.name} `+
			`{.status.containerStatuses[*].containerID}{"\n"}{end}'`) +
			th.kubectl(t, `get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.unschedulable} `+
				`{.status.nodeInfo.kubeletVersion}{"\n"}{end}'`)
	}
	before := state()
	r := run(t, th.withNext(t, "upgrade", "--stage", "--yes")).must(t, 0)
	t.Logf("the stage took %s\n%s", r.took.Round(time.Second), r.stderr)
	if after := state(); after != before {
		t.Errorf("a stage changed pods or nodes:\n%s", difference(before, after))
	}
	r = run(t, th.withNext(t, "upgrade", "--stage", "--yes")).must(t, 0)
	t.Logf("another one took %s", r.took.Round(time.Second))
	if !strings.Contains(r.stderr, "0 changed, ") {
		t.Errorf("another stage moved something:\n%s", r.stderr)
	}
	r = run(t, th.withNext(t, "upgrade", "--plan")).must(t, 0)
	// What the registry lacks is an estimate, with room for each manifest.
	if little := regexp.MustCompile(`registry: lacks [0-9.]+ (B|KiB)`); strings.Count(r.stderr, "not staged: nothing") != 2 ||
		!little.MatchString(r.stderr) {
		t.Errorf("want two nodes and a registry that lack nothing, got\n%s", r.stderr)
	}
}
