package manifest

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A shorthand can be written as one scalar instead of its mapping.
type shorthand interface{ setShort(text string) }

// A hinter returns the right setting for refused keys that users often try.
type hinter interface{ hint(name string) string }

// decoder fills Go values from YAML nodes and collects every problem. It is ours: each problem has a place and the
// nearest known name, shorthands are allowed, and aliases are bounded.
type decoder struct {
	checker
	limits limits
	values int
	depth  int
	// known caches the fields of each type: a lock has thousands of the same type.
	known map[reflect.Type][]field
}

// decode reads a file of one kind into out and makes its checks beyond the types. The error is Problems.
func decode[T any](file string, data []byte, kind string, out *T, check func(*checker)) (*T, error) {
	root, problems := parse(file, data, limitsOf(kind))
	if problems != nil {
		return nil, problems.Err()
	}
	return decodeTree(&source{file: file, root: root}, kind, out, check)
}

// decodeTree is decode for a parsed file.
func decodeTree[T any](src *source, kind string, out *T, check func(*checker)) (*T, error) {
	d := &decoder{checker: checker{src: src}, limits: limitsOf(kind), known: map[reflect.Type][]field{}}
	if d.header(src.root, kind) {
		d.value(src.root, reflect.ValueOf(out).Elem(), "", field{})
		check(&d.checker)
	}
	if err := d.found.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// header checks apiVersion and kind first: in a file of another kind every further message would mislead.
func (d *decoder) header(root *yaml.Node, kind string) bool {
	if root.Kind != yaml.MappingNode {
		d.add("", "want a mapping with apiVersion, kind and so on, have %s", describe(root))
		return false
	}
	if program := convertible(root); program != "" {
		d.add("", "this is a file of %s; kkbundle convert %s makes files of kkbundle from it", program, d.src.file)
		return false
	}
	ok := true
	for _, want := range [][2]string{{"apiVersion", APIVersion}, {"kind", kind}} {
		_, v, _, found := step(root, "."+want[0])
		switch {
		case !found:
			d.add("", "%s is missing; write %s: %s", want[0], want[0], want[1])
			ok = false
		case v.Kind != yaml.ScalarNode || v.Value != want[1]:
			d.add(want[0], "want %s, have %s", want[1], describe(v))
			ok = false
		}
	}
	return ok
}

// Convertible returns the program whose file data is, if package convert can read it, or "".
func Convertible(data []byte) string {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) == 0 {
		return ""
	}
	return convertible(doc.Content[0])
}

// convertible returns the program whose file root is, if package convert can read it, or "".
func convertible(root *yaml.Node) string {
	text := func(path string) string {
		if _, v, _, found := step(root, path); found {
			return v.Value
		}
		return ""
	}
	group, _, _ := strings.Cut(text(".apiVersion"), "/")
	switch kind := text(".kind"); {
	case group == "kubekey.kubesphere.io":
		return "KubeKey"
	case group == "content.hauler.cattle.io":
		return "Hauler"
	case kind == "ZarfPackageConfig", kind == "ZarfInitConfig":
		return "Zarf"
	}
	return ""
}

