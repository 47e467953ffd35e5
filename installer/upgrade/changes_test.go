//go:build linux

package upgrade

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// runtimeBundle has the programs of a cluster's nodes and an image of each upstream.
func runtimeBundle(t *testing.T, c *manifest.Cluster, upstreams ...string) *bundle.Reader {
	t.Helper()
	b := bundletest.NewBuilder(t)
	for _, name := range []string{"containerd", "runc", "cni-plugins", "kubeadm", "kubectl", "kubelet"} {
		ref, err := catalog.Ref(c, manifest.Need{Kind: manifest.ItemFile, Name: name}, "linux/amd64")
		if err != nil {
			t.Fatal(err)
		}
		b.File(ref, name, &ocispec.Platform{OS: "linux", Architecture: "amd64"}, sitetest.FileContent(t, c, name))
	}
	for i, host := range upstreams {
		b.Image(host+"/app:1", bundletest.RandomImage(t, int64(i+1), 1, 1000))
	}
	return b.Bundle().Reader
}

// runningSite makes nodes of v1.34.3 with the programs of a bundle in force.
func runningSite(t *testing.T, names ...string) (*sitetest.Site, *fakeAPI) {
	t.Helper()
	s, f := upgradeSite(t, "v1.34.3", names...)
	c := s.Options.Cluster
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask(), kubeadm.KubeletTask(c)}}}
	if err := s.Run(t, runtimeBundle(t, c, "docker.io")).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	for _, n := range f.nodes {
		n.Status.NodeInfo.ContainerRuntimeVersion = "containerd://2.1.4"
	}
	f.steps()
	s.States()
	for _, h := range s.Hosts {
		h.Said("")
	}
	return s, f
}

// Another runtime in a rebuilt bundle is not for install: it would restart the runtimes of all nodes at once.
func TestInstallRefusesAnotherRuntime(t *testing.T) {
	t.Parallel()
	s, _ := runningSite(t, "cp1", "node1", "node2")
	plan := plan.Plan(s.Options.Cluster)
	check := func(b *bundle.Reader, phases []task.Phase) error {
		return CheckChanges(t.Context(), s.Run(t, b), phases)
	}
	if err := check(runtimeBundle(t, s.Options.Cluster, "docker.io", "quay.io"), plan); err != nil {
		t.Errorf("a new upstream host is refused: %v", err)
	}
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3}\ncri: {version: v1.7.30}")
	other := runtimeBundle(t, s.Options.Cluster, "docker.io")
	err := check(other, plan)
	var changes *ChangesError
	if !errors.As(err, &changes) ||
		!strings.HasSuffix(err.Error(), "\n  containerd v2.1.4 -> v1.7.30 on cp1, node1, node2") ||
		!strings.Contains(changes.Hint(), "kkbundle upgrade -i INVENTORY BUNDLE") {
		t.Errorf("another runtime: %v", err)
	}
	if err := check(other, []task.Phase{{
		Name:  "install",
		Tasks: []task.Task{kubeadm.KubeletTask(s.Options.Cluster)},
	}}); err != nil {
		t.Errorf("another runtime that install leaves alone: %v", err)
	}
	s.Options.Limit = []string{"node2"}
	if err := check(other, plan); err == nil || !strings.HasSuffix(err.Error(), " on node2") {
		t.Errorf("with --limit: %v", err)
	}
}

// A host that was changed by hand, or that is no node yet, is install's.
func TestInstallRepairsTheRuntime(t *testing.T) {
	t.Parallel()
	s, _ := runningSite(t, "cp1", "node1", "node2")
	s.Hosts["node1"].Put(t, cri.ContainerdConfigFile, "edited\n")
	s.Hosts["node1"].Put(t, "/usr/local/bin/containerd", "damaged\n")
	b := runtimeBundle(t, s.Options.Cluster, "docker.io")
	if err := CheckChanges(t.Context(), s.Run(t, b), plan.Plan(s.Options.Cluster)); err != nil {
		t.Errorf("a repair is refused: %v", err)
	}
	if err := s.Run(t, b).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask()}}}); err != nil {
		t.Fatal(err)
	}
	if got, want := s.States(), []string{
		"containerd@cp1 done", "containerd@node1 changed",
		"containerd@node2 done",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An image of a new upstream host adds a file that containerd reads at the next pull.
func TestNewUpstreamRestartsNothing(t *testing.T) {
	t.Parallel()
	s, _ := runningSite(t, "cp1")
	b := runtimeBundle(t, s.Options.Cluster, "docker.io", "quay.io")
	if err := s.Run(t, b).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask()}}}); err != nil {
		t.Fatal(err)
	}
	if s.Hosts["cp1"].Content(cri.CertsDir+"/quay.io/hosts.toml") == "" {
		t.Error("the new upstream host has no mirror")
	}
	for _, line := range s.Hosts["cp1"].Said("") {
		if strings.Contains(line, "systemctl restart") {
			t.Errorf("ran %q", line)
		}
	}
}

