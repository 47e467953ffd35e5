package charts

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// nowhere is a client for an empty cluster. Helm calls no other methods.
type nowhere struct {
	dynamic.NamespaceableResourceInterface
}

// Namespace returns the same.
func (n nowhere) Namespace(string) dynamic.ResourceInterface { return n }

// Get finds nothing.
func (nowhere) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

// List returns an empty list.
func (nowhere) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}, nil
}
