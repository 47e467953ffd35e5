package discover_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/discover"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestReplacerObject holds that a path with a wildcard, an index and a descendant changes texts there and nowhere else.
func TestReplacerObject(t *testing.T) {
	t.Parallel()
	r, err := discover.NewReplacer([]manifest.ImageRule{
		{Kind: "Widget", APIVersion: "example.com", Paths: []string{
			".spec.nodes[*].image", ".spec.parts..img",
			".spec.list[1]",
		}},
		{Kind: "Other", Paths: []string{".spec.image"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "image": "a",
		"spec": map[string]any{
			"image": "a", "nodes": []any{map[string]any{"image": "a", "name": "a"}, map[string]any{"image": 1}},
			"parts": map[string]any{"img": "a", "x": map[string]any{"img": "b"}}, "list": []any{"a", "b"},
		},
	}
	r.Object(object, strings.ToUpper)
	if diff := cmp.Diff(object, map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "image": "a",
		"spec": map[string]any{
			"image": "a", "nodes": []any{map[string]any{"image": "A", "name": "a"}, map[string]any{"image": 1}},
			"parts": map[string]any{"img": "A", "x": map[string]any{"img": "B"}}, "list": []any{"a", "B"},
		},
	}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestPodImages(t *testing.T) {
	t.Parallel()
	spec := map[string]any{
		"containers":          []any{map[string]any{"name": "a", "image": "a:1"}, map[string]any{"name": "b"}},
		"initContainers":      []any{map[string]any{"image": "i:1"}},
		"ephemeralContainers": []any{map[string]any{"image": "e:1"}},
		"volumes": []any{
			map[string]any{"name": "v", "image": map[string]any{"reference": "v:1"}},
			map[string]any{"emptyDir": map[string]any{}},
		},
	}
	var got []string
	for _, f := range discover.PodImages(spec) {
		got = append(got, f.Path+"="+f.Text)
		f.Set("new/" + f.Text)
	}
	if diff := cmp.Diff(got, []string{
		"initContainers[0].image=i:1", "containers[0].image=a:1", "ephemeralContainers[0].image=e:1",
		"volumes[0].image.reference=v:1",
	}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if again := discover.PodImages(spec); len(again) != 4 || again[3].Text != "new/v:1" {
		t.Errorf("got %v", again)
	}
}
