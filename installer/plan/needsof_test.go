package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

func TestNeedsOf(t *testing.T) {
	t.Parallel()
	c := &manifest.Cluster{Kubernetes: manifest.Kubernetes{Version: "v1.34.3"}}
	for name, tc := range map[string]struct {
		roles       []manifest.Role
		has, hasNot []string
	}{
		"control plane": {
			roles: []manifest.Role{manifest.RoleControlPlane, manifest.RoleCluster},
			has: []string{
				"file kubeadm", "file containerd", "image kube-apiserver", "image etcd", "image flannel",
				"image coredns",
			},
			hasNot: []string{"file registry", "chart flannel"},
		},
		"worker": {
			roles: []manifest.Role{manifest.RoleWorker, manifest.RoleCluster},
			has: []string{
				"file kubelet", "file runc", "image kube-proxy", "image pause", "image flannel",
				"image coredns",
			},
			hasNot: []string{"image kube-apiserver", "image etcd", "file registry"},
		},
		"registry": {
			roles:  []manifest.Role{manifest.RoleRegistry},
			has:    []string{"file registry"},
			hasNot: []string{"file kubeadm", "image pause", "image coredns"},
		},
	} {
		var list []string
		for _, n := range NeedsOf(c, tc.roles) {
			list = append(list, n.Kind+" "+n.Name)
		}
		text := strings.Join(list, ", ")
		for _, want := range tc.has {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in %s", name, want, text)
			}
		}
		for _, not := range tc.hasNot {
			if strings.Contains(text, not) {
				t.Errorf("%s: %s in %s", name, not, text)
			}
		}
	}
	all := map[manifest.Need]bool{}
	for _, roles := range [][]manifest.Role{
		{manifest.RoleControlPlane, manifest.RoleCluster},
		{manifest.RoleRegistry},
	} {
		for _, n := range NeedsOf(c, roles) {
			all[n] = true
		}
	}
	for _, n := range Needs(c) {
		if !all[n] && n.Kind != manifest.ItemChart {
			t.Errorf("no host needs %v", n)
		}
	}
}

// The controllers of a management cluster run on any node; clusterctl is for control planes.
func TestNeedsOfManagementCluster(t *testing.T) {
	t.Parallel()
	c := &manifest.Cluster{
		Kubernetes: manifest.Kubernetes{Version: "v1.36.3"}, ClusterAPI: manifest.ClusterAPI{Version: "v1.14.2"},
	}
	has := func(role manifest.Role, kind, name string) bool {
		return slices.Contains(NeedsOf(c, []manifest.Role{role, manifest.RoleCluster}), manifest.Need{Kind: kind, Name: name})
	}
	for _, image := range []string{"cluster-api", "cluster-api-bootstrap-kubeadm", "cluster-api-provider", "cert-manager"} {
		if !has(manifest.RoleWorker, manifest.ItemImage, image) {
			t.Errorf("no worker needs the image %s", image)
		}
	}
	if !has(manifest.RoleControlPlane, manifest.ItemFile, "clusterctl") || has(manifest.RoleWorker, manifest.ItemFile, "clusterctl") {
		t.Error("clusterctl is for control planes, and for nobody else")
	}
}
