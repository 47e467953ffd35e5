package convert

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
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
	for _, name := range []string{
		"kubekey-v3.yaml", "kubekey-v3-cluster.yaml", "kubekey-v4-config.yaml",
		"kubekey-v4-site.yaml", "capkk.yaml", "hauler.yaml", "zarf.yaml", "zarf-templates.yaml", "zarf-parts.yaml", "zarf-v1beta1.yaml",
		"images.txt", "kubespray-files.list",
	} {
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
	bomb := "apiVersion: zarf.dev/v1alpha1\nkind: ZarfPackageConfig\na: &a [" + strings.Repeat("nginx,", 10_000) +
		"]\nc: &c {name: x, required: true, images: *a}\ncomponents: [" + strings.Repeat("*c,", 1000) + "]\n"
	for name, tc := range map[string]struct{ text, want string }{
		"empty":        {"", "the file is empty"},
		"only comment": {"# nothing\n", "the file is empty"},
		"prose":        {"Dear reader,\nthis is a letter\n", `line 1: "Dear reader" is not an image reference`},
		"another kind": {"apiVersion: v1\nkind: Pod\n", `line 1: unknown apiVersion "v1", kind "Pod"`},
		"spec too far right": {
			"apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Manifest\nmetadata:\n  name: a\n  spec:\n    arches: [amd64]\n", "metadata.spec: spec lies below metadata",
		},
		"broken YAML": {"apiVersion: v1\nkind: [\n", "parse YAML"},
		"hauler kind": {"apiVersion: content.hauler.cattle.io/v1\nkind: Driver\n", `kind "Driver" is none of Hauler's`},
		"no version":  {"apiVersion: kubekey.kubesphere.io/v1\nkind: Config\nspec: {download: {kubernetes: {kube_version: [v1.34]}}}\n", `line 1: invalid kube_version "v1.34"`},
		"hosts": {
			"apiVersion: kubekey.kubesphere.io/v1\nkind: Inventory\nspec: {hosts: [a]}\n",
			"f:3:15: spec.hosts: want a mapping",
		},
		"long line": {strings.Repeat("a", maxLine+1), "token too long"},
		"aliases":   {bomb, "more than 200000 values"},
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
			got = append(got, strings.Join([]string{
				c.Kubernetes.Version, network, string(c.CRI.Type),
				string(c.ImageRegistry.Type),
			}, " "))
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
	if len(r.Notes) == 0 || !strings.Contains(r.Notes[len(r.Notes)-1].Text,
		"etcd v3.5.13 is too old for Kubernetes v1.34.3") {
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
	want := []manifest.PackageSet{{
		Distribution: "ubuntu/22.04", ISO: "../iso/u.iso",
		Platforms: []string{"linux/arm64"},
	}}
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

// What a file lists twice with different settings is kept, or noted: the values of a chart's second release, the
// platforms of an image, the sum and the mode of a file.
func TestListedTwice(t *testing.T) {
	zarf := `kind: ZarfPackageConfig
metadata: {name: twice}
components:
- name: blue
  required: true
  only: {cluster: {architecture: amd64}}
  images: [quay.io/a/app:1, quay.io/a/all:1]
  charts:
  - {name: web, version: 1.2.3, namespace: blue, releaseName: one, url: "https://charts.example.com", valuesFiles: [blue.yaml]}
  - {name: plain, version: 1.0.0, namespace: blue, url: "https://charts.example.com", valuesFiles: [p.yaml]}
  files: [{source: "https://example.com/tool", target: /usr/bin/tool}]
- name: green
  required: true
  only: {cluster: {architecture: arm64}}
  images: [quay.io/a/app:1]
  charts:
  - {name: web, version: 1.2.3, namespace: green, releaseName: one, url: "https://charts.example.com", valuesFiles: [green.yaml]}
  - {name: web, version: 1.2.3, namespace: red, url: "https://charts.example.com"}
  - {name: plain, version: 1.0.0, namespace: blue, url: "https://charts.example.com", valuesFiles: [p.yaml]}
  - {name: local, localPath: charts/local}
  - {name: local, localPath: charts/local, valuesFiles: [l.yaml]}
  files: [{source: "https://example.com/tool", target: /opt/other, executable: true, shasum: 2222222222222222222222222222222222222222222222222222222222222222}]
- name: everywhere
  required: true
  images: [quay.io/a/all:1]
`
	r, err := Read("zarf.yaml", []byte(zarf))
	if err != nil {
		t.Fatal(err)
	}
	other, err := Read("hauler.yaml", []byte(`apiVersion: content.hauler.cattle.io/v1
kind: Charts
metadata: {name: c}
spec: {charts: [{name: plain, repoURL: "https://charts.example.com", version: 1.0.0, valuesFiles: [hauler.yaml]}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	r.Join(other)
	if err := r.Move(func(path string) (string, error) { return "../" + path, nil }); err != nil {
		t.Fatal(err)
	}
	wantDeploy := []manifest.Addon{
		{Chart: "web", Release: "one", Namespace: "blue", Values: []string{"../blue.yaml"}},
		{Chart: "web", Release: "one", Namespace: "green", Values: []string{"../green.yaml"}},
		{Chart: "web", Namespace: "red"},
		{Chart: "plain", Values: []string{"../p.yaml"}},
		{Chart: "plain", Release: "plain-2", Values: []string{"../hauler.yaml"}},
	}
	if diff := cmp.Diff(r.Bundle.Deploy, wantDeploy); diff != "" {
		t.Errorf("deploy (-got +want):\n%s", diff)
	}
	for _, c := range r.Bundle.Charts {
		if len(c.Values) > 0 {
			t.Errorf("chart %s%s keeps values %v beside those of its releases", c.Name, c.Path, c.Values)
		}
	}
	if len(r.Bundle.Charts) != 3 {
		t.Errorf("charts: %v", r.Bundle.Charts)
	}
	wantImages := []manifest.Image{
		{Name: "quay.io/a/app:1", Platforms: []string{"linux/amd64", "linux/arm64"}},
		{Name: "quay.io/a/all:1"},
	}
	if diff := cmp.Diff(r.Bundle.Images, wantImages); diff != "" {
		t.Errorf("images (-got +want):\n%s", diff)
	}
	if f := r.Bundle.Files; len(f) != 1 || f[0].Mode != 0o755 || len(f[0].SHA256) != 1 {
		t.Errorf("files: %+v", f)
	}
	var notes strings.Builder
	for _, n := range r.Notes {
		notes.WriteString(n.String() + "\n")
	}
	for _, part := range []string{
		"zarf.yaml:17: the chart web has a further release",
		"zarf.yaml:21: the chart charts/local is there twice with different values",
		"zarf.yaml:22: file other is there twice: it is carried once, as tool",
	} {
		if !strings.Contains(notes.String(), part) {
			t.Errorf("%q is not in\n%s", part, notes.String())
		}
	}
}

// TestReadSites converts settings of KubeKey that have an equal, and names the others.
func TestReadSites(t *testing.T) {
	const v3 = "apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Cluster\nmetadata: {name: a}\nspec:\n" +
		"  hosts:\n  - {name: n1, address: 10.0.0.1, arch: arm64}\n  - {name: n2, address: 10.0.0.2}\n" +
		"  roleGroups: {etcd: [n1], control-plane: [n1], worker: [n2], registry: [n1]}\n  network: {plugin: flannel}\n"
	const mirror = "apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Manifest\nmetadata: {name: a}\nspec:\n  kubernetesDistributions: [{type: kubernetes, version: v1.34.3}]\n  images:\n"
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"default arch": {
			v3 + "  kubernetes: {version: v1.34.3}\n",
			[]string{"platforms:\n    - linux/arm64\n    - linux/amd64\n", "default arch amd64 applies to n2"},
		},
		"k3s": {
			v3 + "  kubernetes: {version: v1.34.3-k3s}\n  etcd: {type: kubeadm}\n",
			[]string{
				"version: v1.34.3+k3s1", "distribution: k3s",
				"spec.etcd.type is not carried over: k3s keeps its own etcd",
			},
		},
		"chart without version": {
			v3 + "  kubernetes: {version: v1.34.3}\n  addons: [{name: a, sources: {chart: {name: web, repo: https://charts.example}}}]\n",
			[]string{"version: '*'", "f:11: the chart web has no version: the newest is used"},
		},
		"addon of YAML": {v3 + "  kubernetes: {version: v1.34.3}\n  addons: [{name: a, sources: {yaml: {path: [a.yaml]}}}]\n", []string{"manifests:\n        - a.yaml"}},
		"Cilium of a mirror": {
			mirror + "  - registry.example/kubesphereio/cilium:v1.18.3\n  - registry.example:5000/kubesphereio/operator-generic:v1.18.3\n",
			[]string{"cni.type cilium was guessed"},
		},
		"Calico of a mirror": {
			mirror + "  - registry.example/kubesphereio/kube-controllers:v3.31.0\n",
			[]string{"cni.type calico was guessed"},
		},
		"Flannel of a mirror": {mirror + "  - registry.example/kubesphereio/flannel-cni-plugin@sha256:" +
			strings.Repeat("a", 64) + "\n", []string{"cni.type flannel was guessed"}},
		"Config with the version beside kubernetes": {
			"apiVersion: kubekey.kubesphere.io/v1\nkind: Config\nspec: {kube_version: v1.34.3}\n",
			[]string{"version: v1.34.3"},
		},
		"Config without a version": {
			"apiVersion: kubekey.kubesphere.io/v1\nkind: Config\nspec:\n  kubernetes: {cluster_name: x}\n  image_registry: {auth: {registry: r, password: hunter2}}\n  cri: {container_manager: docker}\n  download: {cni: {type: [calico]}}\n",
			[]string{
				"no version of Kubernetes is given", "f:4: spec.kubernetes.cluster_name was not carried over",
				"f:5: spec.image_registry was not carried over", "f:6: spec.cri was not",
				"f:7: spec.download.cni was not",
			},
		},
	} {
		r, err := Read("f", []byte(tc.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := text(t, r)
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, got)
			}
		}
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s: the password is in\n%s", name, got)
		}
	}
}

// TestHaulerLocalCharts reads the ways in which a repoURL names a directory.
func TestHaulerLocalCharts(t *testing.T) {
	for chart, want := range map[string]string{
		"{name: web-1.0.0.tgz, repoURL: .}":                      "web-1.0.0.tgz",
		"{name: charts/web}":                                     "charts/web",
		"{name: web-1.0.0.tgz, repoURL: ./charts}":               "charts/web-1.0.0.tgz",
		"{name: web, repoURL: ../charts/, version: 1.0.0}":       "../charts/web",
		"{name: web-1.0.0.tgz, repoURL: 'file:///srv/charts'}":   "/srv/charts/web-1.0.0.tgz",
		"{name: web-1.0.0.tgz, repoURL: 'file://../charts'}":     "../charts/web-1.0.0.tgz",
		"{name: 'file:///srv/web-1.0.0.tgz'}":                    "/srv/web-1.0.0.tgz",
		"{name: /srv/charts/web, repoURL: https://charts.other}": "",
	} {
		r, err := Read("f", []byte(
			"apiVersion: content.hauler.cattle.io/v1\nkind: Charts\nmetadata: {name: a}\nspec: {charts: ["+chart+
				"]}\n"))
		if err != nil || len(r.Bundle.Charts) != 1 || r.Bundle.Charts[0].Path != want {
			t.Errorf("%s: %+v, %v; want the path %q", chart, r.Bundle.Charts, err, want)
		}
	}
}

// Merge keys (<<) bring an entry the keys of another, as the tools read them.
func TestMergeKeys(t *testing.T) {
	r, err := Read("f", []byte(`apiVersion: content.hauler.cattle.io/v1
kind: Images
spec:
  images:
  - &one {name: quay.io/a/one:1, platform: linux/arm64}
  - {<<: *one, name: quay.io/a/two:1}
`))
	if err != nil || len(r.Notes) > 0 {
		t.Fatal(err, r.Notes)
	}
	if got := r.Bundle.Images[1]; !slices.Equal(got.Platforms, []string{"linux/arm64"}) {
		t.Errorf("got %+v", got)
	}
}

// Platforms are written in one spelling. Those that no bundle has are noted where they are, as are such digests.
func TestPlatformsAndDigests(t *testing.T) {
	r, err := Read("f", []byte(`apiVersion: content.hauler.cattle.io/v1
kind: Images
spec:
  images:
  - {name: quay.io/a/one:1, platform: x86_64}
  - {name: quay.io/a/one:1, platform: linux/arm64/v8}
  - {name: quay.io/a/two:1, platform: <platform>}
  - {name: "quay.io/a/three:1@sha512:`+strings.Repeat("a", 128)+`"}
  - {name: "quay.io/a/four@sha256:`+strings.Repeat("a", 64)+`"}
`))
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, r)
	for _, want := range []string{
		"platforms:\n    - linux/amd64\n    - linux/arm64\nimages:\n    - name: quay.io/a/one:1\n      platforms:\n        - linux/amd64\n        - linux/arm64\n    - quay.io/a/two:1\n",
		`f:7: platform linux/<platform> was not carried over: "linux/<platform>" is not a known platform`,
		"f:8: image quay.io/a/three:1 was left out: the digest", "quay.io/a/four@sha256",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// TestNotCarriedOver: namespaces of releases, imported components, and values of another form than text are noted, for a
// bundle has no such things.
func TestNotCarriedOver(t *testing.T) {
	r, err := Read("app/zarf.yaml", []byte(`kind: ZarfPackageConfig
metadata: {name: app}
components:
- name: a
  required: true
  import: {path: ../common}
  charts:
  - {name: web, version: 1.0.0, namespace: shop, url: "https://charts.example.com", valuesFiles: [{a: b}, [c]]}
  - {name: db, releaseName: main, version: 1.0.0, namespace: data, url: "oci://charts.example.com/postgres"}
  - {name: gone, version: 1.0.0, namespace: data, url: "https://git.example/a.git"}
  - {name: here, localPath: chart}
  manifests: [{name: m, namespace: shop, files: [a.yaml]}, {name: n, files: [b.yaml]}]
- {name: b, required: true, import: {name: x, url: "oci://pkg.example/x:1"}, images: [[nginx:1]]}
`))
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, r)
	for _, want := range []string{
		"deploy: [{chart: web, namespace: shop}, {chart: postgres, release: main, namespace: data}, {manifests: [a.yaml], release: m, namespace: shop}]\n",
		"app/zarf.yaml:6: components.import was not carried over: name common/zarf.yaml as a further file of this command",
		"app/zarf.yaml:13: components.import was not carried over: convert the package oci://pkg.example/x:1 by itself",
		"app/zarf.yaml:8: components.charts.valuesFiles was not carried over: it is no text",
		"app/zarf.yaml:13: image  was left out",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	hauler, err := Read("f", []byte(`apiVersion: content.hauler.cattle.io/v1
kind: Images
spec: {images: [{name: nginx:1, platform: [linux/amd64, linux/arm64]}]}
`))
	if err != nil || !strings.Contains(text(t, hauler), "f:3: spec.images.platform was not carried over: it is no text") {
		t.Errorf("%v\n%s", err, text(t, hauler))
	}
}

// TestTemplate: a file is converted before its placeholders are filled in; a note names each, with its line.
func TestTemplate(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: kubekey.kubesphere.io/v1alpha2\nkind: Manifest\nspec:\n  arches: [amd64]\n  images:\n" +
		"  - @MIRROR@/nginx:1.29\n  - r.example/a:1\n"
	r, err := Read("m.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Notes) == 0 || r.Notes[0].Line != 6 ||
		!strings.Contains(r.Notes[0].Text, "@MIRROR@/nginx:1.29 has a placeholder that is not filled in") {
		t.Errorf("notes: %v", r.Notes)
	}
	// What is no YAML for another reason is still refused.
	if _, err := Read("m.yaml", []byte(strings.Replace(text, "r.example/a:1", "[@A@ b", 1))); err == nil ||
		!strings.Contains(err.Error(), "parse YAML") {
		t.Errorf("refused: %v", err)
	}
}

// TestTagTwice: a tag with and without its digest is one image, and two digests of a tag are two.
func TestTagTwice(t *testing.T) {
	t.Parallel()
	one, two := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	for list, want := range map[string][]manifest.Image{
		"x.example/b:1\nx.example/b:1@" + one + "\n": {{Name: "x.example/b:1", Digest: one}},
		"x.example/b:1@" + one + "\nx.example/b:1\n": {{Name: "x.example/b:1", Digest: one}},
		"x.example/b:1@" + one + "\nx.example/b:1@" + two + "\nx.example/b:1\n": {
			{Name: "x.example/b:1", Digest: one}, {Name: "x.example/b@" + two},
		},
		"x.example/b@" + one + "\nx.example/b@" + two + "\n": {{Name: "x.example/b@" + one}, {Name: "x.example/b@" + two}},
	} {
		r, err := Read("list.txt", []byte(list))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.Bundle.Images, want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", list, diff)
		}
	}
}

// TestHaulerPlatforms: where some images name a platform, a note says what the others get.
func TestHaulerPlatforms(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: content.hauler.cattle.io/v1\nkind: Images\nmetadata: {name: a}\nspec:\n  images:\n" +
		"  - {name: x.example/a:1, platform: linux/arm64}\n"
	r, err := Read("h.yaml", []byte(text))
	if err != nil || len(r.Notes) != 0 {
		t.Fatalf("%v, %v", r.Notes, err)
	}
	r, err = Read("h.yaml", []byte(text+"  - {name: x.example/b:1}\n"))
	if err != nil || len(r.Notes) != 1 || r.Notes[0].String() !=
		"h.yaml:7: image x.example/b:1 names no platform, and others name theirs: it is brought for those, linux/arm64; name all with --platform" {
		t.Errorf("%v, %v", r.Notes, err)
	}
}

// TestJoinTwice: images of two files that differ by a tag's digest are one image.
func TestJoinTwice(t *testing.T) {
	t.Parallel()
	const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	var r Result
	for _, list := range []string{"docker.io/library/nginx:1.29\n", "docker.io/library/nginx:1.29@" + digest + "\n"} {
		one, err := Read("images.txt", []byte(list))
		if err != nil {
			t.Fatal(err)
		}
		r.Join(one)
	}
	if got := r.Bundle.Images; len(got) != 1 || !strings.HasSuffix(got[0].Name+got[0].Digest, digest) {
		t.Errorf("images %+v", got)
	}
}

// TestZarfCharts wants charts where Zarf takes them from: a repository is one of git if its address says so, whatever
// gitPath says, and the values files of a chart that is left out are named.
func TestZarfCharts(t *testing.T) {
	r, err := Read("zarf.yaml", []byte(`kind: ZarfPackageConfig
components:
- name: common
  required: true
  charts:
  - {name: gitlab, url: "https://charts.gitlab.io/", gitPath: chart, version: 8.11.1, valuesFiles: [../values/common.yaml]}
  - {name: portal, url: "https://github.com/acme/portal.git@v1", version: 1.0.0, valuesFiles: [portal.yaml]}
- name: gitlab
  required: true
  import: {path: common}
  charts:
  - {name: gitlab, valuesFiles: [values/upstream.yaml]}
  files:
  - {source: "https://example.com/tool", target: "", shasum: tool-sha-amd64}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []manifest.Chart{{
		Name: "gitlab", Repo: "https://charts.gitlab.io/", Version: "8.11.1", Values: []string{"../values/common.yaml"},
	}}
	if diff := cmp.Diff(r.Bundle.Charts, want); diff != "" {
		t.Errorf("charts, -got +want:\n%s", diff)
	}
	if len(r.Bundle.Files) != 1 || r.Bundle.Files[0].Name != "tool" || len(r.Bundle.Files[0].SHA256) > 0 {
		t.Errorf("files: %+v", r.Bundle.Files)
	}
	notes := text(t, r)
	for _, part := range []string{
		"zarf.yaml:7: the chart portal was left out: it lies in a git repository; clone it and name its directory with path, with values: [portal.yaml]",
		"zarf.yaml:12: the chart gitlab was left out: it is that of the imported component; convert that component, and write what is here at its chart, with values: [values/upstream.yaml]",
		"zarf.yaml:14: the shasum tool-sha-amd64 of file tool is no sha256",
	} {
		if !strings.Contains(notes, part) {
			t.Errorf("no note %q in\n%s", part, notes)
		}
	}
}

// TestZarfFillsIn wants an example for what Zarf fills in when a package is made, where a version, an address or a
// checksum is wanted, so that the manifest is valid before it is given; and a description of several lines in one.
func TestZarfFillsIn(t *testing.T) {
	r, err := Read("zarf.yaml", []byte(`kind: ZarfPackageConfig
metadata: {name: app, version: 1.0.0}
constants: [{name: RELEASE, value: "v###ZARF_PKG_TMPL_NUMBER###"}]
components:
- name: a
  description: |
    Two lines
    of text.
  files: [{source: "https://example.com/tool", target: tool, shasum: "###ZARF_PKG_TMPL_SUM###"}]
  charts: [{name: app, url: "###ZARF_PKG_TMPL_REPO###", version: "###ZARF_CONST_RELEASE###"}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Bundle.Groups["a"].Description; got != "Two lines of text." {
		t.Errorf("description %q", got)
	}
	r.Bundle.APIVersion, r.Bundle.Kind = manifest.APIVersion, manifest.KindBundle
	r.Bundle.Platforms = []string{"linux/amd64"}
	data, err := yaml.Marshal(r.Bundle)
	if err == nil {
		_, err = manifest.ParseBundle("manifest.yaml", data)
	}
	if err != nil || !strings.Contains(string(data), "sha256: ${SUM}") {
		t.Errorf("%v in\n%s", err, data)
	}
}

// TestZarfTemplatesOfOneName wants a constant that is the template of its own name to be one value, and one that is
// made of it and more to be two, as in the definition of Zarf's own init package.
func TestZarfTemplatesOfOneName(t *testing.T) {
	r, err := Read("zarf.yaml", []byte(`kind: ZarfPackageConfig
constants:
- {name: IMAGE, value: "###ZARF_PKG_TMPL_IMAGE###"}
- {name: VERSION, value: "v###ZARF_PKG_TMPL_VERSION###"}
- {name: UNUSED, value: "###ZARF_PKG_TMPL_UNUSED###-x"}
components:
- {name: a, required: true, images: ["###ZARF_CONST_IMAGE###:###ZARF_CONST_VERSION###", "nginx:###ZARF_PKG_VAR_NGINX###"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range r.Bundle.Values {
		byDefault := "required"
		if d.Default != nil {
			byDefault = string(*d.Default)
		}
		got = append(got, d.Name+" "+byDefault)
	}
	slices.Sort(got)
	want := []string{"IMAGE required", "NGINX required", "PKG_VERSION required", "VERSION v${PKG_VERSION}"}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}

// TestReadLists wants lists as people have them: with a byte order mark or as UTF-16, as Windows writes them, as YAML or
// JSON, and with the platform of an image before it.
func TestReadLists(t *testing.T) {
	wide := []byte{0xff, 0xfe}
	for _, c := range []byte("nginx:1\r\nredis:8\r\n") {
		wide = append(wide, c, 0)
	}
	for name, in := range map[string]string{
		"a byte order mark": "\ufeffnginx:1\r\nredis:8\r\n",
		"UTF-16":            string(wide),
		"lines of YAML":     "        image: nginx:1\n      - image: \"redis:8\"\n",
		"keys image":        "image: nginx:1\nimage: redis:8\n",
		"mappings":          "- image: nginx:1\n- image: redis:8\n",
		"under images":      "images:\n- nginx:1\n- redis:8\n",
		"JSON under images": `{"images": ["nginx:1", "redis:8"]}`,
		"YAML":              "---\n- nginx:1 # web\n- \"redis:8\"\n",
		"JSON":              `["nginx:1", "redis:8"]`,
		"JSON, lines":       "[\n  \"nginx:1\",\n  \"redis:8\"\n]\n",
		"commas":            "- nginx:1,\n- redis:8,\n",
	} {
		r, err := Read("images.txt", []byte(in))
		want := []manifest.Image{{Name: "nginx:1"}, {Name: "redis:8"}}
		if diff := cmp.Diff(r.Bundle.Images, want); diff != "" || err != nil {
			t.Errorf("%s: %v, -got +want:\n%s", name, err, diff)
		}
	}
	r, err := Read("images.txt", []byte("--platform=linux/arm64  nginx:1\n--platform linux/arm64 redis:8\nbusybox:1\n"))
	want := []manifest.Image{
		{Name: "nginx:1", Platforms: []string{"linux/arm64"}},
		{Name: "redis:8", Platforms: []string{"linux/arm64"}},
		{Name: "busybox:1"},
	}
	if diff := cmp.Diff(r.Bundle.Images, want); diff != "" || err != nil || len(r.Notes) != 1 ||
		!strings.HasPrefix(r.Notes[0].String(), "images.txt:3: image busybox:1 names no platform") {
		t.Errorf("platforms: %v, %v, -got +want:\n%s", err, r.Notes, diff)
	}
	for in, want := range map[string]string{ // two columns, and the note about the second
		"nginx:1 => mirror/nginx:1\nredis:8=>redis\n":                  "images.txt:1: mirror/nginx:1 beside the image was not carried over",
		"nginx:1 https://github.com/nginx\nredis:8 \tmirrored\n":       "images.txt:1: https://github.com/nginx beside the image",
		"- {image: nginx:1, name: web}\n- {image: redis:8, arch: x}\n": "images.txt:2: arch was not carried over",
	} {
		r, err := Read("images.txt", []byte(in))
		two := []manifest.Image{{Name: "nginx:1"}, {Name: "redis:8"}}
		if diff := cmp.Diff(r.Bundle.Images, two); diff != "" || err != nil || len(r.Notes) != 1 ||
			!strings.HasPrefix(r.Notes[0].String(), want) {
			t.Errorf("%q: %v, %v, -got +want:\n%s", in, err, r.Notes, diff)
		}
	}
	for in, want := range map[string]string{
		"- nginx:1\n- name: redis:8\n":             "line 2: this entry of the list is no text",
		"nginx:1\nthis => that\n":                  `line 2: "this => that" is not an image reference: write one a line`,
		"nginx:1 redis:8\n":                        `line 1: "nginx:1 redis:8" is not an image reference`,
		"images: [nginx:1]\ncharts: [a]\n":         `line 1: unknown apiVersion ""`,
		"---\n# nothing\n":                         "the file is empty",
		"--platform=linux/arm64\n":                 "line 1: ",
		"--platform=linux/arm64 nginx:1 redis:8\n": "line 1: ",
	} {
		if _, err := Read("images.txt", []byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", in, err, want)
		}
	}
}
