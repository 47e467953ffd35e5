package document_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest/document"
)

func TestSplitObjects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"lines of three hyphens": {
			"a: 1\n---\nb: 2\n--- # comment\nc: 3\n---   \nd: 4\n---",
			"1 yaml a: 1|3 yaml b: 2|5 yaml c: 3|7 yaml d: 4",
		},
		"CR LF":                   {"a: 1\r\n---\r\nb: 2\r\n", "1 yaml a: 1|3 yaml b: 2"},
		"CR":                      {"a: 1\r---\rb: 2\r", "1 yaml a: 1|3 yaml b: 2"},
		"a byte order mark":       {"\xef\xbb\xbf---\na: 1\n", "2 yaml a: 1"},
		"nothing":                 {"---\n# only a comment\n---\n\n", ""},
		"a document end":          {"a: 1\n...\n---\nb: 2\n... # over\nc: 3\n", "1 yaml a: 1|4 yaml b: 2|6 yaml c: 3"},
		"dots and hyphens within": {"a: |\n  ---\n  ...\nb: ...x\n", "1 yaml a: |\n  ---\n  ...\nb: ...x"},
		"glued":                   {"a: 1\n---b: 2\n", `1 yaml a: 1|2 yaml b: 2 (text follows "---" on the same line`},
		"inline":                  {"--- {a: 1}\n", `1 yaml {a: 1} (text follows "---" on the same line`},
		"JSON": {"{\"a\": 1}\n{\"b\":\n2} {\"c\": 3}", `1 json {"a": 1}|2 json {"b":` +
			"\n2}|3 json {\"c\": 3}"},
		"JSON after a comment": {"# x\n{\"a\": 1}\n# y\n{\"b\": 2}\n# z\n", `2 json {"a": 1}|4 json {"b": 2}`},
		"JSON, then YAML":      {"{\"a\": 1}\n---\nb: 2\n", `1 json {"a": 1}|3 yaml b: 2`},
		"braces of YAML":       {"{a: 1}\n---\n{b: 2}\n", "1 yaml {a: 1}|3 yaml {b: 2}"},
		"braces of YAML, twice": {
			"{a: 1}\n{b: 2}\n",
			"1 yaml {a: 1}\n{b: 2} (another object follows without a separator",
		},
		"no separator": {
			"kind: A\nx: |\n  kind: C\nspec: {kind: D}\nkind : B\n",
			"1 yaml kind: A\nx: |\n  kind: C\nspec: {kind: D}\nkind : B (apiVersion or kind stands twice",
		},
		"a separator that is glued to a value": {
			"kind: A\nimage: b---\napiVersion: v1\nkind: B\n---\nkind: C\n",
			"1 yaml kind: A\nimage: b---\napiVersion: v1\nkind: B (apiVersion or kind stands twice|6 yaml kind: C",
		},
		"JSON, then braces": {"{\"a\": 1}\n{b: 2}\n{c: 3}\n", `1 json {"a": 1}|2 yaml {b: 2}` +
			"\n{c: 3} (another object follows without a separator"},
	} {
		var got []string
		for o := range document.SplitObjects([]byte(c.in)) {
			text := fmt.Sprintf("%d yaml %s", o.Line, strings.TrimSpace(string(o.Text)))
			if o.JSON {
				text = strings.Replace(text, "yaml", "json", 1)
			}
			if o.Err != nil {
				reason, _, _ := strings.Cut(o.Err.Error(), ",")
				text += " (" + reason
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(strings.Join(got, "|"), c.want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", name, diff)
		}
	}
}
