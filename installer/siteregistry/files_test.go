package siteregistry

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// TestFiles: hosts ask the registry's hosts, each in its own order, for the repository into which push puts a file.
func TestFiles(t *testing.T) {
	t.Parallel()
	s := &task.Site{
		Cluster: tasktest.Cluster(t, "imageRegistry: {vip: 10.0.0.9}\nimageDistribution: {programs: registry}"),
		Registry: func(*task.Site) (task.RegistryAccess, error) {
			return task.RegistryAccess{
				Address: "10.0.0.9:5000", CA: []byte("ca"), Login: task.Login{Username: "u", Password: "p"},
			}, nil
		},
	}
	for i, name := range []string{"r1", "r2", "n1"} {
		h := &task.Host{
			Host: manifest.Host{Name: name}, Site: s, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}),
		}
		if i < 2 {
			h.Roles = []manifest.Role{manifest.RoleRegistry}
		}
		s.Hosts = append(s.Hosts, h)
	}
	list, err := Files().Access(s.Hosts[2])
	if err != nil || len(list) != 2 || list[0].Address == list[1].Address {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, one := range list {
		if string(one.CA) != "ca" || one.Authorization() != "Basic dTpw" || one.Address == "10.0.0.9:5000" {
			t.Errorf("%+v", one)
		}
	}
	got, err := Files().Repository(bundle.Item{
		Kind: bundle.KindFile, Ref: "https://dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubelet", Name: "kubelet",
	})
	if err != nil || got != "dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubelet" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestHolds: the registry gets what hosts of this site need, and nothing else that the bundle has.
func TestHolds(t *testing.T) {
	t.Parallel()
	const upgrade = "\nkubernetes: {version: v1.34.3, upgradeFrom: v1.32.8}"
	steps, err := catalog.Steps(tasktest.Cluster(t, upgrade), nil)
	if err != nil || len(steps) == 0 {
		t.Fatal(steps, err)
	}
	between := steps[len(steps)-1].Cluster.Kubernetes.Version
	file := func(ref, arch string) bundle.Item {
		return bundle.Item{Kind: bundle.KindFile, Ref: ref, Descriptor: ocispec.Descriptor{
			Platform: &ocispec.Platform{OS: "linux", Architecture: arch},
		}}
	}
	for _, c := range []struct {
		programs string
		file     bundle.Item
		want     bool
	}{
		{"registry", file("https://dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubelet", "amd64"), true},
		{"registry", file("https://dl.k8s.io/release/v1.34.3/bin/linux/arm64/kubelet", "arm64"), false},
		{"registry", file("https://dl.k8s.io/release/"+between+"/bin/linux/amd64/kubelet", "amd64"), true},
		{"registry", file("https://example.com/movie", "amd64"), false},
		{"registry", bundle.Item{Kind: bundle.KindImage, Ref: "docker.io/lab/app:1"}, true},
		{"machine", bundle.Item{Kind: bundle.KindChart, Ref: "https://charts.example/app"}, true},
		{"machine", file("https://dl.k8s.io/release/v1.34.3/bin/linux/amd64/kubelet", "amd64"), false},
	} {
		s := &task.Site{
			Cluster: tasktest.Cluster(t, "imageDistribution: {programs: "+c.programs+"}"+upgrade),
			Hosts:   []*task.Host{{Arch: "amd64"}},
			Demands: []manifest.Demand{{
				Need:  manifest.Need{Kind: manifest.ItemFile, Name: "kubelet"},
				Roles: []manifest.Role{manifest.RoleCluster},
			}},
		}
		if diff := cmp.Diff(Holds(s)(c.file), c.want); diff != "" {
			t.Errorf("%s, %s: %s", c.programs, c.file, diff)
		}
	}
}
