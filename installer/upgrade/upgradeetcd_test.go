package upgrade

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestEtcdIsPassedWhereItRunsOld: the step for etcd alone is left out where every member is new enough, and where an
// API server is beyond it already: kubeadm would downgrade that one.
func TestEtcdIsPassedWhereItRunsOld(t *testing.T) {
	t.Parallel()
	cp := func(name, server string) Node {
		return Node{Name: name, ControlPlane: true, APIServer: server, Kubelet: "v1.33.6", Recorded: "v1.33.6"}
	}
	for name, c := range map[string]struct {
		etcd  []string
		nodes []Node
		steps []string
	}{
		"old": {
			[]string{"3.5.24", "3.5.24"},
			[]Node{cp("cp1", "v1.33.6"), cp("cp2", "v1.33.6")},
			[]string{"v1.33.13", "v1.34.4"},
		},
		"one old": {
			[]string{"3.5.32", "3.5.24"},
			[]Node{cp("cp1", "v1.33.6"), cp("cp2", "v1.33.6")},
			[]string{"v1.33.13", "v1.34.4"},
		},
		"unknown": {nil, []Node{cp("cp1", "v1.33.6"), cp("cp2", "v1.33.6")}, []string{"v1.33.13", "v1.34.4"}},
		"new": {
			[]string{"3.5.26", "3.5.32"},
			[]Node{cp("cp1", "v1.33.6"), cp("cp2", "v1.33.6")},
			[]string{"v1.34.4"},
		},
		"passed": {
			[]string{"3.6.5", "3.5.32"},
			[]Node{cp("cp1", "v1.34.4"), cp("cp2", "v1.33.6")},
			[]string{"v1.34.4"},
		},
		"too late": {nil, []Node{cp("cp1", "v1.34.4"), cp("cp2", "v1.33.6")}, []string{"v1.34.4"}},
		"mid patch": {
			[]string{"3.5.32", "3.5.24"},
			[]Node{cp("cp1", "v1.33.13"), cp("cp2", "v1.33.6")},
			[]string{"v1.33.13", "v1.34.4"},
		},
	} {
		u := newUpgrade(&nodeWalk{Run: &engine.Run{Site: &task.Site{Cluster: tasktest.Cluster(t,
			"kubernetes: {version: v1.34.4}")}}})
		steps, err := u.steps(Plan{Cluster: "site", To: "v1.34.4", Nodes: c.nodes, etcd: c.etcd})
		if err != nil || !slices.Equal(steps, c.steps) {
			t.Errorf("%s: %q, %v, want %q", name, steps, err, c.steps)
		}
	}
}

// runsEtcd gives a host the program of external etcd.
func runsEtcd(t *testing.T, h *sitetest.Rooted, version string) {
	t.Helper()
	h.Put(t, "/usr/local/bin/etcd", version)
	h.Answer("etcd", func(_ context.Context, cmd host.Cmd) error {
		_, err := cmd.Stdout.Write([]byte("etcd Version: " + version + "\nGit SHA: 1\n"))
		return err
	})
}

// TestExternalEtcdIsNotSkipped: etcd beside the cluster goes to the bundle's version in one step, so an old one is
// refused with the way around.
func TestExternalEtcdIsNotSkipped(t *testing.T) {
	t.Parallel()
	s, _ := upgradeSite(t, "v1.33.6", "cp1", "node1")
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.4}\netcd: {type: external}")
	for version, refused := range map[string]bool{"3.5.24": true, "3.5.26": false, "3.6.5": false} {
		u := upgradeWith(s, t, nil)
		for _, h := range u.WithRole("etcd") {
			runsEtcd(t, s.Hosts[h.Name], version)
		}
		err := checkExternalEtcd(t.Context(), u.Run)
		var e *RefusedError
		if errors.As(err, &e) != refused || !refused && err != nil {
			t.Errorf("%s: %v", version, err)
		}
		if refused && (!strings.Contains(err.Error(),
			"is 3.5.24, and the bundle's must not be reached from it directly") ||
			!strings.Contains(e.Hint(), "components: {etcd: {version: v3.5.32}}")) {
			t.Errorf("%s: %v\n%s", version, err, e.Hint())
		}
	}
}

