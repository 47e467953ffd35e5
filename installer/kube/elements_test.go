package kube_test

import (
	"context"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/kube"
)

// TestManyElements has a hostile control plane answer with few bytes that become gigabytes of Go values: an empty Pod
// is about a kilobyte.
func TestManyElements(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"objects":    `{"items":[` + strings.Repeat("{},", 1<<20) + `{}]}`,
		"nulls":      `{"items":[` + strings.Repeat("null, ", 1<<20) + `null]}`,
		"containers": `{"items":[{"spec":{"containers":[` + strings.Repeat("{},", 1<<20) + `{}]}}]}`,
		"numbers":    `{"items":[{"spec":{"x":[` + strings.Repeat("0,", 1<<23) + `0]}}]}`,
	} {
		c := kube.Client{Kubectl: func(context.Context, kube.Command) ([]byte, error) { return []byte(answer), nil }}
		if _, err := c.Pods(t.Context(), "--all-namespaces"); err == nil ||
			!strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	text := `{"items":[{"metadata":{"name":"a","annotations":{"x":"` + strings.Repeat("[{,{\\\"", 1<<20) + `"}}}]}`
	c := kube.Client{Kubectl: func(context.Context, kube.Command) ([]byte, error) { return []byte(text), nil }}
	if pods, err := c.Pods(t.Context(), "--all-namespaces"); err != nil || len(pods) != 1 {
		t.Errorf("brackets in a text: %d pods, %v", len(pods), err)
	}
}

// TestHalfDecodedList has a control plane answer with a list whose second object is not valid: no object of it counts.
func TestHalfDecodedList(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		`{"items":[{"kind":"ConfigMap","apiVersion":"v1"},{"kind":1}]}`,
		`{"items":[null]}`,
	} {
		c := kube.Client{Kubectl: func(context.Context, kube.Command) ([]byte, error) { return []byte(answer), nil }}
		list, err := c.List(t.Context(), "configmaps")
		for _, o := range list {
			if o == nil {
				t.Errorf("%s: an object is nil (%v)", answer, err)
			}
		}
	}
}
