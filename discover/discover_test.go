package discover_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

var update = flag.Bool("update", false, "write the golden files anew")

func finder(t testing.TB) *discover.Finder {
	t.Helper()
	f, err := discover.NewFinder([]manifest.ImageRule{{
		Kind: "Database", APIVersion: "acme.example", Paths: []string{"{.spec.nodes[*].img}"},
		Images: []string{"docker.io/acme/db:{.spec.version}"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestGolden compares what is found in each file of testdata with the .txt beside it: an image or "? text (why)",
// then its place.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r, err := finder(t).YAML(data, discover.Place{File: filepath.Base(file)})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", text(r))
		})
	}
}

func text(r discover.Result) string {
	var b strings.Builder
	for _, i := range r.Images {
		fmt.Fprintf(&b, "%s\n    %s\n", i.Ref, i.Place)
	}
	for _, d := range r.Doubts {
		fmt.Fprintf(&b, "? %q (%s)\n    %s\n", d.Text, d.Why, d.Place)
	}
	return b.String()
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, string(want)); diff != "" {
		t.Errorf("%s (-got +want):\n%s", file, diff)
	}
}

// TestBadDocument wants one document that cannot be read to hide no other.
func TestBadDocument(t *testing.T) {
	t.Parallel()
	const good = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: %q}]}\n"
	in := fmt.Sprintf(good, "a:1") + "---\nfoo: [\n---\njust: a mapping\n---\n# nothing\n--- # text\n" +
		fmt.Sprintf(good, "b:1")
	r, err := finder(t).YAML([]byte(in), discover.Place{File: "f.yaml"})
	if len(r.Images) != 2 || r.Images[1].Ref != "docker.io/library/b:1" {
		t.Errorf("got %v", r.Images)
	}
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Fatalf("want two problems, got %v", err)
	}
	for _, part := range []string{"f.yaml: document 2: yaml: ", "f.yaml: document 3: apiVersion and kind are missing"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
}

// TestStreams wants every object of a stream to be found: however kubectl, or YAML, separates them.
func TestStreams(t *testing.T) {
	t.Parallel()
	pod := func(format, image string) string { return fmt.Sprintf(format, image) }
	const (
		asYAML = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: %s}]}\n"
		asJSON = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\",\n\t\"metadata\": {\"name\": \"p\", \"annotations\": {\"x\": \"\\ud83d\\ude00\"}},\n\t\"spec\": {\"containers\": [{\"name\": \"c\", \"image\": %q}]}}\n"
	)
	for name, c := range map[string]struct{ in, problem string }{
		"separated":     {pod(asYAML, "a") + "---\n" + pod(asYAML, "b"), ""},
		"CR LF":         {strings.ReplaceAll(pod(asYAML, "a")+"--- # next\n"+pod(asYAML, "b"), "\n", "\r\n"), ""},
		"CR":            {strings.ReplaceAll(pod(asYAML, "a")+"---\n"+pod(asYAML, "b"), "\n", "\r"), ""},
		"U+2028":        {strings.ReplaceAll(pod(asYAML, "a")+"---\n"+pod(asYAML, "b"), "\n", "\u2028"), ""},
		"document end":  {pod(asYAML, "a") + "...\n" + pod(asYAML, "b"), ""},
		"JSON":          {pod(asJSON, "a") + pod(asJSON, "b"), ""},
		"JSON and YAML": {pod(asJSON, "a") + "---\n" + pod(asYAML, "b"), ""},
		"lists in JSON": {"{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [" + pod(asJSON, "a") + "]}\n" +
			pod(asJSON, "b"), ""},
		"glued hyphens": {
			pod(asYAML, "a") + "---" + pod(asYAML, "b"),
			"f.yaml: document 2: line 5: text follows \"---\"",
		},
		"hyphens inline": {
			pod(asYAML, "a") + "--- " + pod(asYAML, "b"),
			"f.yaml: document 2: line 5: text follows \"---\"",
		},
	} {
		r, err := finder(t).YAML([]byte(c.in), discover.Place{File: "f.yaml"})
		if len(r.Images) != 2 || r.Images[0].Ref != "docker.io/library/a:latest" ||
			r.Images[1].Ref != "docker.io/library/b:latest" {
			t.Errorf("%s: found %v", name, r.Images)
		}
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	_, err := finder(t).YAML([]byte("{apiVersion: v1, kind: Pod}\n{apiVersion: v1, kind: Pod}\n"),
		discover.Place{File: "f.yaml"})
	if err == nil || !strings.Contains(err.Error(), "another object follows without a separator") {
		t.Errorf("two mappings in braces: got %v", err)
	}
}

