package values

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// A Time is when a value is given.
type Time string

// The times; an empty one is Build.
const (
	// Build is the time of lock and build. The lock has the values.
	Build Time = "build"
	// Site is the time of deploy, install and upgrade.
	Site Time = "site"
)

// A Type is the type of a value, with JSON Schema's names.
type Type string

// The types; an empty one is String.
const (
	String  Type = "string"
	Integer Type = "integer"
	Number  Type = "number"
	Boolean Type = "boolean"
)

// A Definition is an entry of the table.
type Definition struct {
	Name string `yaml:"-" kk:"key"`
	Type Type   `yaml:"type,omitempty" enum:"string,integer,number,boolean" doc:"Type of the value. Default string."`
	// At is Build by default.
	At Time `yaml:"at,omitempty" enum:"build,site" doc:"When it is given: build, to lock and build, which the lock records; site, to deploy, install and upgrade. Default build."`
	// Default may name other values.
	Default  *document.Scalar `yaml:"default,omitempty" doc:"The value if none is given; may name other values as ${name}."`
	Required bool             `yaml:"required,omitempty" doc:"A value must be given, and must not be empty."`
	Pattern  string           `yaml:"pattern,omitempty" doc:"Regular expression (RE2) that must match a part of the value; ^ and $ are its begin and end."`
	Secret   bool             `yaml:"secret,omitempty" doc:"Never shown and never in the bundle; only with at: site."`
	// Example stands for a value of the site while the bundle is built.
	Example     *document.Scalar `yaml:"example,omitempty" doc:"Shown to people; stands for a value of the site while the bundle is built."`
	Description string           `yaml:"description,omitempty" doc:"For people who give the value."`
}

// IsAt reports whether the value is given at a time.
func (d Definition) IsAt(t Time) bool { return (d.At == Site) == (t == Site) }

// Variable returns the name of the value's environment variable.
func (d Definition) Variable() string {
	return "KKBUNDLE_VALUE_" + strings.ToUpper(strings.ReplaceAll(d.Name, "-", "_"))
}

// HowToGive returns the ways to give the value, for messages.
func (d Definition) HowToGive() string {
	return fmt.Sprintf("give it with --set %s=…, in a file with --values FILE, or in $%s", d.Name, d.Variable())
}

// A Table is the values of a manifest, in the order of the file.
type Table []Definition

// Find returns the definition of a name.
func (t Table) Find(name string) (Definition, bool) {
	i := slices.IndexFunc(t, func(d Definition) bool { return d.Name == name })
	if i < 0 {
		return Definition{}, false
	}
	return t[i], true
}

// At returns the values that are given at a time.
func (t Table) At(at Time) Table {
	return slices.DeleteFunc(slices.Clone(t), func(d Definition) bool { return !d.IsAt(at) })
}

func (t Table) names() []string {
	names := make([]string, len(t))
	for i, d := range t {
		names[i] = d.Name
	}
	return names
}

// MarshalYAML writes the mapping that is read.
func (t Table) MarshalYAML() (any, error) {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, d := range t {
		var value yaml.Node
		if err := value.Encode(d); err != nil {
			return nil, err
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: d.Name}, &value)
	}
	return n, nil
}

// maxValues bounds a table; nobody fills in more.
const maxValues = 1000

var nameGrammar = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)

// Check checks the table at a path of a manifest, as far as no value is needed for it.
func (t Table) Check(c *document.Checker, at string) {
	if len(t) > maxValues {
		c.Add(at, "has %d values; at most %d are read", len(t), maxValues)
		return
	}
	first := map[string]string{}
	for _, d := range t {
		path := document.Key(at, d.Name)
		if !nameGrammar.MatchString(d.Name) {
			c.AddKey(path, "%q is not a name; use letters, digits, hyphens and underscores, and begin with a letter",
				document.Shorten(d.Name))
			continue
		}
		if other, twice := first[d.Variable()]; twice {
			c.AddKey(path, "has the same environment variable as %s, %s; rename one of them", other, d.Variable())
		}
		first[d.Variable()] = d.Name
		d.check(c, path)
	}
}