// value decodes one node. It enforces the limits of nesting and of values, including repeats through aliases.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string, f field) {
	n = resolved(n)
	d.values++
	if d.depth++; d.depth > maxDepth || d.values > d.limits.values {
		if d.values <= d.limits.values {
			d.add(path, "nested more than %d levels deep", maxDepth)
		} else if d.values == d.limits.values+1 {
			d.add(path, "more than %d values; aliases repeat too much", d.limits.values)
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
	if short, ok := v.Addr().Interface().(shorthand); ok && n.Kind == yaml.ScalarNode {
		short.setShort(n.Value)
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
func (d *decoder) null(v reflect.Value, path string, f field) {
	switch {
	case v.Kind() == reflect.Interface: // JSON's null is nil
	case f.required:
		d.add(path, "is required and has no value")
	case v.Kind() == reflect.Slice, v.Kind() == reflect.Map, v.Kind() == reflect.Pointer, v.Kind() == reflect.Struct:
	default:
		d.add(path, "has no value; write one or leave the key out")
	}
}

func (d *decoder) text(n *yaml.Node, v encoding.TextUnmarshaler, path string) {
	if n.Kind != yaml.ScalarNode {
		d.add(path, "want one value, have %s", describe(n))
		return
	}
	if n.Tag == "!!bool" {
		d.add(path, "want text, have %s; put it in quotes", describe(n))
		return
	}
	if err := v.UnmarshalText([]byte(n.Value)); err != nil {
		d.add(path, "%v", err)
	}
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.add(path, "want a mapping, have %s", describe(n))
		return
	}
	known, ok := d.known[v.Type()]
	if !ok {
		known = fields(v.Type())
		d.known[v.Type()] = known
	}
	seen := d.pairs(n, path, func(name string, k, value *yaml.Node) {
		for _, f := range known {
			if f.name == name && (!f.foreign || d.src.foreign && d.src.layers[k].name == "") {
				d.value(value, v.Field(f.index), join(path, name), f)
				return
			}
		}
		d.unknown(k, v, path, known)
	})
	for _, f := range known {
		if _, ok := seen[f.name]; f.required && !ok {
			d.add(path, "%s is missing", f.name)
		}
	}
}

// unknown reports a key that a struct does not have, with the most similar known key.
func (d *decoder) unknown(k *yaml.Node, v reflect.Value, path string, known []field) {
	at := d.src.of(k)
	if h, ok := v.Addr().Interface().(hinter); ok {
		if hint := h.hint(k.Value); hint != "" {
			d.report(at, path, fmt.Sprintf("%s is refused: %s", shorten(k.Value), hint))
			return
		}
	}
	var names []string
	for _, f := range known {
		if !f.foreign {
			names = append(names, f.name)
		}
	}
	d.report(at, path, fmt.Sprintf("unknown field %q%s", shorten(k.Value), suggest(k.Value, names)))
}

// pairs calls each for every key of a mapping and reports keys that are not plain text or are duplicates.
func (d *decoder) pairs(n *yaml.Node, path string, each func(name string, k, v *yaml.Node)) map[string]position {
	seen := make(map[string]position, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		at := d.src.of(k)
		switch first, repeated := seen[k.Value]; {
		case k.Kind != yaml.ScalarNode || k.Tag == "!!null":
			d.report(at, path, "a key must be plain text, this one is "+describe(k))
		case k.Tag == "!!merge":
			d.report(at, path, "merge keys (<<) are not read; write the keys out")
		case repeated:
			d.report(at, path, fmt.Sprintf("%q is there twice, first on line %d", shorten(k.Value), first.line))
		default:
			seen[k.Value] = at
			each(k.Value, k, v)
		}
	}
	return seen
}

// list decodes a sequence or, into a slice of structs with a key field, a mapping in the order of the file.
func (d *decoder) list(n *yaml.Node, v reflect.Value, path string, f field) {
	element := v.Type().Elem()
	if keyIndex, ok := keyField(element); ok {
		if n.Kind != yaml.MappingNode {
			d.add(path, "want a mapping from name to settings, have %s", describe(n))
			return
		}
		d.pairs(n, path, func(name string, _, value *yaml.Node) {
			one := reflect.New(element).Elem()
			d.value(value, one, key(path, name), field{})
			one.Field(keyIndex).SetString(name)
			v.Set(reflect.Append(v, one))
		})
		d.wantSome(v, path, f)
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.add(path, "want a list (lines that begin with -), have %s", describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.value(item, v.Index(i), index(path, i), field{required: true, enum: f.enum})
	}
	d.wantSome(v, path, f)
}

func (d *decoder) wantSome(v reflect.Value, path string, f field) {
	if f.required && v.Len() == 0 {
		d.add(path, "is required and has no entry")
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string, f field) {
	if n.Kind != yaml.MappingNode {
		d.add(path, "want a mapping, have %s", describe(n))
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.Content)/2))
	d.pairs(n, path, func(name string, _, value *yaml.Node) {
		one := reflect.New(v.Type().Elem()).Elem()
		d.value(value, one, key(path, name), field{required: true})
		v.SetMapIndex(reflect.ValueOf(name), one)
	})
	d.wantSome(v, path, f)
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string, f field) {
	if n.Kind != yaml.ScalarNode {
		d.add(path, "want one value, have %s", describe(n))
		return
	}
	switch v.Kind() {
	case reflect.String:
		d.str(n, v, path, f)
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Value)
		if err != nil || n.Tag != "!!bool" {
			d.add(path, "want true or false, have %s", describe(n))
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if err != nil || n.Tag != "!!int" || v.OverflowInt(i) {
			d.add(path, "want a whole number, have %s", describe(n))
			return
		}
		v.SetInt(i)
	default:
		d.add(path, "cannot be read into %s", v.Type())
	}
}

// str reads the text of a scalar as written: version 1.10 stays 1.10, and a digest of digits keeps its zeros.
func (d *decoder) str(n *yaml.Node, v reflect.Value, path string, f field) {
	switch {
	case n.Tag == "!!bool":
		d.add(path, "want text, have %s; put it in quotes", describe(n))
	case n.Value == "" && f.required:
		d.add(path, "is required and is empty")
	case n.Value != "" && f.enum != nil && !slices.Contains(f.enum, n.Value):
		d.add(path, "must be %s, is %q%s", or(f.enum), shorten(n.Value), nearest(n.Value, f.enum))
	case strings.ContainsFunc(n.Value, isControl):
		d.add(path, "has control characters")
	default:
		v.SetString(n.Value)
	}
}

// free decodes free-form content, with the types of JSON: nil, bool, int64, float64, string, []any and map[string]any.
func (d *decoder) free(n *yaml.Node, path string) any {
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		d.mapping(n, reflect.ValueOf(&m).Elem(), path, field{})
		return m
	case yaml.SequenceNode:
		l := []any{}
		d.list(n, reflect.ValueOf(&l).Elem(), path, field{})
		return l
	default:
		return d.freeScalar(n, path)
	}
}

func (d *decoder) freeScalar(n *yaml.Node, path string) any {
	switch n.Tag {
	case "!!bool":
		var b bool
		d.scalar(n, reflect.ValueOf(&b).Elem(), path, field{})
		return b
	case "!!int":
		i, err := strconv.ParseInt(n.Value, 0, 64)
		if err != nil {
			d.add(path, "want a whole number of 64 bits, have %s", describe(n))
		}
		return i
	case "!!float":
		x, err := strconv.ParseFloat(n.Value, 64)
		if err != nil {
			d.add(path, "want a number that JSON has, have %s", describe(n))
		}
		return x
	case "!!str", "!!timestamp":
		return n.Value
	default:
		d.add(path, "the tag %s is not read here", shorten(n.Tag))
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
	return strconv.Quote(shorten(n.Value))
}