// TestHostile wants YAML that unfolds, nests or repeats to be refused: unfolded, none of it would end within the time
// or the memory that a test has.
func TestHostile(t *testing.T) {
	t.Parallel()
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10))
	}
	list := "{apiVersion: v1, kind: Pod}, "
	for name, in := range map[string]string{
		"laughs":  "apiVersion: v1\nkind: Pod\n" + laughs,
		"itself":  "apiVersion: v1\nkind: Pod\na: &a [*a]\n",
		"nested":  "apiVersion: v1\nkind: Pod\na: " + strings.Repeat("[", 300) + strings.Repeat("]", 300),
		"commas":  "apiVersion: v1\nkind: Pod\na: [" + strings.Repeat(",", 2_000_000) + "]",
		"objects": "apiVersion: v1\nkind: List\nitems: [" + strings.Repeat(list, 20_001) + "]",
		"JSON": `{"apiVersion": "v1", "kind": "Pod", "a": ` + strings.Repeat("[", 300) + strings.Repeat("]", 300) +
			"}",
		"images": "apiVersion: v1\nkind: Pod\nspec: {containers: [" + strings.Repeat("{name: a, image: a}, ", 10_001) +
			"]}",
	} {
		_, err := finder(t).YAML([]byte(in), discover.Place{})
		if !errors.Is(err, discover.ErrTooLarge) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAnnotation(t *testing.T) {
	t.Parallel()
	in := discover.Place{Source: "chart web 1.0.0", File: "web/Chart.yaml"}
	r := finder(t).Annotation("- {name: a, image: \"quay.io/x/a:1\"}\n- image: b\n- {name: c}\n", in)
	want := "docker.io/library/b:latest\n    chart web 1.0.0: web/Chart.yaml: annotations['artifacthub.io/images'][1].image\n" +
		"quay.io/x/a:1\n    chart web 1.0.0: web/Chart.yaml: annotations['artifacthub.io/images'][0].image\n" +
		"? \"map[name:c]\" (it is no image reference)\n    chart web 1.0.0: web/Chart.yaml: annotations['artifacthub.io/images'][2]\n"
	if diff := cmp.Diff(text(r), want); diff != "" {
		t.Error(diff)
	}
	if r := finder(t).Annotation("nonsense", in); len(r.Images) != 0 || len(r.Doubts) != 1 {
		t.Errorf("got %v", r)
	}
}

// TestListed wants the images that a chart of Bitnami lists to be in doubt, and those that were found to resolve
// theirs.
func TestListed(t *testing.T) {
	t.Parallel()
	in := discover.Place{Source: "chart kibana 10.6.1", File: "kibana/Chart.yaml"}
	doubts := finder(t).Listed(
		"- name: kibana\n  image: docker.io/bitnami/kibana:8.10.4-debian-11-r0\n- name: os-shell\n  image: docker.io/bitnami/os-shell:11-debian-11-r90\n", in)
	left := discover.Undecided(doubts, []string{"docker.io/bitnami/kibana:8.10.4-debian-11-r0"})
	want := `"docker.io/bitnami/os-shell:11-debian-11-r90" (the chart lists it, and nothing that these values render has it) in chart kibana 10.6.1: kibana/Chart.yaml: annotations.images[1].image`
	if len(doubts) != 2 || len(left) != 1 || left[0].String() != want {
		t.Errorf("got %v, left %v", doubts, left)
	}
	if other := finder(t).Listed("see the README", in); len(other) != 0 {
		t.Errorf("got %v", other)
	}
}

// TestInvalidImage names file, line, object and path of a container whose image is no reference, once for the object,
// and the remedy.
func TestInvalidImage(t *testing.T) {
	t.Parallel()
	file := `apiVersion: v1
kind: ConfigMap
metadata: {name: first}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    # image: Bad Image
    image: "Bad Image" # two words
  - {name: again, image: Bad Image}
`
	r, err := finder(t).YAML([]byte(file), discover.Place{File: "shop/web.yaml"})
	if err != nil || len(r.Doubts) != 1 {
		t.Fatalf("%v, %v", r.Doubts, err)
	}
	want := `"Bad Image" (it is no image reference) in shop/web.yaml:12: Pod web: spec.containers[0].image; correct it, or name it under excludeImages`
	if have := r.Doubts[0].String(); have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	// Lines of a rendered template are not those of the template.
	r, err = finder(t).YAML([]byte(file), discover.Place{Source: "chart shop 1.0.0", File: "shop/templates/web.yaml"})
	if err != nil || len(r.Doubts) != 1 || r.Doubts[0].Line != 0 {
		t.Errorf("%v, %v", r.Doubts, err)
	}
}

// TestKnownToEverybody wants images that are not in pod specs, in the forms that their projects write.
func TestKnownToEverybody(t *testing.T) {
	t.Parallel()
	const injector = `apiVersion: v1
kind: ConfigMap
metadata: {name: istio-sidecar-injector, namespace: istio-system}
data:
  values: |-
    {
      "gateways": {"seccompProfile": {}},
      "global": {
        "hub": "docker.io/istio",
        "proxy": {"autoInject": "enabled", "image": "proxyv2"},
        "proxy_init": {"image": %q},
        "tag": "1.27.1",
        "variant": %q
      }
    }
  config: |-
    policy: enabled
`
	for name, c := range map[string]struct{ in, want string }{
		"Istio's injector": {fmt.Sprintf(injector, "proxyv2", ""), "docker.io/istio/proxyv2:1.27.1"},
		"Istio, a variant": {
			fmt.Sprintf(injector, "proxyv2", "distroless"),
			"docker.io/istio/proxyv2:1.27.1 docker.io/istio/proxyv2:1.27.1-distroless",
		},
		"Istio, a whole reference": {fmt.Sprintf(injector, "quay.io/own/init:2", ""), "quay.io/own/init:2"},
		"another ConfigMap":        {"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {values: 'global: {hub: x}'}}", ""},
		"OLM": {`apiVersion: operators.coreos.com/v1alpha1
kind: ClusterServiceVersion
metadata: {name: etcdoperator.v0.9.4}
spec:
  relatedImages:
  - {name: etcd, image: "quay.io/coreos/etcd@sha256:3816b6daf9b66d6ced6f0f966314e2d4f894982c6b1493061502f8c2bf86ac84"}
  - {name: manager, image: "quay.io/coreos/etcd-operator:v0.9.4"}
  install: {strategy: deployment, spec: {deployments: [{name: d, spec: {template: {spec: {containers: [{name: c, image: "quay.io/coreos/etcd-operator:v0.9.4"}]}}}}]}}
`, "quay.io/coreos/etcd-operator:v0.9.4 quay.io/coreos/etcd@sha256:3816b6daf9b66d6ced6f0f966314e2d4f894982c6b1493061502f8c2bf86ac84"},
		"Grafana Agent":               {"{apiVersion: monitoring.grafana.com/v1alpha1, kind: GrafanaAgent, metadata: {name: a}, spec: {image: 'grafana/agent:v0.40.4'}}", "docker.io/grafana/agent:v0.40.4"},
		"Grafana Agent, by a version": {"{apiVersion: monitoring.grafana.com/v1alpha1, kind: GrafanaAgent, metadata: {name: a}, spec: {version: v0.40.4}}", "docker.io/grafana/agent:v0.40.4"},
	} {
		r, err := finder(t).YAML([]byte(c.in), discover.Place{})
		var got []string
		for _, image := range r.Images {
			if len(got) == 0 || got[len(got)-1] != image.Ref {
				got = append(got, image.Ref)
			}
		}
		if diff := cmp.Diff(strings.Join(got, " "), c.want); diff != "" || err != nil {
			t.Errorf("%s: %v, -got +want:\n%s", name, err, diff)
		}
	}
}

// TestFetchedAtSite wants the charts that a controller fetches at the site, and the operators that choose images, as doubts.
func TestFetchedAtSite(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: a}, spec: {sources: [{chart: redis, repoURL: 'https://charts.example'}]}}":        "chart redis",
		"{apiVersion: helm.toolkit.fluxcd.io/v2, kind: HelmRelease, metadata: {name: a}, spec: {chart: {spec: {chart: podinfo}}}}":                                "chart podinfo",
		"{apiVersion: helm.cattle.io/v1, kind: HelmChart, metadata: {name: a}, spec: {chart: traefik}}":                                                           "chart traefik",
		"{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: a}, spec: {}}":                                                                             "default image of KubeVirt",
		"{apiVersion: operator.victoriametrics.com/v1beta1, kind: VMCluster, metadata: {name: a}, spec: {vmselect: {}}}":                                          "default image of VMCluster",
		"{apiVersion: k8s.keycloak.org/v2alpha1, kind: Keycloak, metadata: {name: a}, spec: {instances: 1}}":                                                      "default image of Keycloak",
		"{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: a}, spec: {source: {path: apps, repoURL: 'https://git.example'}}}":                "",
		"{apiVersion: operator.tigera.io/v1, kind: Installation, metadata: {name: default}, spec: {variant: Calico}}":                                             "quay.io/calico/node",
		"{apiVersion: source.toolkit.fluxcd.io/v1, kind: OCIRepository, metadata: {name: a}, spec: {url: 'oci://quay.io/a/b', ref: {semver: '>=1.0'}}}":           "quay.io/a/b",
		"{apiVersion: source.toolkit.fluxcd.io/v1, kind: OCIRepository, metadata: {name: a}, spec: {url: 'oci://quay.io/a/b', ref: {tag: v1}}}":                   "quay.io/a/b:v1",
		"{apiVersion: source.toolkit.fluxcd.io/v1, kind: HelmRepository, metadata: {name: a}, spec: {url: 'oci://quay.io/charts', type: oci}}":                    "",
		"{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: a}, spec: {images: [{name: web, newName: quay.io/a/b, newTag: v2}]}}": "quay.io/a/b:v2",
		"{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: a}, spec: {images: [{name: quay.io/a/b, newTag: 1.10}]}}":             "quay.io/a/b:1.10",
		"{apiVersion: x.example/v1, kind: X, metadata: {name: a}, spec: {from: 'oci://quay.io/a/b:v3'}}":                                                          "quay.io/a/b:v3",
		"{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: a}, spec: {source: {registry: {url: 'oci-archive:///disks/a.tar'}}}}":           "",
	} {
		r, err := finder(t).YAML([]byte(in), discover.Place{})
		var got []string
		for _, d := range r.Doubts {
			got = append(got, d.Text)
		}
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: got %q, %v, want %s", in, got, err, want)
		}
	}
}

