//go:build linux

package installer

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fakeCluster plays kubectl and kubeadm on a site.
type fakeCluster struct {
	mu      sync.Mutex
	applied []string // what kubectl was given to apply
	configs []string // what kubeadm was configured with
	fail    error
}

func newFakeCluster(t *testing.T, s *site) *fakeCluster {
	t.Helper()
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeCluster{}
	for _, h := range s.hosts {
		h.put(t, kube.ClusterCA, string(ca))
		h.answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if cmd.Stdin != nil {
				data, _ := io.ReadAll(cmd.Stdin)
				f.applied = append(f.applied, string(data))
			}
			return nil
		})
		h.answer("etcdctl", noMembers)
		h.answer("kubeadm", func(_ context.Context, cmd host.Cmd) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if cmd.Args[1] != "reset" {
				f.configs = append(f.configs, h.content(marks.KubeadmConfig))
			}
			return f.fail
		})
	}
	return f
}

// noMembers is etcdctl, asked for members.
func noMembers(_ context.Context, cmd host.Cmd) error {
	_, err := io.WriteString(cmd.Stdout, `{"members":[]}`)
	return err
}

func TestJoin(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	f := newFakeCluster(t, s)
	cp, node := s.hosts["cp1"], s.hosts["node1"]
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.JoinTask("join-worker", task.Each, manifest.RoleWorker)}}}
	f.fail = &host.ExitError{Host: "node1", Args: []string{"kubeadm", "join"}, Code: 1, Stderr: "the CRI does not answer"}
	err := s.run(t, nil).Phases(t.Context(), phases)
	if err == nil || !strings.HasPrefix(err.Error(), "node1: install join-worker: kubeadm join: exit code 1: the CRI does not answer\nlogs: ") {
		t.Errorf("got %v", err)
	}
	if node.content(marks.KubeadmConfig) != "" {
		t.Error("the file with the token is still there")
	}
	node.said("")
	f.fail = nil
	if err := s.run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want := []string{"kubeadm reset --force --cri-socket=" + cri.ContainerdSocket, "kubeadm join --config=" + marks.KubeadmConfig}
	if diff := cmp.Diff(node.said("kubeadm"), want); diff != "" {
		t.Errorf("after a failure (-got +want):\n%s", diff)
	}
	if !strings.HasPrefix(node.content(member.Path), "site v1.34.3\nkubernetes.podCIDR 10.233.64.0/18\n") {
		t.Errorf("the host is a member of %q", node.content(member.Path))
	}
	_, config, _ := strings.Cut(f.configs[1], "    token: ")
	token, _, _ := strings.Cut(config, "\n")
	id, secret, _ := strings.Cut(token, ".")
	if len(token) != 23 || !strings.Contains(f.applied[1], "token-secret: "+secret) {
		t.Errorf("token %q is not the one of the secret:\n%s", token, f.applied[1])
	}
	if !strings.Contains(f.configs[1], "- sha256:") {
		t.Errorf("the authority is not pinned:\n%s", f.configs[1])
	}
	commands := strings.Join(cp.said("kubectl"), "\n")
	if strings.Contains(commands, secret) || !strings.Contains(commands, "delete secret --namespace=kube-system --ignore-not-found bootstrap-token-"+id) {
		t.Errorf("commands on cp1:\n%s", commands)
	}
	s.states()
	if err := s.run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.states(), []string{"join-worker@node1 done"}); diff != "" {
		t.Errorf("a member joins again (-got +want):\n%s", diff)
	}
}

func TestAnotherClustersNodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	newFakeCluster(t, s)
	h := s.hosts["cp1"]
	h.put(t, member.BegunPath, "")
	h.put(t, member.Path, "site v1.33.7\n")
	err := s.run(t, nil).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.InitTask(tasktest.Cluster(t, ""))}}})
	var other *member.OtherClusterError
	if !errors.As(err, &other) || other.Is != "site v1.33.7" || other.Want != "site v1.34.3" {
		t.Errorf("got %v", err)
	}
	if ran := h.said("kubeadm"); len(ran) > 0 {
		t.Errorf("it runs %v", ran)
	}
}

