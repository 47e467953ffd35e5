package document

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"
)

// A Value is one setting of a file with its origin.
type Value struct {
	// Path is written as in messages.
	Path string `json:"path"`
	// Value has the types of JSON. Secrets are excluded.
	Value  any    `json:"value"`
	Origin Origin `json:"origin"`
}

// Origin is the place where a value was set.
type Origin struct {
	// Layer is default, file, vars, group NAME, host NAME or --set; later ones override earlier
	// ones.
	Layer string `json:"layer"`
	// File, Line and Column are as in Problem; they are unset for a default.
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// String returns the origin for display: default, cluster.yaml:4:12, inventory.yaml:9:3 (host node1).
func (o Origin) String() string {
	if o.Line == 0 {
		return o.Layer
	}
	at := fmt.Sprintf("%s:%d:%d", o.File, o.Line, o.Column)
	if o.Layer == fileLayer {
		return at
	}
	return at + " (" + o.Layer + ")"
}

const (
	fileLayer    = "file"
	defaultLayer = "default"
)

// Values lists every setting with a value of file, a pointer to what was read from t, in the order of the type.
func Values(t *Tree, file any) []Value {
	l := lister{src: t}
	l.value("", reflect.ValueOf(file).Elem())
	return l.values
}

// lister walks a file down to its single values.
type lister struct {
	src    *Tree
	values []Value
}

func (l *lister) value(path string, v reflect.Value) {
	if text, ok := v.Interface().(encoding.TextMarshaler); ok {
		l.text(path, v, text)
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			l.value(path, v.Elem())
		} else if path != "" && v.Kind() == reflect.Interface {
			l.add(path, nil)
		}
	case reflect.Struct:
		for _, f := range Fields(v.Type()) {
			l.value(Join(path, f.Name), v.Field(f.Index))
		}
	case reflect.Map:
		for _, name := range sortedNames(v) {
			l.value(Key(path, name), v.MapIndex(reflect.ValueOf(name)))
		}
	case reflect.Slice:
		l.list(path, v)
	case reflect.String: // also of a named type
		if v.Len() > 0 {
			l.add(path, v.String())
		}
	default:
		if !v.IsZero() || v.Kind() == reflect.Bool {
			l.add(path, v.Interface())
		}
	}
}

func sortedNames(v reflect.Value) []string {
	names := map[string]bool{}
	for _, k := range v.MapKeys() {
		names[k.String()] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// list returns a list of scalars as one value.
func (l *lister) list(path string, v reflect.Value) {
	var scalars []any
	for i := range v.Len() {
		one := v.Index(i)
		if one.Kind() == reflect.Interface && !one.IsNil() {
			one = one.Elem()
		}
		switch one.Kind() {
		case reflect.Struct, reflect.Map, reflect.Slice:
			l.value(Index(path, i), one)
		default:
			scalars = append(scalars, one.Interface())
		}
	}
	if scalars != nil {
		l.add(path, scalars)
	}
}

func (l *lister) text(path string, v reflect.Value, text encoding.TextMarshaler) {
	if v.IsZero() {
		return
	}
	b, err := text.MarshalText()
	if err != nil {
		return
	}
	l.add(path, string(b))
}

func (l *lister) add(path string, value any) {
	l.values = append(l.values, Value{path, value, l.origin(path)})
}

func (l *lister) origin(path string) Origin {
	n := l.src.Node(path)
	if n == nil || n.Kind == yaml.ScalarNode && n.Value == "" { // an empty value has its default
		return Origin{Layer: defaultLayer}
	}
	if from, ok := l.src.layers[n]; ok {
		return Origin{from.Name, from.File, n.Line, n.Column}
	}
	return Origin{fileLayer, l.src.File, n.Line, n.Column}
}

// EachText calls visit for each scalar of a file with its path, in the order of the file. An alias is not followed.
func (s *Tree) EachText(visit func(path, text string)) { eachText(s.Root, "", visit) }

func eachText(n *yaml.Node, path string, visit func(path, text string)) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			eachText(n.Content[i+1], Join(path, n.Content[i].Value), visit)
		}
	case yaml.SequenceNode:
		for i, one := range n.Content {
			eachText(one, Index(path, i), visit)
		}
	case yaml.ScalarNode:
		visit(path, n.Value)
	}
}