// TestBlanksAroundImage wants blanks to be named as the fault: the text within is a valid reference.
func TestBlanksAroundImage(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"' quay.io/a/b:1'", "'quay.io/a/b:1 '", `"quay.io/a/b:1\n"`,
		"|\n      quay.io/a/b:1\n",
	} {
		file := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: " +
			value + "\n"
		r, err := finder(t).YAML([]byte(file), discover.Place{File: "f.yaml"})
		if err != nil || len(r.Images) != 0 || len(r.Doubts) != 1 || !r.Doubts[0].Invalid() {
			t.Errorf("%s: %v, %v", value, r, err)
			continue
		}
		if got := r.Doubts[0].Problem(); got != `"quay.io/a/b:1" has blanks or a line break around it, which Kubernetes refuses` {
			t.Errorf("%s: got %s", value, got)
		}
	}
}

func TestUndecided(t *testing.T) {
	t.Parallel()
	doubts := []discover.Doubt{
		{Text: "nginx:1"},
		{Text: "quay.io/a/base"},
		{Text: "quay.io/a/base:2"},
		{Text: "{{ x }}"},
		{Text: "quay.io/a/pinned:1"},
		{Text: "default image of Kafka"},
	}
	known := []string{"docker.io/library/nginx:1", "quay.io/a/base:1", "quay.io/a/pinned:1@sha256:" +
		strings.Repeat("0", 64)}
	got := discover.Undecided(doubts, known)
	want := []discover.Doubt{{Text: "quay.io/a/base:2"}, {Text: "{{ x }}"}, {Text: "default image of Kafka"}}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Error(diff)
	}
}

