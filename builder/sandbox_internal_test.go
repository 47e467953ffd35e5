package builder

import (
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
