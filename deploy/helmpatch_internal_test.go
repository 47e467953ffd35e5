package deploy

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestHelmPatch: of kinds that Kubernetes knows, lists are merged by their keys, and what others have added stays; of
// custom resources, only what the chart changes is in the patch.
func TestHelmPatch(t *testing.T) {
	object := func(apiVersion, kind string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": "a"}, "spec": spec,
		}}
	}
	pod := func(image string, more ...any) *unstructured.Unstructured {
		containers := append([]any{map[string]any{"name": "main", "image": image}}, more...)
		return object("v1", "Pod", map[string]any{"containers": containers})
	}
	sidecar := map[string]any{"name": "sidecar", "image": "proxy:1"}
	widget := func(size int64, more string) *unstructured.Unstructured {
		spec := map[string]any{"size": size}
		if more != "" {
			spec["more"] = more
		}
		return object("example.com/v1", "Widget", spec)
	}
	for name, c := range map[string]struct {
		old, now, live *unstructured.Unstructured
		kind           types.PatchType
		patch          string
	}{
		"a known kind": {
			pod("app:1"), pod("app:2"), pod("app:1", sidecar), types.StrategicMergePatchType,
			`{"spec":{"$setElementOrder/containers":[{"name":"main"}],"containers":[{"image":"app:2","name":"main"}]}}`,
		},
		"a custom resource": {widget(1, ""), widget(2, ""), widget(1, "theirs"), types.MergePatchType, `{"spec":{"size":2}}`},
	} {
		kind, patch, err := helmPatch(c.old, c.now, c.live)
		if err != nil || kind != c.kind || string(patch) != c.patch {
			t.Errorf("%s: %v %s %s\nwant %s", name, err, kind, patch, c.patch)
		}
	}
}
