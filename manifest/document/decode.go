package document

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Shorthand can be written as one scalar instead of its mapping.
type Shorthand interface{ SetShort(text string) }

// A Switch can be written as true or false instead of its mapping.
type Switch interface{ SetOn(on bool) }

// A hinter returns the right setting for refused keys that users often try.
type hinter interface{ Hint(name string) string }

// decoder fills Go values from YAML nodes and collects every problem. It is ours: each problem has a place and the
// nearest known name, shorthands are allowed, and aliases are bounded.
type decoder struct {
	Checker
	limits Limits
	values int
	depth  int
	// known caches the fields of each type: a lock has thousands of the same type.
	known map[reflect.Type][]Field
}

// A Format says what the files of one kind are like beyond their Go type.
type Format struct {
	// APIVersion and Kind are the values of the keys apiVersion and kind.
	APIVersion, Kind string
	Limits           Limits
	// Foreign returns an error for a file of another program.
	Foreign func(*Tree) error
	// Reference is the regular expression of a text that may stand for any scalar but the two above until the file is
	// expanded, "" if there is none. Only Schema asks for it.
	Reference string
}

// Decode reads a file into out, a pointer to a struct, and makes its checks beyond the types. The error is Problems.
func Decode(t *Tree, f Format, out any, check func(*Checker)) error {
	d := &decoder{Checker: Checker{Tree: t}, limits: f.Limits, known: map[reflect.Type][]Field{}}
	if d.header(t, f) {
		d.value(t.Root, reflect.ValueOf(out).Elem(), "", Field{})
		check(&d.Checker)
	}
	return d.Found.Err()
}

// DecodeAt reads the value at a path of a file into out, as Decode would, and makes its checks if it could be read. The
// error is Problems.
func DecodeAt(t *Tree, l Limits, path string, out any, check func(*Checker)) error {
	d := &decoder{Checker: Checker{Tree: t}, limits: l, known: map[reflect.Type][]Field{}}
	if n := t.Node(path); n != nil {
		d.value(n, reflect.ValueOf(out).Elem(), path, Field{})
	}
	if d.Found == nil {
		check(&d.Checker)
	}
	return d.Found.Err()
}

// header checks apiVersion and kind first: in a file of another kind every further message would mislead.
func (d *decoder) header(t *Tree, f Format) bool {
	root := t.Root
	if root.Kind != yaml.MappingNode {
		d.Add("", "want a mapping with apiVersion, kind and so on, have %s", describe(root))
		return false
	}
	if err := f.Foreign(t); err != nil {
		d.Add("", "%v", err)
		return false
	}
	ok := true
	for _, want := range [][2]string{{"apiVersion", f.APIVersion}, {"kind", f.Kind}} {
		_, v, _, found := step(root, "."+want[0])
		switch {
		case !found:
			d.Add("", "%s is missing; write %s: %s", want[0], want[0], want[1])
			ok = false
		case v.Kind != yaml.ScalarNode || v.Value != want[1]:
			d.Add(want[0], "want %s, have %s", want[1], describe(v))
			ok = false
		}
	}
	return ok
}

// value decodes one node. It enforces the limits of nesting and of values, including repeats through aliases.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string, f Field) {
	n = Resolved(n)
	d.values++
	if d.depth++; d.depth > maxDepth || d.values > d.limits.Values {
		if d.values <= d.limits.Values {
			d.Add(path, "nested more than %d levels deep", maxDepth)
		} else if d.values == d.limits.Values+1 {
			d.Add(path, "more than %d values; aliases repeat too much", d.limits.Values)
		}
		d.depth--
		return
	}
	defer func() { d.depth-- }()

	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		d.null(v, path, f)
		return
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(n, text, path)
		return
	}
	if short, ok := v.Addr().Interface().(Shorthand); ok && n.Kind == yaml.ScalarNode {
		short.SetShort(n.Value)
		return
	}
	if s, ok := v.Addr().Interface().(Switch); ok && n.Kind == yaml.ScalarNode {
		var on bool
		d.scalar(n, reflect.ValueOf(&on).Elem(), path, f)
		s.SetOn(on)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path, f)
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Slice:
		d.list(n, v, path, f)
	case reflect.Map:
		d.mapping(n, v, path, f)
	case reflect.Interface:
		if free := d.free(n, path); free != nil {
			v.Set(reflect.ValueOf(free))
		}
	default:
		d.scalar(n, v, path, f)
	}
}

