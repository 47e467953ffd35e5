package node

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// FactsSchema returns the JSON Schema (draft 2020-12) of Facts, made from the type. Properties that it does not know are
// allowed, because fields are added to a version.
func FactsSchema() []byte {
	s := schemaOf(reflect.TypeFor[Facts]())
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "kkbundle-node facts"
	s["properties"].(map[string]any)["version"] = map[string]any{"const": FactsVersion}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // it holds nothing that JSON cannot say
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
		properties[name] = schemaOf(f.Type)
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}
