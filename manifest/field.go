package manifest

import (
	"reflect"
	"slices"
	"strings"
)

// field holds the struct tags of one key of a file. The tags are:
//
//	yaml:"name"      the key
//	kk:"required"    the key must be present and not empty
//	kk:"foreign"     the key is only read from another program's file, converted into one of ours
//	kk:"key"         not a key of its own: takes the key of the mapping that the struct is the value of
//	enum:"a,b"       the only allowed values
//	doc:"…"          the description in the JSON Schema
type field struct {
	name     string
	index    int
	required bool
	foreign  bool
	enum     []string
	doc      string
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
		one := field{name: name, index: i, doc: f.Tag.Get("doc")}
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

// Nearest returns the most similar of the known names, or "".
func Nearest(name string, known []string) string {
	best, distance := "", len(name)/3+2
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k
		}
		if d := editDistance(strings.ToLower(name), strings.ToLower(k), distance); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// suggest proposes the most similar of the known names, or lists them all.
func suggest(name string, known []string) string {
	if best := Nearest(name, known); best != "" {
		return "; did you mean " + best + "?"
	}
	if len(known) == 0 {
		return ""
	}
	sorted := slices.Sorted(slices.Values(known))
	return "; known: " + strings.Join(sorted, ", ")
}

// editDistance counts the insertions, deletions and substitutions between a and b, giving up at limit.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit)
}