// null treats a list or mapping without a value as absent, because commenting out all its entries leaves that.
// Elsewhere a missing value is a mistake.
func (d *decoder) null(v reflect.Value, path string, f Field) {
	switch {
	case v.Kind() == reflect.Interface: // JSON's null is nil
	case f.Required:
		d.Add(path, "is required and has no value")
	case v.Kind() == reflect.Struct && d.hasRequired(v.Type()):
		d.Add(path, "has no value; write what belongs to it, or leave the key out")
	case v.Kind() == reflect.Slice, v.Kind() == reflect.Map, v.Kind() == reflect.Pointer, v.Kind() == reflect.Struct:
	default:
		d.Add(path, "has no value; write one or leave the key out")
	}
}

// hasRequired reports whether a mapping cannot be empty: its key alone says nothing.
func (d *decoder) hasRequired(t reflect.Type) bool {
	return slices.ContainsFunc(Fields(t), func(f Field) bool { return f.Required })
}

func (d *decoder) text(n *yaml.Node, v encoding.TextUnmarshaler, path string) {
	if n.Kind != yaml.ScalarNode {
		d.Add(path, "want one value, have %s", describe(n))
		return
	}
	if n.Tag == "!!bool" {
		d.Add(path, "want text, have %s; put it in quotes", describe(n))
		return
	}
	if err := v.UnmarshalText([]byte(n.Value)); err != nil {
		d.Add(path, "%v", err)
	}
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.Add(path, "want a mapping, have %s", describe(n))
		return
	}
	known, ok := d.known[v.Type()]
	if !ok {
		known = Fields(v.Type())
		d.known[v.Type()] = known
	}
	seen := d.pairs(n, path, func(name string, k, value *yaml.Node) {
		for _, f := range known {
			if f.Name == name && (!f.Foreign || d.Tree.Foreign && d.Tree.layers[k].Name == "") {
				d.value(value, v.Field(f.Index), Join(path, name), f)
				return
			}
		}
		d.unknown(k, v, path, known)
	})
	for _, f := range known {
		if _, ok := seen[f.Name]; f.Required && !ok {
			d.Add(path, "%s is missing", f.Name)
		}
	}
}

// unknown reports a key that a struct does not have, with the most similar known key.
func (d *decoder) unknown(k *yaml.Node, v reflect.Value, path string, known []Field) {
	at := d.Tree.Of(k)
	if h, ok := v.Addr().Interface().(hinter); ok {
		if hint := h.Hint(k.Value); hint != "" {
			d.report(at, path, fmt.Sprintf("%s is refused: %s", Shorten(k.Value), hint))
			return
		}
	}
	var names []string
	for _, f := range known {
		if !f.Foreign {
			names = append(names, f.Name)
		}
	}
	d.report(at, path, fmt.Sprintf("unknown field %q%s", Shorten(k.Value), suggest(k.Value, names)))
}

// pairs calls each for every key of a mapping and reports keys that are not plain text or are duplicates.
func (d *decoder) pairs(n *yaml.Node, path string, each func(name string, k, v *yaml.Node)) map[string]Position {
	seen := make(map[string]Position, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		at := d.Tree.Of(k)
		switch first, repeated := seen[k.Value]; {
		case k.Kind != yaml.ScalarNode || k.Tag == "!!null":
			d.report(at, path, "a key must be plain text, this one is "+describe(k))
		case k.Tag == "!!merge":
			d.report(at, path, "merge keys (<<) are not read; write the keys out")
		case repeated:
			d.report(at, path, fmt.Sprintf("%q is there twice, first on line %d", Shorten(k.Value), first.Line))
		default:
			seen[k.Value] = at
			each(k.Value, k, v)
		}
	}
	return seen
}

