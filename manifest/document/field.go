package document

import (
	"reflect"
	"strings"
)

// Field holds the struct tags of one key of a file. The tags are:
//
//	yaml:"name"      the key
//	kk:"required"    the key must be present and not empty
//	kk:"foreign"     the key is only read from another program's file, converted into one of ours
//	kk:"key"         not a key of its own: takes the key of the mapping that the struct is the value of
//	enum:"a,b"       the only allowed values
//	local:"machine"  a file or a variable of the machine that reads the file (see Locality)
//	local:"carried"  the path of a file beside this one
//	doc:"…"          the description in the JSON Schema
type Field struct {
	Name     string
	Index    int
	Required bool
	Foreign  bool
	Enum     []string
	Doc      string
	Local    Locality
}

// Fields lists the keys of a struct type in the order of declaration.
func Fields(t reflect.Type) []Field {
	var list []Field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		one := Field{Name: name, Index: i, Doc: f.Tag.Get("doc"), Local: Locality(f.Tag.Get("local"))}
		one.Required, one.Foreign = f.Tag.Get("kk") == "required", f.Tag.Get("kk") == "foreign"
		if enum := f.Tag.Get("enum"); enum != "" {
			one.Enum = strings.Split(enum, ",")
		}
		list = append(list, one)
	}
	return list
}

// KeyField returns the index of the struct field that takes its key in a mapping.
func KeyField(t reflect.Type) (int, bool) {
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

// A Scalar is the text of one value as it is written, whatever its type: 1.10 stays 1.10, and true is a text.
type Scalar string

// SetShort implements Shorthand.
func (s *Scalar) SetShort(text string) { *s = Scalar(text) }
