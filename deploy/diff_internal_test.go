package deploy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestDifferenceMasksSecrets holds the whole diff of a secret: that a value differs is shown, the value is not.
func TestDifferenceMasksSecrets(t *testing.T) {
	t.Parallel()
	secret := func(data map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "data": data,
			"metadata": map[string]any{
				"name": "s", "namespace": "n", "resourceVersion": "1", "managedFields": []any{},
				"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "aGlkZGVu", "a": "b"},
			},
		}}
	}
	got := difference(secret(map[string]any{"same": "aGlkZGVu", "other": "aGlkZGVuMQ=="}),
		secret(map[string]any{"same": "aGlkZGVu", "other": "aGlkZGVuMg==", "new": "aGlkZGVu"}))
	if diff := cmp.Diff(got, `--- Secret.v1 n/s (live)
+++ Secret.v1 n/s (deployed)
@@ -1,6 +1,7 @@
 apiVersion: v1
 data:
-  other: (masked, one value)
+  new: (masked)
+  other: (masked, another value)
   same: (masked)
 kind: Secret
 metadata:
`); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if got := difference(secret(map[string]any{"a": "b"}), secret(map[string]any{"a": "b"})); got != "" {
		t.Errorf("equal secrets differ:\n%s", got)
	}
}
