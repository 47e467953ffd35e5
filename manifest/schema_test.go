package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// readSchema returns a kind's schema as anybody's tool would see it.
func readSchema(t *testing.T, kind string) map[string]any {
	t.Helper()
	text, err := Schema(kind)
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchemaKind(t *testing.T) {
	for _, kind := range Kinds() {
		s := readSchema(t, kind)
		if got := s["properties"].(map[string]any)["kind"].(map[string]any)["const"]; got != kind {
			t.Errorf("%s: kind is %v", kind, got)
		}
		if s["additionalProperties"] != false {
			t.Errorf("%s: unknown keys are allowed", kind)
		}
	}
	if _, err := Schema("Pod"); err == nil {
		t.Error("a kind that is not known: no error")
	}
}

// A file that the decoder takes fits the schema, and each key that a schema has is one that the decoder knows.
func TestSchemaAgreesWithDecoder(t *testing.T) {
	for _, folder := range []string{"valid", "examples"} {
		each(t, folder, func(t *testing.T, name string, data []byte) {
			kind := schemaKind(name)
			var value any
			if err := yaml.Unmarshal(data, &value); err != nil {
				t.Fatal(err)
			}
			for _, problem := range validate(readSchema(t, kind), value, "") {
				t.Error(problem)
			}
		})
	}
	for _, kind := range Kinds() {
		for _, path := range schemaPaths(readSchema(t, kind), nil) {
			// A value of no sensible type at the path: the decoder may refuse the value, but not the key.
			_, err := parseAny(strings.ToLower(kind)+".yaml", nested(kind, path))
			if err != nil && strings.Contains(err.Error(), "unknown field \""+path[len(path)-1]+"\"") {
				t.Errorf("%s: the decoder does not know %s:\n%v", kind, strings.Join(path, "."), err)
			}
		}
	}
}

// The invalid files whose mistakes are of shape do not fit the schema either.
func TestSchemaRefuses(t *testing.T) {
	for _, name := range []string{
		"bundle-missing.yaml", "bundle-header.yaml", "bundle-list.yaml",
		"cluster-values.yaml", "inventory-kubekey.yaml", "lock-values.yaml",
	} {
		data, err := os.ReadFile(filepath.Join(dir, "invalid", name))
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := yaml.Unmarshal(data, &value); err != nil {
			t.Fatal(err)
		}
		if len(validate(readSchema(t, schemaKind(name)), value, "")) == 0 {
			t.Errorf("%s fits the schema", name)
		}
	}
}

// A reference to a value fits wherever a scalar is, except for what says which file it is.
func TestSchemaAllowsReferences(t *testing.T) {
	s := readSchema(t, KindCluster)
	for text, fits := range map[string]bool{
		"dns: {nodeLocal: '${x}'}": true, "dns: {nodeLocal: 'maybe'}": false, "dns: {nodeLocal: true}": true,
		"addons: [{chart: web, wait: '${wait}'}]": true, "addons: [{chart: web, wait: always}]": false,
		"kind: ${kind}": false,
	} {
		v := map[string]any{
			"apiVersion": "kkbundle.io/v1", "kind": KindCluster, "metadata": map[string]any{"name": "a"}, "kubernetes": map[string]any{"version": "1.36.3"},
		}
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if problems := validate(s, v, ""); (len(problems) == 0) != fits {
			t.Errorf("%s: %v", text, problems)
		}
	}
}

func schemaKind(name string) string {
	for _, kind := range Kinds() {
		if strings.HasPrefix(name, strings.ToLower(kind)) {
			return kind
		}
	}
	return ""
}

// schemaPaths lists the paths of all keys; [] stands for an element of a list, * for a key of the file's own.
func schemaPaths(s map[string]any, at []string) [][]string {
	var paths [][]string
	for _, one := range alternatives(s) {
		properties, _ := one["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			path := append(slices.Clone(at), name)
			paths = append(append(paths, path), schemaPaths(properties[name].(map[string]any), path)...)
		}
		if items, ok := one["items"].(map[string]any); ok {
			paths = append(paths, schemaPaths(items, append(slices.Clone(at), "[]"))...)
		}
		if more, ok := one["additionalProperties"].(map[string]any); ok {
			paths = append(paths, schemaPaths(more, append(slices.Clone(at), "*"))...)
		}
	}
	return paths
}

func alternatives(s map[string]any) []map[string]any {
	list := []map[string]any{s}
	anyOf, _ := s["anyOf"].([]any)
	for _, one := range anyOf {
		list = append(list, alternatives(one.(map[string]any))...)
	}
	return list
}

// nested writes a file with one path in it.
func nested(kind string, path []string) []byte {
	value := "{}"
	for _, name := range slices.Backward(path) {
		if name == "[]" {
			value = "[" + value + "]"
		} else {
			value = "{" + strings.Replace(name, "*", "any", 1) + ": " + value + "}"
		}
	}
	head := "apiVersion: kkbundle.io/v1\nkind: " + kind + "\n"
	if path[0] == "apiVersion" || path[0] == "kind" {
		return []byte(head)
	}
	return []byte(head + strings.TrimSuffix(strings.TrimPrefix(value, "{"), "}") + "\n")
}

// validate is the little of JSON Schema that our schemas use.
func validate(s map[string]any, v any, path string) []string {
	if list, ok := s["anyOf"].([]any); ok {
		var problems []string
		for _, one := range list {
			if problems = validate(one.(map[string]any), v, path); len(problems) == 0 {
				return nil
			}
		}
		return problems
	}
	if types := typesOf(s["type"]); len(types) > 0 && !slices.Contains(types, typeOf(v)) &&
		!(typeOf(v) == "integer" && slices.Contains(types, "number")) {
		return []string{path + ": want " + strings.Join(types, " or ") + ", have " + typeOf(v)}
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, v) {
		return []string{path + ": not one of the enum"}
	}
	if pattern, ok := s["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(fmt.Sprint(v)) {
		return []string{path + ": does not match " + pattern}
	}
	if c, ok := s["const"]; ok && c != v {
		return []string{path + ": not the constant"}
	}
	var problems []string
	switch v := v.(type) {
	case map[string]any:
		properties, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				problems = append(problems, path+": "+name.(string)+" is missing")
			}
		}
		for name, one := range v {
			if property, ok := properties[name].(map[string]any); ok {
				problems = append(problems, validate(property, one, path+"."+name)...)
			} else if more, ok := s["additionalProperties"].(map[string]any); ok {
				problems = append(problems, validate(more, one, path+"."+name)...)
			} else if s["additionalProperties"] == false {
				problems = append(problems, path+": "+name+" is not known")
			}
		}
	case []any:
		if items, ok := s["items"].(map[string]any); ok {
			for _, one := range v {
				problems = append(problems, validate(items, one, path+"[]")...)
			}
		}
	}
	return problems
}

func typesOf(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var list []string
		for _, one := range v {
			list = append(list, one.(string))
		}
		return list
	default:
		return nil
	}
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string, time.Time: // to JSON, a day is text
		return "string"
	case int, int64, uint64:
		return "integer"
	case float64:
		return "number"
	case []any:
		return "array"
	default:
		return "object"
	}
}
