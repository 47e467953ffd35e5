package kube

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// YAML renders objects as YAML documents with sorted keys and the apiVersion and kind of their Go types. Digests of the
// bytes are stored, so unset fields are left out even if encoding/json writes them: status, empty resources, empty
// strategies. Unstructured objects are unchanged.
func YAML(objects ...runtime.Object) ([]byte, error) {
	list := make([]map[string]any, 0, len(objects))
	for _, o := range objects {
		if u, ok := o.(*unstructured.Unstructured); ok {
			list = append(list, u.Object)
			continue
		}
		plain, err := plainOf(o)
		if err != nil {
			return nil, err
		}
		if kinds, _, err := scheme.Scheme.ObjectKinds(o); err == nil {
			plain["apiVersion"], plain["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
		}
		delete(plain, "status") // only the API server writes it
		list = append(list, plain)
	}
	return Documents(list...)
}

// plainOf returns a value of a Kubernetes type as a map of its set fields.
func plainOf(value any) (plain map[string]any, err error) {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &plain)
	}
	if err != nil {
		return nil, fmt.Errorf("render %T: %w", value, err)
	}
	removeUnset(plain)
	return plain, nil
}

// removeUnset removes null values and empty structs, which encoding/json writes.
func removeUnset(object map[string]any) {
	for key, value := range object {
		switch v := value.(type) {
		case nil:
			delete(object, key)
		case []any:
			for _, one := range v {
				if m, ok := one.(map[string]any); ok {
					removeUnset(m)
				}
			}
		case map[string]any:
			removeUnset(v)
			switch key {
			case "metadata", "resources", "spec", "strategy", "updateStrategy":
				if len(v) == 0 {
					delete(object, key)
				}
			}
		}
	}
}

// Documents renders YAML documents with sorted keys.
func Documents(list ...map[string]any) ([]byte, error) {
	var b bytes.Buffer
	for i, d := range list {
		if i > 0 {
			b.WriteString("---\n")
		}
		data, err := yaml.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("render %v: %w", d["kind"], err)
		}
		b.Write(data)
	}
	return b.Bytes(), nil
}
