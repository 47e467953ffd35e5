package convert

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest"
)

var update = flag.Bool("update", false, "write the golden files anew; review the change")

// The files of testdata are written after the formats' published definitions: KubeKey apis/kubekey/v1alpha2, Hauler
// pkg/apis/hauler.cattle.io/v1, Zarf src/api/v1alpha1, Kubespray contrib/offline/generate_list.sh.
func TestRead(t *testing.T) {
	for _, name := range []string{"kubekey-v3.yaml", "kubekey-v3-cluster.yaml", "kubekey-v4-config.yaml", "kubekey-v4-site.yaml", "capkk.yaml", "hauler.yaml", "zarf.yaml", "images.txt", "kubespray-files.list"} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			r, err := Read(name, data)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", name+".golden"), text(t, r))
		})
	}
}

// text is a Result for people.
func text(t *testing.T, r Result) string {
	t.Helper()
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	if err := e.Encode(r.Bundle); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Clusters {
		if err := e.Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	if r.Inventory != nil {
		if err := e.Encode(r.Inventory); err != nil {
			t.Fatal(err)
		}
	}
	b.WriteString("--- " + strings.Join(r.Formats, ", ") + "\n")
	for _, n := range r.Notes {
		b.WriteString(n.String() + "\n")
	}
	return b.String()
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, string(want)); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestReadRefuses(t *testing.T) {
	bomb := "apiVersion: zarf.dev/v1alpha1\nkind: ZarfPackageConfig\na: &a [" + strings.Repeat("nginx,", 10_000) + "]\nc: &c {name: x, required: true, images: *a}\ncomponents: [" + strings.Repeat("*c,", 1000) + "]\n"
	for name, tc := range map[string]struct{ text, want string }{
		"empty":        {"", "the file is empty"},
		"only comment": {"# nothing\n", "the file is empty"},
		"prose":        {"Dear reader,\nthis is a letter\n", `line 1: "Dear reader" is not an image reference`},
		"another kind": {"apiVersion: v1\nkind: Pod\n", `line 1: unknown apiVersion "v1", kind "Pod"`},
		"broken YAML":  {"apiVersion: v1\nkind: [\n", "parse YAML"},
		"hauler kind":  {"apiVersion: content.hauler.cattle.io/v1\nkind: Driver\n", `kind "Driver" is none of Hauler's`},
		"no version":   {"apiVersion: kubekey.kubesphere.io/v1\nkind: Config\nspec: {download: {kubernetes: {kube_version: [v1.34]}}}\n", `line 1: invalid kube_version "v1.34"`},
		"hosts":        {"apiVersion: kubekey.kubesphere.io/v1\nkind: Inventory\nspec: {hosts: [a]}\n", "f:3:15: spec.hosts: want a mapping"},
		"long line":    {strings.Repeat("a", maxLine+1), "token too long"},
		"aliases":      {bomb, "more than 200000 values"},
	} {
		if _, err := Read("f", []byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %.300v, want %q", name, err, tc.want)
		}
	}
}

// No secret of a file becomes part of what is written or said.
func TestReadSecrets(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Read("f", data)
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, r); strings.Contains(got, "hunter2") {
			t.Errorf("%s: the password is in\n%s", file, got)
		}
	}
}

// Each version is there with each network, and once with every other runtime and registry.
func TestVariants(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"lists": {
			"download: {kubernetes: {kube_version: [v1.33.7, 1.34.3]}, cni: {type: [calico, kubeovn]}, cri: {container_manager: [docker, containerd]}, image_registry: {type: [harbor, docker-registry]}}",
			"v1.33.7 calico docker harbor; v1.33.7 kube-ovn docker harbor; v1.33.7 calico containerd harbor; v1.33.7 calico docker registry; " +
				"v1.34.3 calico docker harbor; v1.34.3 kube-ovn docker harbor; v1.34.3 calico containerd harbor; v1.34.3 calico docker registry",
		},
		"what the cluster has is first": {
			"{kubernetes: {kube_version: v1.34.3}, cni: {type: flannel}, cri: {container_manager: containerd}, download: {kubernetes: {kube_version: [v1.33.7, v1.34.3]}, cni: {type: [calico]}}}",
			"v1.34.3 flannel containerd ; v1.34.3 calico containerd ; v1.33.7 flannel containerd ; v1.33.7 calico containerd ",
		},
		"multus":     {"download: {kubernetes: {kube_version: [v1.34.3]}, cni: {type: [calico, flannel], multi_cni: [multus]}}", "v1.34.3 multus+calico  ; v1.34.3 flannel  "},
		"no version": {"download: {images: {manifests: [nginx:1.29]}}", ""},
	} {
		spec := tc.text
		if spec[0] != '{' {
			spec = "{" + spec + "}"
		}
		r, err := Read("f", []byte("apiVersion: kubekey.kubesphere.io/v1\nkind: Config\nspec: "+spec+"\n"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, c := range r.Clusters {
			network := string(c.CNI.Type)
			if c.CNI.With != "" {
				network += "+" + string(c.CNI.With)
			}
			got = append(got, strings.Join([]string{c.Kubernetes.Version, network, string(c.CRI.Type), string(c.ImageRegistry.Type)}, " "))
		}
		if diff := cmp.Diff(strings.Join(got, "; "), tc.want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", name, diff)
		}
	}
}

// A version of a component that goes with one Kubernetes and not with another is kept where it goes.
func TestVersionsThatDoNotGo(t *testing.T) {
	r, err := Read("f", []byte(`apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Manifest
spec:
  arches: [amd64]
  kubernetesDistributions: [{type: kubernetes, version: v1.30.14}, {type: kubernetes, version: v1.34.3}]
  components: {etcd: {version: v3.5.13}}
`))
	if err != nil || len(r.Clusters) != 2 {
		t.Fatal(err, r.Clusters)
	}
	if r.Clusters[0].Components["etcd"].Version != "v3.5.13" || len(r.Clusters[1].Components) != 0 {
		t.Errorf("got %v and %v", r.Clusters[0].Components, r.Clusters[1].Components)
	}
	if len(r.Notes) == 0 || !strings.Contains(r.Notes[len(r.Notes)-1].Text, "etcd v3.5.13 is too old for Kubernetes v1.34.3") {
		t.Errorf("notes: %v", r.Notes)
	}
}

// An ISO file that is there is where packages are taken from; one that has to be fetched is carried.
func TestISO(t *testing.T) {
	r, err := Read("f", []byte(`apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Manifest
spec:
  operatingSystems:
  - {arch: arm64, id: ubuntu, version: "22.04", repository: {iso: {localPath: iso/u.iso, checksum: 0cc175b9c0f1b6a831c399e269772661}}}
  - {arch: amd64, id: ubuntu, version: "22.04", repository: {iso: {url: "https://example.com/u.iso"}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Move(func(path string) (string, error) { return "../" + path, nil }); err != nil {
		t.Fatal(err)
	}
	want := []manifest.PackageSet{{Distribution: "ubuntu/22.04", ISO: "../iso/u.iso", Platforms: []string{"linux/arm64"}}}
	if diff := cmp.Diff(r.Bundle.Packages, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if len(r.Bundle.Files) != 1 || r.Bundle.Files[0].URL != "https://example.com/u.iso" {
		t.Errorf("files: %v", r.Bundle.Files)
	}
}

func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read("f", data)
		if err == nil && len(r.Formats) == 0 && len(r.Notes) == 0 && len(data) == 0 {
			t.Error("nothing was read, and nothing said")
		}
	})
}
