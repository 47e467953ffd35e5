package catalog

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest"
)

// cluster parses a cluster file of one version of Kubernetes, with more behind it.
func cluster(t *testing.T, version, more string) *manifest.Cluster {
	t.Helper()
	c, err := manifest.ParseCluster("cluster.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: "+version+"}\n"+more))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// needs lists everything that the catalog has.
func needs(t *testing.T) []manifest.Need {
	t.Helper()
	table, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var list []manifest.Need
	for name, one := range table.Components {
		for kind, there := range map[string]bool{
			manifest.ItemFile: one.File != nil, manifest.ItemImage: one.Image != "", manifest.ItemChart: one.Chart != "",
		} {
			if there {
				list = append(list, manifest.Need{Kind: kind, Name: name})
			}
		}
	}
	return list
}

// Every component resolves for both architectures and for every minor release that the catalog knows, into items that
// a manifest may have.
func TestResolveAll(t *testing.T) {
	for _, version := range []string{"v1.30.14", "v1.31.14", "v1.32.11", "v1.33.7", "v1.34.3", "v1.34.99", "v1.35.4", "v1.36.1"} {
		c := cluster(t, version, "")
		for _, zone := range []string{"", "cn"} {
			a, err := Resolve(c, needs(t), zone)
			if err != nil {
				t.Fatalf("%s: %v", version, err)
			}
			if got := len(a.Files) + len(a.Images) + len(a.Charts); got != len(needs(t)) {
				t.Errorf("%s: %d items for %d needs", version, got, len(needs(t)))
			}
			if (zone == "cn") != (len(a.Sources) > 0) {
				t.Errorf("zone %q: sources %v", zone, a.Sources)
			}
			for _, f := range a.Files {
				checkFile(t, f)
			}
		}
		for _, need := range needs(t) {
			for _, platform := range []string{"linux/amd64", "linux/arm64"} {
				ref, err := Ref(c, need, platform)
				if err != nil || ref == "" || strings.ContainsAny(ref, "{} ") {
					t.Errorf("%s %v: %q, %v", version, need, ref, err)
				}
			}
		}
	}
}

func checkFile(t *testing.T, f manifest.File) {
	t.Helper()
	if !f.PerPlatform() || f.Checksums == "" || f.Version == "" {
		t.Errorf("%+v: want one file a platform, with checksums and version", f)
	}
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		for _, address := range []string{manifest.FileURL(f, platform), manifest.Expand(f.Checksums, platform)} {
			if u, err := url.Parse(address); err != nil || u.Scheme != "https" || strings.ContainsAny(address, "{} ") {
				t.Errorf("%s: %q, %v", f.Name, address, err)
			}
		}
	}
}

// The addresses under which upstream publishes, spelled out.
func TestRef(t *testing.T) {
	c := cluster(t, "v1.34.3", "")
	for _, tc := range []struct{ kind, name, want string }{
		{"file", "kubeadm", "https://dl.k8s.io/release/v1.34.3/bin/linux/arm64/kubeadm"},
		{"file", "kubelet", "https://dl.k8s.io/release/v1.34.3/bin/linux/arm64/kubelet"},
		{"file", "kubectl", "https://dl.k8s.io/release/v1.34.3/bin/linux/arm64/kubectl"},
		{"file", "containerd", "https://github.com/containerd/containerd/releases/download/v2.1.9/containerd-2.1.9-linux-arm64.tar.gz"},
		{"file", "runc", "https://github.com/opencontainers/runc/releases/download/v1.3.6/runc.arm64"},
		{"file", "cni-plugins", "https://github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-arm64-v1.9.1.tgz"},
		{"file", "registry", "https://github.com/distribution/distribution/releases/download/v3.1.2/registry_3.1.2_linux_arm64.tar.gz"},
		{"image", "kube-apiserver", "registry.k8s.io/kube-apiserver:v1.34.3"},
		{"image", "kube-controller-manager", "registry.k8s.io/kube-controller-manager:v1.34.3"},
		{"image", "kube-scheduler", "registry.k8s.io/kube-scheduler:v1.34.3"},
		{"image", "kube-proxy", "registry.k8s.io/kube-proxy:v1.34.3"},
		{"image", "etcd", "registry.k8s.io/etcd:3.6.5-0"},
		{"image", "coredns", "registry.k8s.io/coredns/coredns:v1.12.1"},
		{"image", "pause", "registry.k8s.io/pause:3.10.1"},
		{"image", "flannel", "ghcr.io/flannel-io/flannel:v0.28.4"},
		{"image", "flannel-cni-plugin", "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1"},
		{"chart", "flannel", "https://github.com/flannel-io/flannel/releases/download/v0.28.4/flannel.tgz"},
	} {
		got, err := Ref(c, manifest.Need{Kind: tc.kind, Name: tc.name}, "linux/arm64")
		if got != tc.want || err != nil {
			t.Errorf("%s %s: got %q, %v; want %q", tc.kind, tc.name, got, err, tc.want)
		}
	}
	if got, err := ImageRef(c, "pause"); got != "registry.k8s.io/pause:3.10.1" || err != nil {
		t.Errorf("ImageRef: %q, %v", got, err)
	}
}

