package document

import (
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Locality is the value of the tag local: the machine and the place that a text in a file names. Every field that is
// read as a path or a variable on the machine that kkbundle runs on has the tag; a test holds the list of all others.
type Locality string

const (
	// LocalMachine is a file or an environment variable of the machine that reads the file. It counts only in a file
	// that the operator gave.
	LocalMachine Locality = "machine"
	// LocalCarried is the path of a file beside this one. A bundle carries both, and reads it from itself only.
	LocalCarried Locality = "carried"
)

// EachLocal calls visit for each text of file, a pointer to a struct, that is not empty and whose field has the tag
// local.
func EachLocal(file any, visit func(l Locality, path, value string)) {
	eachLocal(reflect.ValueOf(file).Elem(), "", Field{}, func(f Field, path,
		value string,
	) {
		visit(f.Local, path, value)
	})
}

func eachLocal(v reflect.Value, path string, f Field, visit func(f Field, path, value string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachLocal(v.Elem(), path, f, visit)
		}
	case reflect.Struct:
		for _, one := range Fields(v.Type()) {
			eachLocal(v.Field(one.Index), Join(path, one.Name), one, visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachLocal(v.Index(i), Index(path, i), f, visit)
		}
	case reflect.Map:
		for _, k := range slices.SortedFunc(slices.Values(v.MapKeys()),
			func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			eachLocal(v.MapIndex(k), Key(path, k.String()), f, visit)
		}
	case reflect.String:
		if f.Local != "" && v.Len() > 0 {
			visit(f, path, v.String())
		}
	default: // numbers, switches, free-form parts of other programs' configuration
	}
}

// EachLocalNode is EachLocal for a file of a type that is not decoded yet. Nodes of another shape are passed over.
func EachLocalNode(n *yaml.Node, t reflect.Type, visit func(l Locality, n *yaml.Node)) {
	eachLocalNode(n, t, Field{}, visit)
}

func eachLocalNode(n *yaml.Node, t reflect.Type, f Field, visit func(l Locality, n *yaml.Node)) {
	n = Resolved(n)
	short, hasShort := reflect.New(t).Interface().(Shorthand)
	switch {
	case n == nil:
	case t.Kind() == reflect.Pointer:
		eachLocalNode(n, t.Elem(), f, visit)
	case hasShort && n.Kind == yaml.ScalarNode:
		short.SetShort(n.Value)
		EachLocal(short, func(l Locality, _, _ string) { visit(l, n) })
	case t.Kind() == reflect.Struct:
		for _, one := range Fields(t) {
			eachLocalNode(ValueOf(n, one.Name), t.Field(one.Index).Type, one, visit)
		}
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for _, one := range n.Content {
			eachLocalNode(one, t.Elem(), f, visit)
		}
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Map: // a list with names is a mapping
		for _, one := range Pairs(n) {
			eachLocalNode(one, t.Elem(), f, visit)
		}
	case t.Kind() == reflect.String && f.Local != "" && n.Kind == yaml.ScalarNode:
		visit(f.Local, n)
	}
}
