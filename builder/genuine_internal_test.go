package builder

import (
	"bytes"
	gobuild "go/build"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// genuineCharts are charts of upstream as published, by name and version, and their places in Go's module cache.
// The others' repositories are no modules: their charts are taken from the directory that KKBUNDLE_CHARTS names, as
// NAME-VERSION.
const genuineCharts = "KKBUNDLE_CHARTS"

// genuineChart returns the directory of a chart of upstream. A test without it is skipped.
func genuineChart(t *testing.T, name, version string) string {
	t.Helper()
	dirs := []string{filepath.Join(os.Getenv(genuineCharts), name+"-"+version)}
	modules := filepath.Join(gobuild.Default.GOPATH, "pkg", "mod", "github.com")
	switch name {
	case "cilium":
		dirs = append(dirs, filepath.Join(modules, "cilium", "cilium@"+version, "install", "kubernetes", "cilium"))
	case "flannel":
		dirs = append(dirs, filepath.Join(modules, "flannel-io", "flannel@"+version, "chart", "kube-flannel"))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "Chart.yaml")); err == nil {
			return dir
		}
	}
	t.Skipf("%s %s is neither in the module cache nor below %s", name, version, genuineCharts)
	return ""
}

// A network is a pod network of a version, with its charts by name.
type network struct {
	kind, version, kubernetes string
	charts                    func(t *testing.T, name string) string
	// want are images that only the chart names, and own images of the catalog.
	want, own []string
}