// TestImagesInParts: a repository under a key of its own, with its tag beside it, is asked about.
func TestImagesInParts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {image.repository: quay.io/a/b, image.tag: '1'}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {SIDECAR_IMAGE_REPO: quay.io/a/b, SIDECAR_IMAGE_TAG: '1'}\n",
		"apiVersion: acme.io/v1\nkind: Thing\nmetadata: {name: c}\nspec: {imageRepository: quay.io/a/b, imageTag: '1'}\n",
	} {
		r, err := finder(t).YAML([]byte(text), discover.Place{File: "f.yaml"})
		if err != nil || len(r.Images) != 0 || len(r.Doubts) != 1 || r.Doubts[0].Text != "quay.io/a/b" {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
	const place = "apiVersion: acme.io/v1\nkind: Thing\nmetadata: {name: c}\nspec: {imageRepository: main, gitRepository: github.com/a/b}\n"
	if r, err := finder(t).YAML([]byte(place), discover.Place{File: "f.yaml"}); err != nil || len(r.Doubts) != 0 {
		t.Errorf("%v, %v", r, err)
	}
}

// TestImagesInSeveralParts wants the whole reference of an image whose parts are in keys of their own, in an object and
// in a text of one.
func TestImagesInSeveralParts(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("1", 64)
	for _, c := range []struct{ in, want string }{
		{"driver: {repository: nvcr.io/nvidia, image: driver, version: 580.95.05}", "nvcr.io/nvidia/driver:580.95.05"},
		{"dcgm: {repository: nvcr.io/nvidia, image: dcgm, version: '" + digest + "'}", "nvcr.io/nvidia/dcgm@" + digest},
		{"ofed: {repository: nvcr.io/mellanox, image: doca, tag: v1}", "nvcr.io/mellanox/doca:v1"},
		{"server: {registry: quay.io, name: a/b, tag: v1}", "quay.io/a/b:v1"},
		{"server: {registry: 'reg:5000', image: a/b, digest: '" + digest + "'}", "reg:5000/a/b@" + digest},
		{"proxy: {hub: docker.io/istio, image: proxyv2, tag: 1.20.0}", "docker.io/istio/proxyv2:1.20.0"},
		{"server: {repository: quay.io/a/b, digest: '" + digest + "'}", "quay.io/a/b@" + digest},
		{"server: {repository: quay.io/a/b, tag: v1, sha: '" + digest[7:] + "'}", "quay.io/a/b:v1@" + digest},
		{"image: {repository: quay.io/a/b}", "quay.io/a/b"},
		{`values: '{"server": {"image": {"repository": "quay.io/a/b", "tag": "v1"}}}'`, "quay.io/a/b:v1"},
		{"values: |\n    list:\n    - image: {registry: quay.io, repository: a/b, tag: 1.10}\n", "quay.io/a/b:1.10"},
		{"image: {name: a/b, tag: 1.10}", "a/b:1.10"},
		{"containers: [{name: c, image: {repository: quay.io/a/b, tag: v1}}]", "quay.io/a/b:v1"},
		{"values: |\n    image:\n      name: quay.io/a/b\n      tag: v1\n", "quay.io/a/b:v1"},
		{"containers: [{name: c, image: 1.10}]", "1.10"},
		{"containers: [{name: c, image: [quay.io/a/b:1]}]", "quay.io/a/b:1"},
		{"thing: {name: a, tag: v1}", ""},
		{"image: {name: a, version: v1}", ""},
		{"chart: {repository: 'https://charts.example', name: a, version: 1.0.0}", ""},
		{"module: {registry: npm, name: a, version: 1.0.0}", ""},
		{"git: {repository: github.com/a/b, version: 1.0.0}", ""},
		{"values: |\n    repository: {{ .x }}: y\n", ""},
	} {
		r, err := finder(t).YAML([]byte("apiVersion: acme.io/v1\nkind: Thing\nmetadata: {name: a}\nspec:\n  "+c.in+"\n"),
			discover.Place{})
		var got []string
		for _, d := range r.Doubts {
			got = append(got, d.Text)
		}
		if strings.Join(got, " ") != c.want || err != nil || len(r.Images) > 0 {
			t.Errorf("%s: got %q, %v, want %s", c.in, got, err, c.want)
		}
	}
}

// TestImagesOfParameters wants the values of parameters that are named after an image, images of lists, and those of
// commands within a text.
func TestImagesOfParameters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"params: [{name: builder-image, default: a/builder:1}]", "a/builder:1"},
		{"arguments: {parameters: [{name: builderImage, value: a/builder:1}]}", "a/builder:1"},
		{"params: [{name: IMAGE, value: $(params.image)}, {name: revision, value: a/b:1}]", ""},
		{"images: [a/b:1, docs/logo.png]", "a/b:1"},
		{"imageRef: a/b:1", "a/b:1"},
		{
			"containers: [{name: a, image: a:1, env: [{name: WORKER_IMAGES, value: 'a/b:1,quay.io/c/d:2'}]}]",
			"a/b:1 quay.io/c/d:2",
		},
		{"containers: [{name: a, image: a:1, env: [{name: IMG, value: 'a/b:1'}, {name: IMGUR, value: 'a/c:1'}]}]", "a/b:1"},
		{"containers: [{name: a, image: a:1, command: [sh, -c, kubectl run x --image a/b:1]}]", "a/b:1"},
	} {
		r, err := finder(t).YAML([]byte("apiVersion: acme.io/v1\nkind: Thing\nmetadata: {name: a}\nspec:\n  "+c.in+"\n"),
			discover.Place{})
		var got []string
		for _, d := range r.Doubts {
			got = append(got, d.Text)
		}
		if strings.Join(got, " ") != c.want || err != nil {
			t.Errorf("%s: got %q, %v, want %s", c.in, got, err, c.want)
		}
	}
}