// A runtime alone is upgraded as a release is: drained, in batches, stopped at the first failure, continued.
func TestUpgradeOfTheRuntimeAlone(t *testing.T) {
	t.Parallel()
	s, f := runningSite(t, "cp1", "node1", "node2", "node3")
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3}\ncri: {version: v1.7.30}")
	b := runtimeBundle(t, s.Options.Cluster, "docker.io")
	start := func() *upgrade {
		u := upgradeWith(s, t, b)
		u.how.Batch = Batch{count: 1}
		return u
	}
	u := start()
	planned, err := u.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if planned.Changes, err = u.changes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := "containerd v2.1.4 -> v1.7.30 on cp1, node1, node2, node3"; len(planned.Changes) != 1 ||
		planned.Changes[0].String() != want {
		t.Errorf("changes %v, want %s", planned.Changes, want)
	}
	f.fail = func(_ int, line string) (bool, bool) { return strings.HasPrefix(line, "drain node2"), false }
	var stopped *StoppedError
	if _, err := start().walkAll(t.Context()); !errors.As(err, &stopped) {
		t.Fatalf("got %v", err)
	}
	restarted := func(name string) bool {
		return slices.Contains(s.Hosts[name].Said(""), "systemctl restart containerd.service")
	}
	for name, want := range map[string]bool{"cp1": true, "node1": true, "node2": false, "node3": false} {
		if got := restarted(name); got != want {
			t.Errorf("%s was restarted: %v", name, got)
		}
	}
	want := []string{
		"cp1: drain cp1", "cp1: systemctl try-restart kubelet.service", "cp1: uncordon cp1",
		"cp1: drain node1", "node1: kubeadm upgrade node", "node1: systemctl try-restart kubelet.service",
		"cp1: uncordon node1",
		"cp1: drain node2",
	}
	if diff := cmp.Diff(f.steps(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	f.fail = nil
	if _, err := start().walkAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.steps(); len(got) == 0 || got[0] != "cp1: drain node2" {
		t.Errorf("it goes on with %q", got)
	}
	if err := CheckChanges(t.Context(), s.Run(t, b), plan.Plan(s.Options.Cluster)); err != nil {
		t.Errorf("install after the upgrade: %v", err)
	}
}

// Another minor release of external etcd is upgrade's, which saves etcd first. A patch release, and etcd that --limit
// leaves alone, are install's.
func TestInstallRefusesAnotherMinorOfEtcd(t *testing.T) {
	t.Parallel()
	s, _ := runningSite(t, "cp1", "node1")
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3}\netcd: {type: external}")
	for running, want := range map[string]string{
		"3.5.24": "is 3.5.24, and the bundle's must not be reached from it directly",
		"3.5.32": "\n  etcd v3.5.32 -> v3.6.5 on cp1",
		"3.6.4":  "",
		"3.6.5":  "",
	} {
		runsEtcd(t, s.Hosts["cp1"], running)
		r := s.Run(t, runtimeBundle(t, s.Options.Cluster, "docker.io"))
		err := CheckChanges(t.Context(), r, plan.Plan(s.Options.Cluster))
		if (err != nil) != (want != "") || err != nil && !strings.HasSuffix(strings.TrimSpace(err.Error()), want) {
			t.Errorf("%s: %v", running, err)
		}
		without := slices.DeleteFunc(plan.Plan(s.Options.Cluster),
			func(p task.Phase) bool { return hasTask([]task.Phase{p}, "etcd") })
		if err := CheckChanges(t.Context(), r, without); err != nil {
			t.Errorf("%s, which install leaves alone: %v", running, err)
		}
	}
	if err := os.Remove(s.Hosts["cp1"].Root + "/usr/local/bin/etcd"); err != nil {
		t.Fatal(err)
	}
	if err := CheckChanges(t.Context(), s.Run(t, runtimeBundle(t, s.Options.Cluster, "docker.io")),
		plan.Plan(s.Options.Cluster)); err != nil {
		t.Errorf("a member that is to be added: %v", err)
	}
}

// A bundle with another external etcd alone gives upgrade something to do: it saves etcd before it replaces the
// programs.
func TestUpgradeOfEtcdAlone(t *testing.T) {
	t.Parallel()
	s, _ := runningSite(t, "cp1", "node1")
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3}\netcd: {type: external}")
	runsEtcd(t, s.Hosts["cp1"], "3.6.4")
	u := upgradeWith(s, t, runtimeBundle(t, s.Options.Cluster, "docker.io"))
	changes, err := u.changes(t.Context())
	if err != nil || len(changes) != 1 || changes[0].String() != "etcd v3.6.4 -> v3.6.5 on cp1" {
		t.Errorf("got %v, %v", changes, err)
	}
}

// An API server that restarts in the middle of the plan is asked again: a run that was killed may have left it so.
func TestUpgradePlanWaitsForARestartingAPIServer(t *testing.T) {
	t.Parallel()
	s, _ := upgradeSite(t, "v1.34.2", "cp1")
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"SecretList","apiVersion":"v1","items":[]}`)
	}))
	address := api.Listener.Addr().String()
	if err := api.Listener.Close(); err != nil { // connections are refused
		t.Fatal(err)
	}
	started := make(chan error, 1)
	time.AfterFunc(2*time.Second, func() {
		var err error
		if api.Listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address); err == nil {
			api.Start()
		}
		started <- err
	})
	u := upgradeTo(s, t, "v1.34.3")
	conf := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a, cluster: {server: \"http://" + address + "\"}}]\nusers: [{name: a, user: {}}]\n"
	if err := os.WriteFile(filepath.Join(s.Options.WorkDir, task.AdminConfFile), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := u.changes(t.Context())
	if failed := <-started; failed != nil {
		t.Skipf("another took the port: %v", failed)
	}
	api.Close()
	if err != nil {
		t.Error(err)
	}
}
