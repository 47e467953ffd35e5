package document

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// Schema returns the JSON Schema (draft 2020-12) of a kind of file, generated from the decoder's type and tags.
func (f Format) Schema(t reflect.Type) ([]byte, error) {
	s := schemaOf(t)
	if f.Reference != "" {
		s.refer(&schema{Type: "string", Pattern: f.Reference})
	}
	s.Draft = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "kkbundle " + f.Kind
	s.Properties["apiVersion"].Const = f.APIVersion
	s.Properties["kind"].Const = f.Kind
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the schema of %s: %w", f.Kind, err)
	}
	return append(text, '\n'), nil
}

// schema is the part of JSON Schema in use.
type schema struct {
	Draft       string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        any                `json:"type,omitempty"` // a string, or several types if scalars are taken as written
	Const       string             `json:"const,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	AnyOf       []*schema          `json:"anyOf,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	// Additional is a *schema for mappings, false for structs.
	Additional any     `json:"additionalProperties,omitempty"`
	Items      *schema `json:"items,omitempty"`
}

func schemaOf(t reflect.Type) *schema {
	p := reflect.PointerTo(t)
	var s *schema
	switch {
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem())
	case t == reflect.TypeFor[Scalar]():
		return &schema{Type: []string{"string", "number", "boolean"}}
	case p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return &schema{Type: []string{"string", "number"}}
	case t.Kind() == reflect.Struct:
		s = structSchema(t)
	case t.Kind() == reflect.Slice:
		if _, keyed := KeyField(t.Elem()); keyed {
			// The entries have the same schema, and may be empty.
			s = &schema{Type: "object", Additional: nullable(schemaOf(t.Elem()))}
		} else {
			s = &schema{Type: "array", Items: schemaOf(t.Elem())}
		}
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Interface:
		s = &schema{Type: "object"}
	case t.Kind() == reflect.Map:
		s = &schema{Type: "object", Additional: schemaOf(t.Elem())}
	case t.Kind() == reflect.Bool:
		return &schema{Type: "boolean"}
	case t.Kind() == reflect.String:
		return &schema{Type: []string{"string", "number"}}
	default:
		return &schema{Type: "integer"}
	}
	if p.Implements(reflect.TypeFor[Switch]()) {
		return &schema{AnyOf: []*schema{{Type: "boolean"}, s}}
	}
	if p.Implements(reflect.TypeFor[Shorthand]()) {
		return &schema{AnyOf: []*schema{{Type: []string{"string", "number"}}, s}}
	}
	return s
}

func structSchema(t reflect.Type) *schema {
	s := &schema{Type: "object", Properties: map[string]*schema{}, Additional: false}
	for _, f := range Fields(t) {
		if f.Foreign {
			continue
		}
		fieldType := t.Field(f.Index).Type
		one := schemaOf(fieldType)
		one.Description = f.Doc
		if f.Enum != nil {
			one.Type, one.Enum = "string", slices.Clone(f.Enum)
		}
		if f.Required {
			s.Required = append(s.Required, f.Name)
		} else if one.Enum == nil {
			one = nullableContainer(one, fieldType)
		}
		s.Properties[f.Name] = one
	}
	return s
}

// refer also allows a reference wherever a scalar that is not any text is wanted.
func (s *schema) refer(reference *schema) {
	for _, one := range s.Properties {
		one.refer(reference)
	}
	if more, ok := s.Additional.(*schema); ok {
		more.refer(reference)
	}
	if s.Items != nil {
		s.Items.refer(reference)
	}
	for _, one := range s.AnyOf {
		one.refer(reference)
	}
	if s.Enum != nil || s.Type == "boolean" || s.Type == "integer" {
		*s = schema{Description: s.Description, AnyOf: []*schema{{Type: s.Type, Enum: s.Enum}, reference}}
	}
}

// nullable also allows a key without a value.
func nullable(s *schema) *schema { return &schema{AnyOf: []*schema{s, {Type: "null"}}} }

// nullableContainer also allows lists and mappings without a value, like the decoder.
func nullableContainer(s *schema, t reflect.Type) *schema {
	if s.AnyOf != nil {
		s.AnyOf = append(s.AnyOf, &schema{Type: "null"})
		return s
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Map, reflect.Struct, reflect.Pointer:
		if kind, ok := s.Type.(string); ok {
			s.Type = []string{kind, "null"}
		}
	}
	return s
}