func (d Definition) check(c *document.Checker, path string) {
	if _, err := regexp.Compile(d.Pattern); err != nil {
		c.Add(document.Join(path, "pattern"), "not a regular expression: %v", err)
		return
	}
	switch {
	case d.Secret && d.At != Site:
		c.AddKey(path, "is secret and would enter the bundle; write at: site")
	case d.Secret && d.Default != nil:
		c.Add(document.Join(path, "default"), "the value is secret, and its default would enter the bundle; leave the default out")
	case d.Required && d.Default != nil:
		c.Add(document.Join(path, "default"), "the value is required, and a default would never count; leave out default or required")
	case !d.Required && d.Default == nil && d.kind() != String:
		c.AddKey(path, "is no text and can be missing; write a default, or required: true")
	}
	if d.Example != nil {
		if err := d.accepts(string(*d.Example)); err != nil {
			c.Add(document.Join(path, "example"), "%v", err)
		}
	}
	if d.Default != nil && !strings.Contains(string(*d.Default), "${") {
		if err := d.accepts(string(*d.Default)); err != nil {
			c.Add(document.Join(path, "default"), "%v", err)
		}
	}
}

func (d Definition) kind() Type {
	if d.Type == "" {
		return String
	}
	return d.Type
}

var (
	integerGrammar = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)
	numberGrammar  = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`) // RFC 8259
)

// maxText bounds one value; certificates are far below.
const maxText = 256 << 10

// accepts returns an error for a text that is no value of the definition. It never has the text of a secret.
func (d Definition) accepts(text string) error {
	shown := strconv.Quote(document.Shorten(text))
	if d.Secret {
		shown = "another text"
	}
	switch d.kind() {
	case Integer:
		if _, err := strconv.ParseInt(text, 10, 64); err != nil || !integerGrammar.MatchString(text) {
			return fmt.Errorf("want a whole number, have %s", shown)
		}
	case Number:
		if !numberGrammar.MatchString(text) {
			return fmt.Errorf("want a number, have %s", shown)
		}
	case Boolean:
		if text != "true" && text != "false" {
			return fmt.Errorf("want true or false, have %s", shown)
		}
	case String:
		if len(text) > maxText {
			return fmt.Errorf("the text has %s; at most %s are read", plain.Size(int64(len(text))), plain.Size(maxText))
		}
		if !utf8.ValidString(text) || strings.ContainsFunc(text, isControl) {
			return fmt.Errorf("the text has control characters, or is not UTF-8")
		}
	default: // refused where the table was read
	}
	if text == "" && !d.Required {
		return nil
	}
	if text == "" {
		return fmt.Errorf("is required and is empty")
	}
	if matched, err := regexp.MatchString(d.Pattern, text); err == nil && !matched {
		return fmt.Errorf("want a text that matches %s, have %s", document.Shorten(d.Pattern), shown)
	}
	return nil
}

// isControl reports whether YAML cannot have the character in double quotes as it is; lines may end.
func isControl(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }

// standIn returns what stands for a value of the site while the bundle is built, and whether it is made up: no example
// says it.
func (d Definition) standIn() (text string, made bool) {
	switch {
	case d.Example != nil:
		return string(*d.Example), false
	case d.kind() == Integer, d.kind() == Number:
		return "1", true
	case d.kind() == Boolean:
		return "false", true
	}
	return strings.ToLower(strings.ReplaceAll(d.Name, "_", "-")), true
}

// jsonSchema is the part of JSON Schema in use.
type jsonSchema struct {
	Draft       string                 `json:"$schema,omitempty"`
	Title       string                 `json:"title,omitempty"`
	Description string                 `json:"description,omitempty"`
	Type        any                    `json:"type"`
	Pattern     string                 `json:"pattern,omitempty"`
	Default     any                    `json:"default,omitempty"`
	Examples    []any                  `json:"examples,omitempty"`
	WriteOnly   bool                   `json:"writeOnly,omitempty"`
	Properties  map[string]*jsonSchema `json:"properties,omitempty"`
	Required    []string               `json:"required,omitempty"`
	Additional  *bool                  `json:"additionalProperties,omitempty"`
}

// Schema returns the JSON Schema (draft 2020-12) of a file for --values.
func (t Table) Schema(title string) ([]byte, error) {
	s := &jsonSchema{
		Draft: "https://json-schema.org/draft/2020-12/schema", Title: title, Type: "object",
		Properties: map[string]*jsonSchema{}, Additional: new(bool),
	}
	for _, d := range t {
		one := &jsonSchema{Type: d.kind(), Pattern: d.Pattern, Description: d.Description, WriteOnly: d.Secret}
		if d.kind() == String { // texts are taken as written
			one.Type = []Type{String, Number, Boolean}
		}
		if d.Default != nil {
			one.Default = d.typed(string(*d.Default))
		}
		if d.Example != nil {
			one.Examples = []any{d.typed(string(*d.Example))}
		}
		if d.Required {
			s.Required = append(s.Required, d.Name)
		}
		s.Properties[d.Name] = one
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the schema of values: %w", err)
	}
	return append(text, '\n'), nil
}

// typed returns a text with its type in JSON.
func (d Definition) typed(text string) any {
	if d.kind() != String && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}
