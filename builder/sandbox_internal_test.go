package builder

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/discover"
)

// What cannot be read in a rendered chart is a problem with its place, and never left out without a word; images beside
// it are found.
func TestRenderedIsRead(t *testing.T) {
	t.Parallel()
	f, err := discover.NewFinder(nil)
	if err != nil {
		t.Fatal(err)
	}
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: \"docker.io/library/a:1\"}]}\n" +
		"---\nkind: [\n"
	file := charts.RenderedFile{Name: "templates/a.yaml", Content: text}
	for name, rendering := range map[string]*charts.Rendering{
		"install":             {Files: []charts.RenderedFile{file}},
		"install and upgrade": {Files: []charts.RenderedFile{file}, Upgrade: []charts.RenderedFile{file}},
	} {
		var a findAnswer
		a.rendered(f, findRequest{Source: "chart web 1.0.0"}, rendering)
		if len(a.Images) == 0 || !strings.Contains(strings.Join(a.Problems, "\n"), "templates/a.yaml: document 2") {
			t.Errorf("%s: images %v, problems %q", name, a.Images, a.Problems)
		}
	}
}

// TestChartAsInstalled wants what an installation has beside the templates: the objects in crds/, and the schema of the
// values.
func TestChartAsInstalled(t *testing.T) {
	t.Parallel()
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: \"docker.io/library/a:1\"}]}\n"
	a := searchedChart(t, map[string]string{
		"crds/pod.yaml":      pod,
		"values.yaml":        "size: large\n",
		"values.schema.json": `{"properties": {"size": {"type": "integer"}}}`,
	})
	if len(a.Images) != 1 || a.Images[0].File != "web/crds/pod.yaml" {
		t.Errorf("images %v", a.Images)
	}
	if len(a.Doubts) != 1 || a.Doubts[0].Text != "values of chart web 1.0.0" ||
		!strings.Contains(a.Doubts[0].Why, "at '/size': got string, want integer") {
		t.Errorf("doubts %v", a.Doubts)
	}
	a = searchedChart(t, map[string]string{"crds/broken.yaml": "kind: [\n"})
	if !strings.Contains(strings.Join(a.Problems, "\n"), "web/crds/broken.yaml: document 1") {
		t.Errorf("problems %q", a.Problems)
	}
}

// searchedChart returns the finder's answer about a chart web 1.0.0 of these files.
func searchedChart(t *testing.T, files map[string]string) findAnswer {
	t.Helper()
	dir := t.TempDir()
	files["Chart.yaml"] = "apiVersion: v2\nname: web\nversion: 1.0.0\n"
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(files[name]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	chart, err := charts.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := chart.Archive(&archive); err != nil {
		t.Fatal(err)
	}
	return findRequest{Source: "chart web 1.0.0", Chart: &chartRequest{Options: charts.RenderOptions{
		Release: "web", Namespace: "default", KubeVersion: "v1.34.3", MaxOutput: 1 << 20,
	}}}.answer(archive.Bytes())
}