// The copy of etcd that an upgrade makes needs room on hosts of etcd that are no nodes, too.
func TestRoomOnHostsOfEtcdAlone(t *testing.T) {
	t.Parallel()
	s, _ := upgradeSite(t, "v1.34.2", "cp1", "etcd1")
	s.Options.Inventory.Groups = manifest.Groups{
		ControlPlane: []string{"cp1"}, Registry: []string{"cp1"},
		Etcd: []string{"cp1", "etcd1"},
	}
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3}\netcd: {type: external}")
	u := upgradeWith(s, t, nil)
	alone := u.etcdAlone()
	if len(alone) != 1 || alone[0].Name != "etcd1" {
		t.Fatalf("hosts of etcd alone: %v", alone)
	}
	h := s.Hosts["etcd1"]
	h.Mkdir(t, u.Cluster.Etcd.DataDir)
	h.Answer("du", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "9999999\t"+u.Cluster.Etcd.DataDir+"\n")
		return err
	})
	for free, want := range map[string]string{
		"4096":     "etcd1 has 0 MiB free on /, and up to 9 MiB are written there",
		"99999999": "",
	} {
		h.Answer("df", func(_ context.Context, cmd host.Cmd) error {
			_, err := io.WriteString(cmd.Stdout, "Avail Mounted on\n"+free+" /\n")
			return err
		})
		if err := errors.Join(u.roomForSnapshot(t.Context(), alone[0])...); want == "" && err != nil ||
			want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s bytes free: %v", free, err)
		}
	}
}

// A rollback that cannot ask etcd for the version of its data says why it has to.
func TestRollbackAsksEtcd(t *testing.T) {
	t.Parallel()
	s, f := upgradeSite(t, "v1.34.3", "cp1")
	b := rollbackTo(s, t, f, s.Options.Cluster, nil)
	kept := marks.Copies{Dir: "/var/kept"}
	s.Hosts["cp1"].Put(t, kept.Dir+kube.ManifestsDir+"/etcd.yaml", "image: registry.k8s.io/etcd:3.5.26-0\n")
	s.Hosts["cp1"].Put(t, kube.ManifestsDir+"/etcd.yaml", "image: registry.k8s.io/etcd:3.6.5-0\n")
	b.member = func(context.Context, *task.Host) (health.EtcdMetrics, error) {
		return health.EtcdMetrics{}, errors.New("connection refused")
	}
	err := b.etcdAllows(t.Context(), b.Hosts[0], kept)
	var hinted interface{ Hint() string }
	if !errors.As(err, &hinted) || !strings.Contains(err.Error(), "connection refused") ||
		!strings.Contains(hinted.Hint(), "etcd 3.5.26 may not read the data of 3.6.5") ||
		!strings.Contains(hinted.Hint(), "continue the upgrade") {
		t.Errorf("got %v", err)
	}
}

// A control plane whose API server stays away names the rollback only if it has copies for one.
func TestAPIServerThatStaysAway(t *testing.T) {
	t.Parallel()
	s, _ := upgradeSite(t, "v1.34.3", "cp1")
	h := s.Run(t, nil).Hosts[0]
	var hinted interface{ Hint() string }
	if err := noAPIServer(t.Context(), h, errors.New("refused")); err.Error() != "API server of cp1: refused" ||
		errors.As(err, &hinted) {
		t.Errorf("without copies: %v", err)
	}
	s.Hosts["cp1"].Put(t, marks.CopiesOf("v1.34.2").Path("complete"), "")
	if err := noAPIServer(t.Context(), h, errors.New("refused")); !errors.As(err, &hinted) ||
		!strings.Contains(hinted.Hint(), "kkbundle upgrade --rollback") {
		t.Errorf("with copies: %v", err)
	}
}
