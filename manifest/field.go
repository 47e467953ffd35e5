package manifest

import (
	"reflect"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// field holds the struct tags of one key of a file. The tags are:
//
//	yaml:"name"      the key
//	kk:"required"    the key must be present and not empty
//	kk:"foreign"     the key is only read from another program's file, converted into one of ours
//	kk:"key"         not a key of its own: takes the key of the mapping that the struct is the value of
//	enum:"a,b"       the only allowed values
//	local:"machine"  a file or a variable of the machine that reads the file (see locality)
//	local:"carried"  the path of a file beside this one
//	doc:"…"          the description in the JSON Schema
type field struct {
	name     string
	index    int
	required bool
	foreign  bool
	enum     []string
	doc      string
	local    locality
}

// fields lists the keys of a struct type in the order of declaration.
func fields(t reflect.Type) []field {
	var list []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		one := field{name: name, index: i, doc: f.Tag.Get("doc"), local: locality(f.Tag.Get("local"))}
		one.required, one.foreign = f.Tag.Get("kk") == "required", f.Tag.Get("kk") == "foreign"
		if enum := f.Tag.Get("enum"); enum != "" {
			one.enum = strings.Split(enum, ",")
		}
		list = append(list, one)
	}
	return list
}

// keyField returns the index of the struct field that takes its key in a mapping.
func keyField(t reflect.Type) (int, bool) {
	if t.Kind() != reflect.Struct {
		return 0, false
	}
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("kk") == "key" {
			return i, true
		}
	}
	return 0, false
}

// suggest proposes the most similar of the known names, or lists them all.
func suggest(name string, known []string) string {
	if best := plain.Nearest(name, known); best != "" {
		return "; did you mean " + best + "?"
	}
	if len(known) == 0 {
		return ""
	}
	sorted := slices.Sorted(slices.Values(known))
	return "; known: " + strings.Join(sorted, ", ")
}
