//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestPatches(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	inv, err := manifest.ParseInventory("i", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  cp1: {address: 10.0.0.3}
  node1: {address: 10.0.0.4, cluster: {kubernetes: {maxPods: 50, kubelet: {systemReserved: {memory: 1Gi}}}}}
groups: {kube_control_plane: [cp1], kube_worker: [node1], image_registry: [cp1]}
`))
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Inventory = inv
	s.Options.Cluster = tasktest.Cluster(t,
		"kubernetes: {version: v1.34.3, kubelet: {systemReserved: {cpu: 200m}}, patches: [p/kube-apiserver0+merge.yaml]}")
	s.Options.Values = func(path string) ([]byte, error) {
		if path != "p/kube-apiserver0+merge.yaml" {
			return nil, errors.New("no such file")
		}
		return []byte("spec: {}\n"), nil
	}
	sitetest.NewFakeCluster(t, s)
	phases := []task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.PatchesTask()}}}
	once := func() *engine.Run {
		t.Helper()
		r := s.Run(t, nil)
		if err := r.Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := once()
	cp, node := s.Hosts["cp1"], s.Hosts["node1"]
	if cp.Content(kubeadm.PatchesDir+"/kube-apiserver0+merge.yaml") != "spec: {}\n" ||
		cp.Content(kubeadm.PatchesDir+"/"+kubeadm.HostPatch) != "" {
		t.Error("cp1 has other patches")
	}
	if diff := cmp.Diff(node.Content(kubeadm.PatchesDir+"/"+kubeadm.HostPatch),
		"maxPods: 50\nsystemReserved:\n  memory: 1Gi\n"); diff != "" {
		t.Errorf("node1's own (-got +want):\n%s", diff)
	}
	if ran := node.Said("kubeadm"); len(ran) > 0 {
		t.Errorf("before there is a node: %v", ran)
	}
	if j, err := kubeadm.NodeOf(t.Context(), r.Hosts[1]); err != nil || !j.Patched {
		t.Errorf("a joining node is not told of patches: %v", err)
	}
	s.States()
	if once(); strings.Contains(strings.Join(s.States(), " "), "changed") {
		t.Error("a second run changes something")
	}
	// On a node that is there, the kubelet is configured anew, and what is not wanted any more goes.
	node.Put(t, member.Path, "site v1.34.3\n")
	node.Put(t, kubeadm.PatchesDir+"/kubeletconfiguration9+merge.yaml", "maxPods: 1\n")
	node.Said("")
	once()
	if node.Content(kubeadm.PatchesDir+"/kubeletconfiguration9+merge.yaml") != "" {
		t.Error("a patch that nobody wants is still there")
	}
	node.Mu.Lock()
	all := strings.Join(node.Ran, "\n")
	node.Mu.Unlock()
	if !strings.Contains(all, "kubeadm upgrade node phase kubelet-config --patches="+kubeadm.PatchesDir) ||
		!strings.Contains(all, "systemctl restart kubelet.service") {
		t.Errorf("node1 ran\n%s", all)
	}
}