// images returns the images that a build finds for a cluster: those of the catalog, and those found in the charts.
// kinds are the custom resources in the charts, and defined the kinds that definitions in the charts have.
func (n network) images(t *testing.T) (found, kinds, defined []string) {
	t.Helper()
	c, err := manifest.ParseCluster("cluster.yaml",
		[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: "+n.kubernetes+
			"}\ncni: {type: "+n.kind+", version: "+n.version+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c = c.WithDefaults()
	a, err := catalog.Resolve(c, plan.Needed(c), catalog.Options{Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range a.Images {
		found = append(found, image.Name)
	}
	uses, err := plan.ChartUses(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, use := range uses {
		chart, err := charts.LoadDir(n.charts(t, use.Chart))
		if err != nil {
			t.Fatal(err)
		}
		var archive bytes.Buffer
		if err := chart.Archive(&archive); err != nil {
			t.Fatal(err)
		}
		o := charts.RenderOptions{
			Release: use.Release, Namespace: use.Namespace, Values: use.Set,
			KubeVersion: n.kubernetes, MaxOutput: charts.MaxRendered,
		}
		answer := findRequest{Source: "chart " + use.Chart, Chart: &chartRequest{Options: o}}.answer(archive.Bytes())
		for _, problem := range answer.Problems {
			t.Errorf("%s: %s", use.Chart, problem)
		}
		for _, d := range answer.Doubts {
			t.Logf("%s: undecided: %s", use.Chart, d)
		}
		for _, image := range answer.Images {
			found = append(found, image.Ref)
		}
		rendering, err := charts.Render(bytes.NewReader(archive.Bytes()), o)
		if err != nil {
			t.Fatal(err)
		}
		texts := []string{string(chart.CRDs())}
		for _, file := range rendering.Files {
			texts = append(texts, file.Content)
		}
		more, names := definitionsIn(t, texts)
		kinds, defined = append(kinds, more...), append(defined, names...)
	}
	slices.Sort(found)
	return slices.Compact(found), kinds, defined
}

// definitionsIn returns the kinds of an operator's resources in rendered YAML, and the kinds that definitions in it
// have.
func definitionsIn(t *testing.T, texts []string) (kinds, defined []string) {
	t.Helper()
	for doc := range strings.SplitSeq("\n"+strings.Join(texts, "\n---\n"), "\n---") {
		var o struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
			Spec       struct {
				Group string                `yaml:"group"`
				Names struct{ Kind string } `yaml:"names"`
			} `yaml:"spec"`
		}
		_, doc, _ = strings.Cut(doc, "\n")
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			continue // other objects have other forms of spec
		}
		if o.Kind == "CustomResourceDefinition" {
			defined = append(defined, o.Spec.Group+" "+o.Spec.Names.Kind)
		}
		if group, _, _ := strings.Cut(o.APIVersion, "/"); strings.HasSuffix(group, ".tigera.io") {
			kinds = append(kinds, group+" "+o.Kind)
		}
	}
	return kinds, defined
}

func (n network) check(t *testing.T) {
	t.Helper()
	found, kinds, defined := n.images(t)
	t.Logf("%d images: %s", len(found), strings.Join(found, " "))
	for _, want := range append(n.want, n.own...) {
		if !slices.Contains(found, want) {
			t.Errorf("%s is not found", want)
		}
	}
	for _, kind := range kinds {
		if !slices.Contains(defined, kind) {
			t.Errorf("nothing defines %s, which the chart has: an install would fail", kind)
		}
	}
	if n.kind == "calico" && len(kinds) == 0 {
		t.Error("the chart has no resources of the operator")
	}
}

// TestNetworksOfUpstream renders charts as upstream has them, of releases that no table lists.
func TestNetworksOfUpstream(t *testing.T) {
	t.Parallel()
	for _, n := range []network{
		{
			kind: "calico", version: "v3.31.4", kubernetes: "v1.34.3", want: []string{"quay.io/tigera/operator:v1.40.7"},
			own: []string{"quay.io/calico/node:v3.31.4", "quay.io/calico/typha:v3.31.4"},
		},
		{kind: "calico", version: "v3.31.7", kubernetes: "v1.35.4", own: []string{"quay.io/calico/apiserver:v3.31.7"}},
		{
			kind: "calico", version: "v3.32.1", kubernetes: "v1.35.4", want: []string{"quay.io/tigera/operator:v1.42.3"},
			own: []string{"quay.io/calico/cni:v3.32.1"},
		},
		{kind: "calico", version: "v3.33.0", kubernetes: "v1.36.1", own: []string{
			"quay.io/calico/calico:v3.33.0",
			"quay.io/calico/node:v3.33.0",
		}},
		{kind: "cilium", version: "v1.19.6", kubernetes: "v1.34.3", own: []string{
			"quay.io/cilium/cilium:v1.19.6",
			"quay.io/cilium/operator-generic:v1.19.6",
		}},
		{kind: "cilium", version: "v1.20.2", kubernetes: "v1.36.1", own: []string{
			"quay.io/cilium/cilium:v1.20.2",
			"quay.io/cilium/hubble-relay:v1.20.2",
		}},
		{kind: "flannel", version: "v0.28.4", kubernetes: "v1.34.3", own: []string{
			"ghcr.io/flannel-io/flannel:v0.28.4",
			"ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1",
		}},
		{kind: "hybridnet", version: "v0.6.8", kubernetes: "v1.36.1", own: []string{
			"docker.io/hybridnetdev/hybridnet:v0.8.8",
		}},
		{kind: "kube-ovn", version: "v1.15.0", kubernetes: "v1.34.3", own: []string{
			"docker.io/kubeovn/kube-ovn:v1.15.0",
			"docker.io/kubeovn/vpc-nat-gateway:v1.15.0",
		}},
	} {
		t.Run(n.kind+"-"+n.version, func(t *testing.T) {
			t.Parallel()
			n.charts = func(t *testing.T, name string) string {
				t.Helper()
				return genuineChart(t, name, n.version)
			}
			n.check(t)
		})
	}
}

// standIn writes a chart of few lines, in the form of upstream's.
func standIn(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestNetworksOfStandIns has charts of releases that no table lists, where upstream's could not be obtained. They are
// stand-ins: the parts of upstream's charts that name images, and one resource and its definition.
func TestNetworksOfStandIns(t *testing.T) {
	t.Parallel()
	all := map[string]map[string]string{
		"tigera-operator": {
			"Chart.yaml":            "apiVersion: v2\nname: tigera-operator\nversion: v3.32.77\n",
			"values.yaml":           "tigeraOperator: {registry: quay.io, image: tigera/operator, version: v1.42.99}\n",
			"templates/deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: tigera-operator}\nspec: {template: {spec: {containers: [{name: o, image: \"{{ .Values.tigeraOperator.registry }}/{{ .Values.tigeraOperator.image }}:{{ .Values.tigeraOperator.version }}\"}]}}}\n",
			"templates/cr.yaml":     "apiVersion: operator.tigera.io/v1\nkind: Installation\nmetadata: {name: default}\n",
		},
		"crd.projectcalico.org.v1": {
			"Chart.yaml":           "apiVersion: v2\nname: crd.projectcalico.org.v1\nversion: v3.32.77\n",
			"templates/a_crd.yaml": "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: installations.operator.tigera.io}\nspec: {group: operator.tigera.io, names: {kind: Installation}}\n",
		},
		"cilium": {
			"Chart.yaml":        "apiVersion: v2\nname: cilium\nversion: 1.20.77\n",
			"values.yaml":       "envoy: {image: {repository: quay.io/cilium/cilium-envoy, tag: v9, useDigest: true, digest: sha256:00}}\nhubble: {ui: {frontend: {image: {repository: quay.io/cilium/hubble-ui, tag: v8}}}}\n",
			"templates/ds.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  {{- with .Values.envoy.image }}\n  - {name: e, image: \"{{ .repository }}:{{ .tag }}{{ if .useDigest }}@{{ .digest }}{{ end }}\"}\n  {{- end }}\n  {{- if .Values.hubble.ui.enabled }}\n  {{- with .Values.hubble.ui.frontend.image }}\n  - {name: u, image: \"{{ .repository }}:{{ .tag }}\"}\n  {{- end }}\n  {{- end }}\n",
		},
	}
	charts := func(t *testing.T, name string) string {
		t.Helper()
		return standIn(t, all[name])
	}
	for _, n := range []network{
		{
			kind: "calico", version: "v3.32.77", kubernetes: "v1.35.4", charts: charts,
			want: []string{"quay.io/tigera/operator:v1.42.99"}, own: []string{"quay.io/calico/node:v3.32.77"},
		},
		{
			kind: "cilium", version: "v1.20.77", kubernetes: "v1.35.4", charts: charts,
			want: []string{"quay.io/cilium/cilium-envoy:v9", "quay.io/cilium/hubble-ui:v8"},
			own:  []string{"quay.io/cilium/hubble-relay:v1.20.77"},
		},
	} {
		t.Run(n.kind, func(t *testing.T) {
			t.Parallel()
			n.check(t)
		})
	}
}
