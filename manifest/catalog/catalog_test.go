package catalog

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/manifest/sources"
)

// cluster parses a cluster file of one version of Kubernetes, with more behind it.
func cluster(t *testing.T, version, more string) *manifest.Cluster {
	t.Helper()
	c, err := manifest.ParseCluster("cluster.yaml",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: "+version+"}\n"+
			more))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// assumed returns the catalog of --assume.
func assumed(version string) []*catalogfile.Catalog {
	return []*catalogfile.Catalog{{Kubeadm: map[string]catalogfile.KubeadmImages{version: {Assumed: true}}}}
}

func list(needs ...manifest.Need) []manifest.Demand {
	var demands []manifest.Demand
	for _, n := range needs {
		demands = append(demands, manifest.Demand{Need: n})
	}
	return demands
}

// demands lists everything that the catalog has.
func demands(t *testing.T) []manifest.Demand {
	t.Helper()
	k, err := builtin()
	if err != nil {
		t.Fatal(err)
	}
	var list []manifest.Demand
	for name, one := range k.Components {
		for kind, there := range map[string]bool{
			manifest.ItemFile: one.File != nil, manifest.ItemImage: len(one.Images) > 0,
			manifest.ItemChart: one.Chart != nil,
		} {
			if there {
				list = append(list, manifest.Demand{Need: manifest.Need{Kind: kind, Name: name}})
			}
		}
	}
	return list
}

// Every component resolves for both architectures and for every minor release that the catalog knows, into items that
// a manifest may have, or says that it is not published for one.
func TestResolveAll(t *testing.T) {
	amd64Only := []string{"harbor", "hybridnet"}
	for _, version := range []string{
		"v1.30.14", "v1.31.14", "v1.32.11", "v1.33.7", "v1.34.3", "v1.34.99", "v1.35.4",
		"v1.36.1", "v1.37.2", "v1.40.0",
	} {
		c := cluster(t, version, "")
		c.Catalogs = assumed("v1.40.0")
		for _, d := range demands(t) {
			for _, platform := range []string{"linux/amd64", "linux/arm64"} {
				a, err := Resolve(c, []manifest.Demand{d}, Options{Platforms: []string{platform}})
				if platform == "linux/arm64" && slices.Contains(amd64Only, d.Name) {
					if err == nil || !strings.Contains(err.Error(),
						"is published for linux/amd64 and not for linux/arm64") {
						t.Errorf("%s %v: %v", version, d.Need, err)
					}
					continue
				}
				// before Calico v3.32; see TestImagesOfSomeVersions
				if d.Name == "calico-crds" && err == nil && len(a.Charts) == 0 {
					continue
				}
				if err != nil || len(a.Files)+len(a.Images)+len(a.Charts) == 0 {
					t.Errorf("%s %v for %s: %+v, %v", version, d.Need, platform, a, err)
				}
				for _, f := range a.Files {
					checkFile(t, f, platform)
				}
				refs, err := Refs(c, d.Need, platform)
				if err != nil || len(refs) == 0 || strings.ContainsAny(strings.Join(refs, ""), "{} ") {
					t.Errorf("%s %v for %s: %q, %v", version, d.Need, platform, refs, err)
				}
			}
		}
	}
}

// unpublished have no checksums upstream: https://download.docker.com/linux/static/stable/, releases of cri-dockerd, of
// Harbor, which have an md5sum, of Cluster API and of cert-manager.
func unpublished() []string {
	return []string{
		"cri-dockerd", "docker", "harbor", "cert-manager", "cluster-api", "cluster-api-bootstrap-kubeadm",
		"cluster-api-control-plane-kubeadm", "cluster-api-metadata", "clusterctl",
	}
}

func checkFile(t *testing.T, f manifest.File, platform string) {
	t.Helper()
	if !f.PerPlatform() || (f.Checksums == "") != slices.Contains(unpublished(), f.Name) || f.Version == "" {
		t.Errorf("%+v: want one file a platform, with checksums and version", f)
	}
	for _, address := range []string{manifest.FileURL(f, platform), scalar.Expand(f.Checksums, platform)} {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Scheme != "https" ||
			strings.ContainsAny(address, "{}+ ")) {
			t.Errorf("%s: %q, %v", f.Name, address, err)
		}
	}
}