func TestControlPlaneJoinsWithUploadedCertificates(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "cp2")
	s.options.Inventory = &manifest.Inventory{
		HostSpecs: manifest.HostSpecs{{Name: "cp1", Address: "10.0.0.3"}, {Name: "cp2", Address: "10.0.0.4"}},
		Groups:    manifest.Groups{ControlPlane: []string{"cp1", "cp2"}, Registry: []string{"cp1"}},
	}
	f := newFakeCluster(t, s)
	s.hosts["cp1"].put(t, member.Path, "site v1.34.3\n")
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.JoinTask("join-control-plane", task.OneByOne, manifest.RoleControlPlane)}}}
	if err := s.run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.hosts["cp1"].said("kubeadm"), []string{"kubeadm init phase upload-certs --upload-certs --config=" + marks.KubeadmConfig}); diff != "" {
		t.Errorf("on cp1 (-got +want):\n%s", diff)
	}
	_, rest, _ := strings.Cut(f.configs[0], "certificateKey: ")
	key, _, _ := strings.Cut(rest, "\n")
	if len(strings.Trim(key, `"`)) != 64 || !strings.Contains(f.configs[1], key) {
		t.Errorf("the joining node does not get the key %q", key)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	r := s.run(t, clusterBundle(t, s.options.Cluster))
	h := s.hosts["cp1"]
	if err := r.Phases(t.Context(), []task.Phase{{Name: "install", Tasks: []task.Task{cri.ContainerdTask(), kubeadm.KubeletTask(tasktest.Cluster(t, ""))}}}); err != nil {
		t.Fatal(err)
	}
	h.put(t, "/usr/local/bin/mine", "")
	h.put(t, "/etc/kubernetes/manifests/etcd.yaml", "")
	h.put(t, "/var/lib/etcd/member/wal", "")
	h.put(t, "/opt/cni/bin/mine", "")
	h.put(t, siteregistry.DataDir+"/blob", "")
	for range 2 {
		if err := reset(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	for _, dir := range []string{"/usr", "/opt", "/etc", "/var"} {
		out, err := r.Hosts[0].Output(t.Context(), "find", dir, "-type", "f")
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, strings.Fields(string(out))...)
	}
	want := []string{"/usr/local/bin/mine", "/opt/cni/bin/mine", "/etc/hosts", "/etc/resolv.conf", siteregistry.DataDir + "/blob"}
	if diff := cmp.Diff(sorted(left), sorted(want)); diff != "" {
		t.Errorf("left (-got +want):\n%s", diff)
	}
}

// The registry's user owns the images, so it goes when they go.
func TestResetRegistryUser(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	r := s.run(t, clusterBundle(t, s.options.Cluster))
	h := s.hosts["cp1"]
	there := true
	h.answer("getent", func(_ context.Context, cmd host.Cmd) error {
		if there && slices.Equal(cmd.Args[1:], []string{"passwd", siteregistry.Account}) {
			return nil
		}
		return &host.ExitError{Code: 2}
	})
	h.answer("userdel", func(_ context.Context, cmd host.Cmd) error {
		there = !slices.Equal(cmd.Args[1:], []string{siteregistry.Account})
		return nil
	})
	for _, step := range []struct {
		name             string
		files            []string
		withData, before bool // the user is there before
		stays            bool
	}{
		{"images stay", []string{task.UnitDir + siteregistry.Unit, siteregistry.DataDir + "/blob"}, false, true, true},
		{"images are left of an earlier reset", nil, true, true, false},
		{"everything at once", []string{task.UnitDir + siteregistry.Unit, siteregistry.DataDir + "/blob"}, true, true, false},
		{"killed before there were images", []string{task.UnitDir + siteregistry.Unit}, false, true, false},
		{"killed before the user went", nil, true, true, false},
		{"no user", nil, true, false, false},
	} {
		h.mkdir(t, task.StateDir) // which the lock makes
		for _, path := range step.files {
			h.put(t, path, "")
		}
		there, r.WithData = step.before, step.withData
		if err := reset(t.Context(), r); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if there != step.stays {
			t.Errorf("%s: the user is there: %t", step.name, there)
		}
	}
}