func TestCheckRules(t *testing.T) {
	t.Parallel()
	err := discover.CheckRules([]manifest.ImageRule{
		{Kind: "A", Paths: []string{".spec.image", "$.spec['a.b'][0]..c", "{.x.*}"}},
		{Kind: "B", Paths: []string{"", ".spec[?(@.x)]", ".a..", "a[-1]"}, Images: []string{"x:{.y}", "x:1", "{[}"}},
	})
	if err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("want six problems, got %v", err)
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]bool{
		"v1 Secret": false, "rbac.authorization.k8s.io/v1 ClusterRole": false,
		"v1 ConfigMap": true, "apps/v1 Deployment": true,
	} {
		if _, ok := discover.Lookup(kind); ok != want {
			t.Errorf("%s: got %v", kind, ok)
		}
	}
}

// FuzzYAML wants whatever is read to end without a panic, and what is called an image to be a reference.
func FuzzYAML(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		for doc := range strings.SplitSeq(string(data), "\n---\n") {
			f.Add([]byte(doc))
		}
	}
	f.Add([]byte("apiVersion: v1\nkind: Pod\n<<: [{a: b}, 1]\n? [a]\n: b\n"))
	find := finder(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _ := find.YAML(data, discover.Place{File: "f"})
		for _, image := range r.Images {
			if again, err := scalar.ImageName(image.Ref); err != nil || again != image.Ref {
				t.Errorf("%q is called an image: %q, %v", image.Ref, again, err)
			}
		}
		for _, d := range r.Doubts {
			if len(d.Text) > 310 || d.Why == "" {
				t.Errorf("doubt %q (%s)", d.Text, d.Why)
			}
		}
	})
}

// FuzzRules wants any path to be refused or followed, and nothing else.
func FuzzRules(f *testing.F) {
	for _, p := range []string{".spec.image", "..a[*].b", "$['x.y'][0]", "{.a}", "[", "..", ".*", "['a"} {
		f.Add(p)
	}
	object := []byte("apiVersion: v1\nkind: X\nspec: {image: a, x.y: [b, {c: d}]}\n")
	f.Fuzz(func(t *testing.T, path string) {
		find, err := discover.NewFinder([]manifest.ImageRule{{
			Kind: "X", Paths: []string{path},
			Images: []string{"a:{" + path + "}"},
		}})
		if err != nil {
			return
		}
		if _, err := find.YAML(object, discover.Place{}); err != nil {
			t.Error(err)
		}
	})
}
