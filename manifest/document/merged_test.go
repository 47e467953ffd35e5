package document_test

import (
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A key of a mapping wins over a merged one, the first of several mappings over the next, and a circle ends.
func TestMerged(t *testing.T) {
	for text, want := range map[string]string{
		"x: &x {a: 1, b: 1}\nn: {<<: *x, b: 2, c: 2}":                 "{b: 2, c: 2, a: 1}",
		"x: &x {a: 1}\ny: &y {a: 2, b: 2, <<: *x}\nn: {<<: [*x, *y]}": "{a: 1, b: 2}",
		"x: &x {a: 1}\ny: &y {<<: *x, b: 2}\nn: {c: 3, <<: *y}":       "{c: 3, b: 2, a: 1}",
		"n: {<<: {a: 1}, b: 2}":                                       "{b: 2, a: 1}",
		"n: {<<: 7, b: 2}":                                            "{<<: 7, b: 2}",
		"n: {'<<': 7, b: 2}":                                          "{'<<': 7, b: 2}",
		"n: [a]":                                                      "[a]",
		"n: &n {a: 1, <<: *n}":                                        "&n {a: 1}",
		"x: &x {a: {b: 1}}\nn: {<<: *x}":                              "{a: {b: 1}}",
		"x: &x [a]\ny: &y {a: 1}\nn: {<<: [*x, *y], z: 1}":            "{<<: [*x, *y], z: 1}",
		"a: &a {k: 1}\nn: {<<: [*a, *a, *a], k: 2}":                   "{k: 2}",
		"x: &x {a: 1, <<: {b: 2, <<: {c: 3}}}\nn: {<<: *x, d: 4}":     "{d: 4, a: 1, b: 2, c: 3}",
		"x: &x {a: 1}\nn: {<<: *x, <<: {z: 1}}":                       "{a: 1, z: 1}",
	} {
		var file yaml.Node
		if err := yaml.Unmarshal([]byte(text), &file); err != nil {
			t.Fatal(text, err)
		}
		pairs := file.Content[0].Content
		merged, keys := document.Merged(pairs[len(pairs)-1])
		got, err := yaml.Marshal(merged)
		if err != nil || string(got) != want+"\n" || keys > 10 {
			t.Errorf("%s: %s, %d keys, %v; want %s", text, got, keys, err, want)
		}
	}
}