// What kubeadm of a release asks for changes within minor releases too.
func TestVersionByPatch(t *testing.T) {
	for version, want := range map[string][3]string{
		"v1.30.0": {"3.5.12-0", "v1.11.1", "3.9"}, "v1.30.4": {"3.5.12-0", "v1.11.1", "3.9"}, "v1.30.5": {"3.5.15-0", "v1.11.3", "3.9"},
		"v1.31.0": {"3.5.15-0", "v1.11.1", "3.10"}, "v1.31.13": {"3.5.15-0", "v1.11.3", "3.10"}, "v1.31.14": {"3.5.24-0", "v1.11.3", "3.10"},
		"v1.32.0": {"3.5.16-0", "v1.11.3", "3.10"}, "v1.32.9": {"3.5.16-0", "v1.11.3", "3.10"}, "v1.32.11": {"3.5.24-0", "v1.11.3", "3.10"},
		"v1.33.5": {"3.5.21-0", "v1.12.0", "3.10"}, "v1.33.6": {"3.5.24-0", "v1.12.0", "3.10"},
		"v1.34.0": {"3.6.4-0", "v1.12.1", "3.10.1"}, "v1.34.1": {"3.6.4-0", "v1.12.1", "3.10.1"}, "v1.34.2": {"3.6.5-0", "v1.12.1", "3.10.1"},
		"v1.35.4": {"3.6.6-0", "v1.13.1", "3.10.1"}, "v1.36.1": {"3.6.8-0", "v1.14.2", "3.10.2"},
	} {
		c := cluster(t, version, "")
		for i, name := range []string{"etcd", "coredns", "pause"} {
			if got, err := Version(c, name); got != want[i] || err != nil {
				t.Errorf("Kubernetes %s: %s is %q, %v; want %q", version, name, got, err, want[i])
			}
		}
	}
}

func TestVersionOverride(t *testing.T) {
	c := cluster(t, "v1.34.3", "cri: {version: v2.2.1}\ncomponents: {runc: {version: v9.9.9}, pause: {version: \"4\"}, flannel: {version: v0.99.0}}\n")
	for name, want := range map[string]string{"containerd": "v2.2.1", "runc": "v9.9.9", "pause": "4", "flannel": "v0.99.0", "registry": "v3.1.2", "kubelet": "v1.34.3"} {
		if got, err := Version(c, name); got != want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
	// A release that the table does not know resolves where the cluster names its version.
	c = cluster(t, "v1.99.0", "components: {etcd: {version: 4.0.0-0}}\n")
	if got, err := ImageRef(c, "etcd"); got != "registry.k8s.io/etcd:4.0.0-0" || err != nil {
		t.Errorf("etcd: %q, %v", got, err)
	}
}

func TestErrors(t *testing.T) {
	old := cluster(t, "v1.29.3", "")
	for name, tc := range map[string]struct {
		run  func() error
		want []string
	}{
		"unknown component": {func() error {
			_, err := Resolve(old, []manifest.Need{{Kind: "file", Name: "crictl"}}, "")
			return err
		}, []string{"crictl", "known: cni-plugins, containerd, coredns, etcd"}},
		"unknown release": {
			func() error { _, err := Version(old, "etcd"); return err },
			[]string{"component etcd", "v1.29.3", "v1.30, v1.31", "components.etcd.version"},
		},
		"other kind": {func() error { _, err := ImageRef(old, "kubeadm"); return err }, []string{"kubeadm v1.29.3 has no image"}},
		"zone":       {func() error { _, err := Resolve(old, nil, "mars"); return err }, []string{"mars", "known: cn"}},
		"override": {func() error {
			_, err := Resolve(cluster(t, "v1.34.3", "components:\n  rnuc: {version: v1}\n"), nil, "")
			return err
		}, []string{"cluster.yaml:6:9: ", "rnuc", "known: "}},
		"all at once": {func() error {
			_, err := Resolve(old, []manifest.Need{{Kind: "file", Name: "a"}, {Kind: "image", Name: "b"}}, "")
			return err
		}, []string{`"a"`, `"b"`}},
	} {
		err := tc.run()
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
	var problems manifest.Problems
	_, err := Resolve(cluster(t, "v1.34.3", "components: {x: {version: v1}}\n"), nil, "")
	if !errors.As(err, &problems) {
		t.Errorf("an unknown override is a %T, want Problems", err)
	}
}

func TestAddTo(t *testing.T) {
	b := &manifest.Bundle{
		Images:  []manifest.Image{{Name: "registry.k8s.io/pause:3.10.1"}, {Name: "nginx"}},
		Sources: []manifest.Source{{Host: "GitHub.com", Mirrors: manifest.Mirrors{"own.example"}}},
	}
	c := cluster(t, "v1.34.3", "")
	a, err := Resolve(c, []manifest.Need{
		{Kind: "image", Name: "pause"},
		{Kind: "image", Name: "etcd"},
		{Kind: "image", Name: "etcd"},
		{Kind: "file", Name: "runc"},
		{Kind: "chart", Name: "flannel"},
	}, "cn")
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.AddTo(b)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.AddTo(got); err != nil || len(again.Images) != len(got.Images) || len(again.Files) != 1 || len(again.Charts) != 1 || len(again.Sources) != 2 {
		t.Errorf("added twice: %+v, %v", again, err)
	}
	var names []string
	for _, image := range got.Images {
		names = append(names, image.Name)
	}
	want := []string{"registry.k8s.io/pause:3.10.1", "nginx", "registry.k8s.io/etcd:3.6.5-0"}
	if diff := cmp.Diff(names, want); diff != "" {
		t.Errorf("images (-got +want):\n%s", diff)
	}
	if got.Sources[0].Mirrors[0] != "own.example" || got.Sources[1].Host != "dl.k8s.io" {
		t.Errorf("sources %+v", got.Sources)
	}
	if len(b.Images) != 2 || len(b.Files) != 0 {
		t.Error("the bundle itself has changed")
	}
}