// list decodes a sequence or, into a slice of structs with a key field, a mapping in the order of the file.
func (d *decoder) list(n *yaml.Node, v reflect.Value, path string, f Field) {
	element := v.Type().Elem()
	if keyIndex, ok := KeyField(element); ok {
		if n.Kind != yaml.MappingNode {
			d.Add(path, "want a mapping from name to settings, have %s", describe(n))
			return
		}
		d.pairs(n, path, func(name string, _, value *yaml.Node) {
			one := reflect.New(element).Elem()
			d.value(value, one, Key(path, name), Field{})
			one.Field(keyIndex).SetString(name)
			v.Set(reflect.Append(v, one))
		})
		d.wantSome(v, path, f)
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.Add(path, "want a list (lines that begin with -), have %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, v.Index(i), Index(path, i), Field{Required: true, Enum: f.Enum})
	}
	d.wantSome(v, path, f)
}

func (d *decoder) wantSome(v reflect.Value, path string, f Field) {
	if f.Required && v.Len() == 0 {
		d.Add(path, "is required and has no entry")
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string, f Field) {
	if n.Kind != yaml.MappingNode {
		d.Add(path, "want a mapping, have %s", describe(n))
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.Content)/2))
	d.pairs(n, path, func(name string, _, value *yaml.Node) {
		one := reflect.New(v.Type().Elem()).Elem()
		d.value(value, one, Key(path, name), Field{Required: true})
		v.SetMapIndex(reflect.ValueOf(name), one)
	})
	d.wantSome(v, path, f)
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string, f Field) {
	if n.Kind != yaml.ScalarNode {
		d.Add(path, "want one value, have %s", describe(n))
		return
	}
	switch v.Kind() {
	case reflect.String:
		d.str(n, v, path, f)
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Value)
		if err != nil || n.Tag != "!!bool" {
			d.Add(path, "want true or false, have %s", describe(n))
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if err != nil || n.Tag != "!!int" || v.OverflowInt(i) {
			d.Add(path, "want a whole number, have %s", describe(n))
			return
		}
		v.SetInt(i)
	default:
		d.Add(path, "cannot be read into %s", v.Type())
	}
}

// str reads the text of a scalar as written: version 1.10 stays 1.10, and a digest of digits keeps its zeros.
func (d *decoder) str(n *yaml.Node, v reflect.Value, path string, f Field) {
	switch {
	case n.Tag == "!!bool":
		d.Add(path, "want text, have %s; put it in quotes", describe(n))
	case n.Value == "" && f.Required:
		d.Add(path, "is required and is empty")
	case n.Value != "" && f.Enum != nil && !slices.Contains(f.Enum, n.Value):
		d.Add(path, "must be %s, is %q%s", Or(f.Enum), Shorten(n.Value), DidYouMean(n.Value, f.Enum))
	case strings.ContainsFunc(n.Value, isControl):
		d.Add(path, "has control characters")
	default:
		v.SetString(n.Value)
	}
}

// free decodes free-form content, with the types of JSON: nil, bool, int64, float64, string, []any and map[string]any.
func (d *decoder) free(n *yaml.Node, path string) any {
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		d.mapping(n, reflect.ValueOf(&m).Elem(), path, Field{})
		return m
	case yaml.SequenceNode:
		l := []any{}
		d.list(n, reflect.ValueOf(&l).Elem(), path, Field{})
		return l
	default:
		return d.freeScalar(n, path)
	}
}

func (d *decoder) freeScalar(n *yaml.Node, path string) any {
	switch n.Tag {
	case "!!bool":
		var b bool
		d.scalar(n, reflect.ValueOf(&b).Elem(), path, Field{})
		return b
	case "!!int":
		i, err := strconv.ParseInt(n.Value, 0, 64)
		if err != nil {
			d.Add(path, "want a whole number of 64 bits, have %s", describe(n))
		}
		return i
	case "!!float":
		x, err := strconv.ParseFloat(n.Value, 64)
		if err != nil {
			d.Add(path, "want a number that JSON has, have %s", describe(n))
		}
		return x
	case "!!str", "!!timestamp":
		return n.Value
	default:
		d.Add(path, "the tag %s is not read here", Shorten(n.Tag))
		return nil
	}
}

// describe names the kind of a node as its author sees it.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if n.Tag == "!!null" {
		return "nothing"
	}
	return strconv.Quote(Shorten(n.Value))
}