// TestContainerdIsStatic takes upstream's static programs wherever upstream publishes them: since containerd 1.7.
func TestContainerdIsStatic(t *testing.T) {
	const releases = "https://github.com/containerd/containerd/releases/download/"
	for version, want := range map[string]struct{ file, former string }{
		"v1.6.38": {
			"v1.6.38/containerd-1.6.38-linux-amd64.tar.gz",
			"v1.6.38/containerd-1.6.38-linux-amd64.tar.gz",
		},
		"v1.7.0": {
			"v1.7.0/containerd-static-1.7.0-linux-amd64.tar.gz",
			"v1.7.0/containerd-1.7.0-linux-amd64.tar.gz",
		},
		"v2.2.0-beta.1": {
			"v2.2.0-beta.1/containerd-static-2.2.0-beta.1-linux-amd64.tar.gz",
			"v2.2.0-beta.1/containerd-2.2.0-beta.1-linux-amd64.tar.gz",
		},
	} {
		c := cluster(t, "v1.32.11", "components: {containerd: {version: "+version+"}}\n")
		need := manifest.Need{Kind: manifest.ItemFile, Name: "containerd"}
		items, err := Items(c, need)
		if err != nil || len(items.Files) != 1 {
			t.Fatalf("%s: %+v, %v", version, items.Files, err)
		}
		file, former := manifest.FileURL(items.Files[0], "linux/amd64"), releases+want.former
		if file != releases+want.file || scalar.Expand(items.Files[0].Checksums, "linux/amd64") != file+".sha256sum" {
			t.Errorf("%s: got %s with %s", version, file, items.Files[0].Checksums)
		}
		if got, err := FormerRef(c, need, "linux/amd64"); got != former || err != nil {
			t.Errorf("%s: earlier bundles have %q (%v), want %q", version, got, err, former)
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
		{"file", "containerd", "https://github.com/containerd/containerd/releases/download/v2.3.7/containerd-static-2.3.7-linux-arm64.tar.gz"},
		{"file", "runc", "https://github.com/opencontainers/runc/releases/download/v1.3.6/runc.arm64"},
		{"file", "cni-plugins", "https://github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-arm64-v1.9.1.tgz"},
		{"file", "registry", "https://github.com/distribution/distribution/releases/download/v3.1.2/registry_3.1.2_linux_arm64.tar.gz"},
		{"image", "kube-apiserver", "registry.k8s.io/kube-apiserver:v1.34.3"},
		{"image", "kube-controller-manager", "registry.k8s.io/kube-controller-manager:v1.34.3"},
		{"image", "kube-scheduler", "registry.k8s.io/kube-scheduler:v1.34.3"},
		{"image", "kube-proxy", "registry.k8s.io/kube-proxy:v1.34.3"},
		{"image", "etcd", "registry.k8s.io/etcd:3.6.5-0"},
		{"file", "etcd", "https://github.com/etcd-io/etcd/releases/download/v3.6.5/etcd-v3.6.5-linux-arm64.tar.gz"},
		{"file", "crictl", "https://github.com/kubernetes-sigs/cri-tools/releases/download/v1.34.0/crictl-v1.34.0-linux-arm64.tar.gz"},
		{"file", "nerdctl", "https://github.com/containerd/nerdctl/releases/download/v2.2.1/nerdctl-2.2.1-linux-arm64.tar.gz"},
		{"file", "docker", "https://download.docker.com/linux/static/stable/aarch64/docker-28.5.2.tgz"},
		{"file", "cri-dockerd", "https://github.com/Mirantis/cri-dockerd/releases/download/v0.3.21/cri-dockerd-0.3.21.arm64.tgz"},
		{
			"file", "docker-compose",
			"https://github.com/docker/compose/releases/download/v2.40.3/docker-compose-linux-aarch64",
		},
		{"file", "crio", "https://storage.googleapis.com/cri-o/artifacts/cri-o.arm64.v1.34.5.tar.gz"},
		{"file", "helm", "https://get.helm.sh/helm-v3.18.4-linux-arm64.tar.gz"},
		{"file", "calicoctl", "https://github.com/projectcalico/calico/releases/download/v3.31.3/calicoctl-linux-arm64"},
		{"chart", "calico", "https://github.com/projectcalico/calico/releases/download/v3.31.3/tigera-operator-v3.31.3.tgz"},
		{"chart", "cilium", "https://helm.cilium.io/cilium-1.19.3.tgz"},
		{"chart", "hybridnet", "https://github.com/alibaba/hybridnet/releases/download/helm-chart-0.6.8/hybridnet-0.6.8.tgz"},
		{"chart", "kube-ovn", "https://kubeovn.github.io/kube-ovn/kube-ovn-v1.15.0.tgz"},
		{
			"chart", "localpv-provisioner",
			"https://openebs.github.io/dynamic-localpv-provisioner/localpv-provisioner-4.4.0.tgz",
		},
		{"image", "kube-vip", "ghcr.io/kube-vip/kube-vip:v1.0.3"},
		{"image", "haproxy", "docker.io/library/haproxy:3.2.19-alpine"},
		{"image", "multus", "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.2.4"},
		{"image", "node-local-dns", "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4"},
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
		"v1.30.0": {"3.5.12-0", "v1.11.1", "3.9"}, "v1.30.4": {"3.5.12-0", "v1.11.1", "3.9"},
		"v1.30.5": {"3.5.15-0", "v1.11.3", "3.9"},
		"v1.31.0": {"3.5.15-0", "v1.11.1", "3.10"}, "v1.31.13": {"3.5.15-0", "v1.11.3", "3.10"},
		"v1.31.14": {"3.5.24-0", "v1.11.3", "3.10"},
		"v1.32.0":  {"3.5.16-0", "v1.11.3", "3.10"}, "v1.32.9": {"3.5.16-0", "v1.11.3", "3.10"},
		"v1.32.11": {"3.5.24-0", "v1.11.3", "3.10"},
		"v1.33.5":  {"3.5.21-0", "v1.12.0", "3.10"}, "v1.33.6": {"3.5.24-0", "v1.12.0", "3.10"},
		"v1.34.0": {"3.6.4-0", "v1.12.1", "3.10.1"}, "v1.34.1": {"3.6.4-0", "v1.12.1", "3.10.1"},
		"v1.34.2": {"3.6.5-0", "v1.12.1", "3.10.1"},
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

// The plugin's image is the one that flannel's chart of the same release names.
func TestFlannelPluginFollowsFlannel(t *testing.T) {
	for version, want := range map[string]string{
		"v0.27.4": "v1.8.0-flannel1", "v0.28.4": "v1.9.1-flannel1",
		"v0.28.7": "v1.9.1-flannel2", "v0.28.10": "v1.9.1-flannel3",
	} {
		if got, err := Version(cluster(t, "v1.34.3", "cni: {version: "+version+"}\n"),
			"flannel-cni-plugin"); got != want || err != nil {
			t.Errorf("flannel %s: %q, %v; want %q", version, got, err, want)
		}
	}
}

func TestVersionOverride(t *testing.T) {
	c := cluster(t, "v1.34.3",
		"cri: {version: v2.2.1}\ncomponents: {runc: {version: v9.9.9}, pause: {version: \"4\"}, flannel: {version: v0.99.0}}\n")
	for name, want := range map[string]string{
		"containerd": "v2.2.1", "runc": "v9.9.9", "pause": "4",
		"flannel": "v0.99.0", "registry": "v3.1.2", "kubelet": "v1.34.3",
	} {
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
			_, err := Resolve(old, list(manifest.Need{Kind: "file", Name: "crictll"}), Options{})
			return err
		}, []string{"crictll", "known: calico, calico-crds, calicoctl, cert-manager, cilium, cluster-api, "}},
		"unknown release": {
			func() error { _, err := Version(old, "etcd"); return err },
			[]string{"component etcd", "v1.29.3", "v1.30.0", "components.etcd.version"},
		},
		"other kind": {
			func() error { _, err := ImageRef(old, "kubeadm"); return err },
			[]string{"kubeadm v1.29.3 has no image"},
		},
		"zone": {
			func() error { _, err := Resolve(old, nil, Options{Zone: "mars"}); return err },
			[]string{"mars", "known: cn"},
		},
		"override": {func() error {
			_, err := Resolve(cluster(t, "v1.34.3", "components:\n  rnuc: {version: v1}\n"), nil, Options{})
			return err
		}, []string{"cluster.yaml:6:9: ", "rnuc", "known: "}},
		"all at once": {func() error {
			_, err := Resolve(old, list(manifest.Need{Kind: "file", Name: "a"},
				manifest.Need{Kind: "image", Name: "b"}), Options{})
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
	var problems document.Problems
	_, err := Resolve(cluster(t, "v1.34.3", "components: {x: {version: v1}}\n"), nil, Options{})
	if !errors.As(err, &problems) {
		t.Errorf("an unknown override is a %T, want Problems", err)
	}
}

func TestAddTo(t *testing.T) {
	b := &manifest.Bundle{
		Images:  []manifest.Image{{Name: "registry.k8s.io/pause:3.10.1", Group: "gpu"}, {Name: "nginx", Group: "gpu"}},
		Sources: []sources.Source{{Host: "GitHub.com", Mirrors: sources.Mirrors{"own.example"}}},
	}
	c := cluster(t, "v1.34.3", "")
	a, err := Resolve(c, list(
		manifest.Need{Kind: "image", Name: "pause"},
		manifest.Need{Kind: "image", Name: "etcd"},
		manifest.Need{Kind: "image", Name: "etcd"},
		manifest.Need{Kind: "file", Name: "runc"},
		manifest.Need{Kind: "chart", Name: "flannel"},
	), Options{Zone: "cn"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.AddTo(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Images[0].Group != "" || got.Images[1].Group != "gpu" || b.Images[0].Group != "gpu" {
		t.Errorf("what a cluster needs is in no group: %+v, of %+v", got.Images, b.Images)
	}
	if again, err := a.AddTo(got); err != nil || len(again.Images) != len(got.Images) || len(again.Files) != 1 ||
		len(again.Charts) != 1 || len(again.Sources) != len(got.Sources) {
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
