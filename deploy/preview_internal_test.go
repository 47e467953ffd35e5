package deploy

import (
	"slices"
	"testing"
)

// TestDefinitionNames: only these are waited for before the next part, which may use their kinds.
func TestDefinitionNames(t *testing.T) {
	t.Parallel()
	p := &preview{objects: &rewritten{text: []byte(`apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: orders.shop.example}
---
apiVersion: shop.example/v1
kind: Order
metadata: {name: first}
`)}}
	if got := p.definitionNames(); !slices.Equal(got, []string{"orders.shop.example"}) {
		t.Errorf("got %q", got)
	}
	p.objects.text = []byte("a: [")
	if got := p.definitionNames(); got != nil {
		t.Errorf("of text that is no YAML: %q", got)
	}
}
