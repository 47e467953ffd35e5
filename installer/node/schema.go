package node

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// FactsSchema returns the JSON Schema of Facts.
func FactsSchema() []byte {
	return Schema(reflect.TypeFor[Facts](), "kkbundle-node facts", FactsVersion)
}

// Schema returns the JSON Schema (draft 2020-12) of a versioned struct, generated from the type and its tags: doc:"…"
// is a description, enum:"a,b" lists the allowed values. Unknown properties are allowed, because fields are added
// within a version.
func Schema(t reflect.Type, title string, version int) []byte {
	s := schemaOf(t)
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", title
	s["properties"].(map[string]any)["version"] = map[string]any{"const": version}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // all its values are valid in JSON
	}
	return append(text, '\n')
}

func schemaOf(t reflect.Type) map[string]any {
	switch {
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem())
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return map[string]any{"type": "string"}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case t.Kind() == reflect.Struct:
		properties := map[string]any{}
		required := []string{}
		addFields(t, properties, &required)
		return map[string]any{"type": "object", "properties": properties, "required": required}
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.String:
		return map[string]any{"type": "string"}
	default:
		return map[string]any{"type": "integer"}
	}
}

func addFields(t reflect.Type, properties map[string]any, required *[]string) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		one := schemaOf(f.Type)
		if doc := f.Tag.Get("doc"); doc != "" {
			one["description"] = doc
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			one["enum"] = strings.Split(enum, ",")
		}
		properties[name] = one
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}
