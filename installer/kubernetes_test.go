//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	f := sitetest.NewFakeCluster(t, s)
	cp, node := s.Hosts["cp1"], s.Hosts["node1"]
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.JoinTask("join-worker", task.Each,
		manifest.RoleWorker)}}}
	f.Fail = &host.ExitError{
		Host: "node1", Args: []string{"kubeadm", "join"}, Code: 1,
		Stderr: "the CRI does not answer",
	}
	err := s.Run(t, nil).Phases(t.Context(), phases)
	if err == nil || !strings.HasPrefix(err.Error(),
		"node1: install join-worker: kubeadm join: exit code 1: the CRI does not answer\nlogs: ") {
		t.Errorf("got %v", err)
	}
	if node.Content(marks.KubeadmConfig) != "" {
		t.Error("the file with the token is still there")
	}
	node.Said("")
	f.Fail = nil
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	want := []string{"kubeadm reset --force --cri-socket=" + cri.ContainerdSocket, "kubeadm join --config=" +
		marks.KubeadmConfig}
	if diff := cmp.Diff(node.Said("kubeadm"), want); diff != "" {
		t.Errorf("after a failure (-got +want):\n%s", diff)
	}
	if !strings.HasPrefix(node.Content(member.Path), "site v1.34.3\nkubernetes.podCIDR 10.233.64.0/18\n") {
		t.Errorf("the host is a member of %q", node.Content(member.Path))
	}
	_, config, _ := strings.Cut(f.Configs[1], "    token: ")
	token, _, _ := strings.Cut(config, "\n")
	id, secret, _ := strings.Cut(token, ".")
	if len(token) != 23 || !strings.Contains(f.Applied[1], "token-secret: "+secret) {
		t.Errorf("token %q is not the one of the secret:\n%s", token, f.Applied[1])
	}
	if !strings.Contains(f.Configs[1], "- sha256:") {
		t.Errorf("the authority is not pinned:\n%s", f.Configs[1])
	}
	commands := strings.Join(cp.Said("kubectl"), "\n")
	if strings.Contains(commands, secret) ||
		!strings.Contains(commands, "delete secret --namespace=kube-system --ignore-not-found bootstrap-token-"+id) {
		t.Errorf("commands on cp1:\n%s", commands)
	}
	s.States()
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.States(), []string{"join-worker@node1 done"}); diff != "" {
		t.Errorf("a member joins again (-got +want):\n%s", diff)
	}
}

func TestAnotherClustersNodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	sitetest.NewFakeCluster(t, s)
	h := s.Hosts["cp1"]
	h.Put(t, member.BegunPath, "")
	h.Put(t, member.Path, "site v1.33.7\n")
	err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.InitTask(tasktest.Cluster(t, ""))}}})
	var other *member.OtherClusterError
	if !errors.As(err, &other) || other.Is != "site v1.33.7" || other.Want != "site v1.34.3" {
		t.Errorf("got %v", err)
	}
	if ran := h.Said("kubeadm"); len(ran) > 0 {
		t.Errorf("it runs %v", ran)
	}
}

func TestControlPlaneJoinsWithUploadedCertificates(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "cp2")
	s.Options.Inventory = &manifest.Inventory{
		HostSpecs: manifest.HostSpecs{{Name: "cp1", Address: "10.0.0.3"}, {Name: "cp2", Address: "10.0.0.4"}},
		Groups:    manifest.Groups{ControlPlane: []string{"cp1", "cp2"}, Registry: []string{"cp1"}},
	}
	f := sitetest.NewFakeCluster(t, s)
	s.Hosts["cp1"].Put(t, member.Path, "site v1.34.3\n")
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.JoinTask("join-control-plane", task.OneByOne,
		manifest.RoleControlPlane)}}}
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.Hosts["cp1"].Said("kubeadm"),
		[]string{"kubeadm init phase upload-certs --upload-certs --config=" + marks.KubeadmConfig}); diff != "" {
		t.Errorf("on cp1 (-got +want):\n%s", diff)
	}
	_, rest, _ := strings.Cut(f.Configs[0], "certificateKey: ")
	key, _, _ := strings.Cut(rest, "\n")
	if len(strings.Trim(key, `"`)) != 64 || !strings.Contains(f.Configs[1], key) {
		t.Errorf("the joining node does not get the key %q", key)
	}
}
