package charts

import (
	"context"
	"encoding/base64"
	"strings"

	"helm.sh/helm/v3/pkg/engine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// lookups implements the template function lookup for a cluster that has nothing but a release, and records the kinds
// looked up.
type lookups struct {
	namespace string // of the release
	have      []RenderedFile
	docs      []string // of have, once a template has asked
	asked     map[string]bool
}

// GetClientFor implements Helm's engine.ClientProvider.
func (l *lookups) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	const most = 100 // bounded, since templates can invent names of kinds
	if len(l.asked) < most {
		l.asked[plain.Clip(apiVersion+" "+kind, 100)] = true
	}
	return installed{objects: l.objects(apiVersion, kind)}, true, nil
}

// objects returns the release's objects of a kind.
func (l *lookups) objects(apiVersion, kind string) []unstructured.Unstructured {
	if l.docs == nil {
		for _, file := range l.have {
			l.docs = append(l.docs, documents(file.Content)...)
		}
	}
	var list []unstructured.Unstructured
	for _, doc := range l.docs {
		var o unstructured.Unstructured
		if !strings.Contains(doc, kind) || yaml.Unmarshal([]byte(doc), &o.Object) != nil || o.GetKind() != kind ||
			o.GetAPIVersion() != apiVersion {
			continue // the finder of images reports documents that cannot be read
		}
		if o.GetNamespace() == "" {
			o.SetNamespace(l.namespace)
		}
		encodeSecret(&o)
		list = append(list, o)
	}
	return list
}

// encodeSecret moves a secret's stringData into data, as the API server does.
func encodeSecret(o *unstructured.Unstructured) {
	texts, _, err := unstructured.NestedStringMap(o.Object, "stringData")
	if err != nil || o.GetKind() != "Secret" {
		return
	}
	for key, text := range texts {
		_ = unstructured.SetNestedField(o.Object, base64.StdEncoding.EncodeToString([]byte(text)), "data", key)
	}
	delete(o.Object, "stringData")
}

var _ engine.ClientProvider = &lookups{}

// installed is a client for the objects of one kind. Helm calls no other methods.
type installed struct {
	dynamic.NamespaceableResourceInterface
	objects   []unstructured.Unstructured
	namespace string // "" for all
}

// Namespace returns the client for a namespace.
func (c installed) Namespace(namespace string) dynamic.ResourceInterface {
	c.namespace = namespace
	return c
}

// Get returns an object.
func (c installed) Get(_ context.Context, name string, _ metav1.GetOptions,
	_ ...string,
) (*unstructured.Unstructured, error) {
	for i := range c.objects {
		if o := &c.objects[i]; o.GetName() == name && c.holds(o) {
			return o, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

// List returns the objects.
func (c installed) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
	for i := range c.objects {
		if c.holds(&c.objects[i]) {
			list.Items = append(list.Items, c.objects[i])
		}
	}
	return list, nil
}

func (c installed) holds(o *unstructured.Unstructured) bool {
	return c.namespace == "" || o.GetNamespace() == c.namespace
}
