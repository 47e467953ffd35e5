package values

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// A manifest of this test, as far as values are concerned.
type file struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Values     Table  `yaml:"values"`
	Rest       any    `yaml:"rest"`
}

func format() document.Format {
	return document.Format{
		APIVersion: "v1", Kind: "Test", Limits: document.FileLimits(),
		Foreign: func(*document.Tree) error { return nil },
	}
}

const head = "apiVersion: v1\nkind: Test\n"

// read reads a table and resolves it.
func read(t testing.TB, text string, o Options) (*Set, error) {
	t.Helper()
	tree, err := document.Parse("m.yaml", []byte(head+text), document.FileLimits())
	if err != nil {
		t.Fatal(err)
	}
	var f file
	if err := document.Decode(tree, format(), &f, func(c *document.Checker) { f.Values.Check(c, "values") }); err != nil {
		return nil, err
	}
	return f.Values.Resolve(t.Context(), tree, o)
}

func resolved(t testing.TB, text string, o Options) *Set {
	t.Helper()
	s, err := read(t, text, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func set(list ...string) (given []Given) {
	for _, one := range list {
		g, err := ParseSet(one)
		if err != nil {
			panic(err)
		}
		given = append(given, g)
	}
	return given
}

func shown(s *Set) string {
	var lines []string
	for _, v := range s.List() {
		lines = append(lines, v.Name+"="+v.Shown()+" "+v.Origin)
	}
	return strings.Join(lines, "; ")
}

func TestResolve(t *testing.T) {
	t.Parallel()
	file, err := ParseFile("site.yaml", []byte("# of this site\nversion: 1.10\ndomain: b.example\n"))
	if err != nil {
		t.Fatal(err)
	}
	table := "values:\n  version: {default: 1.0}\n  domain: {at: site, required: true, example: a.example}\n  host: {at: site, default: 'www.${domain}'}\n  on: {type: boolean, default: false}\n"
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"defaults and examples while a bundle is built": {
			Options{At: Build},
			"version=1.0 default; domain=a.example example; host=www.a.example default; on=false default",
		},
		"a lock": {
			Options{At: Build, Given: []Given{{Name: "version", Text: "7", Layer: FromLock}, {Name: "gone", Text: "x", Layer: FromLock}}},
			"version=7 lock; domain=a.example example; host=www.a.example default; on=false default",
		},
		"later layers win, in any order": {
			Options{At: Build, Given: append(set("version=3"),
				Given{Name: "version", Text: "2", Layer: FromEnvironment, File: "$KKBUNDLE_VALUE_VERSION"},
				Given{Name: "on", Text: "true", Layer: FromEnvironment, File: "$KKBUNDLE_VALUE_ON"},
				Given{Name: "version", Text: "1", Layer: FromLock})},
			"version=3 --set; domain=a.example example; host=www.a.example default; on=true $KKBUNDLE_VALUE_ON",
		},
		"a site, with the file that the build had": {
			Options{At: Site, Given: append(file, Given{Name: "version", Text: "1.10", Layer: FromLock})},
			"version=1.10 lock; domain=b.example site.yaml:3:9; host=www.b.example default; on=false default",
		},
		"a site again": {
			Options{At: Site, Given: []Given{{Name: "domain", Text: "c", Layer: FromRecord}}},
			"version=1.0 default; domain=c record; host=www.c default; on=false default",
		},
		"a person": {
			Options{At: Site, Ask: func(_ context.Context, d Definition) (string, error) { return "asked." + d.Name, nil }},
			"version=1.0 default; domain=asked.domain terminal; host=www.asked.domain default; on=false default",
		},
	} {
		if got := shown(resolved(t, table, c.o)); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

// Every wrong table and every wrong value is a problem with its place and a remedy.
func TestProblems(t *testing.T) {
	t.Parallel()
	file, err := ParseFile("v.yaml", []byte("a: x\nb: y\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		o    Options
		want string
	}{
		"missing": {
			"values:\n  v:\n    required: true\n    description: the release",
			Options{At: Build},
			"m.yaml:4:3: values[v]: is required (the release) and was not given: give it with --set v=…, in a file with --values FILE, or in $KKBUNDLE_VALUE_V",
		},
		"empty": {
			"values: {v: {required: true}}",
			Options{At: Build, Given: set("v=")},
			"--set v: is required and is empty",
		},
		"a wrong type": {
			"values: {v: {type: integer, default: 3}}",
			Options{At: Build, Given: set("v=3.5")},
			`--set v: want a whole number, have "3.5"`,
		},
		"a leading zero":  {"values: {v: {type: integer, default: 010}}", Options{At: Build}, `m.yaml:3:38: values[v].default: want a whole number, have "010"`},
		"no number":       {"values: {v: {type: number, default: 1e}}", Options{At: Build}, `m.yaml:3:37: values[v].default: want a number, have "1e"`},
		"no boolean":      {"values: {v: {type: boolean, default: yes}}", Options{At: Build}, `m.yaml:3:38: values[v].default: want true or false, have "yes"`},
		"no type":         {"values: {v: {type: list, default: 1}}", Options{At: Build}, `m.yaml:3:20: values[v].type: must be string, integer, number or boolean, is "list"`},
		"a pattern":       {"values: {v: {pattern: '^v[0-9]'}}", Options{At: Build, Given: set("v=1")}, `--set v: want a text that matches ^v[0-9], have "1"`},
		"no pattern":      {"values: {v: {pattern: '('}}", Options{At: Build}, "m.yaml:3:23: values[v].pattern: not a regular expression: error parsing regexp: missing closing ): `(`"},
		"itself":          {"values: {v: {default: 'a${v}'}}", Options{At: Build}, "m.yaml:3:23: values[v].default: names itself"},
		"itself by way":   {"values: {v: {default: '${w}'}, w: {default: '${v}'}}", Options{At: Build}, "m.yaml:3:45: values[w].default: names itself by way of v, w"},
		"another unknown": {"values: {version: {default: '${verson}'}}", Options{At: Build}, "m.yaml:3:29: values[version].default: ${verson}: the manifest has no value of this name; did you mean version?; write $${ for the text ${"},
		"too early":       {"values: {v: {default: '${w}'}, w: {at: site}}", Options{At: Build}, "m.yaml:3:23: values[v].default: names w, which is given at the site, later than v; write at: site for both"},
		"a secret of the build": {
			"values: {v: {secret: true}}",
			Options{At: Build},
			"m.yaml:3:10: values[v]: is secret and would enter the bundle; write at: site",
		},
		"a secret's default": {
			"values: {v: {secret: true, at: site, default: x}}",
			Options{At: Build},
			"m.yaml:3:47: values[v].default: the value is secret, and its default would enter the bundle; leave the default out",
		},
		"a secret in a default": {
			"values: {v: {secret: true, at: site, required: true}, w: {at: site, default: 'x${v}'}}",
			Options{At: Site, Given: set("v=geheim")},
			"m.yaml:3:78: values[w].default: names v, which is secret: the default would show it",
		},
		"a secret is not shown": {
			"values: {v: {secret: true, at: site, pattern: '^[0-9]+$'}}",
			Options{At: Site, Given: set("v=geheim")},
			"--set v: want a text that matches ^[0-9]+$, have another text",
		},
		"a default that never counts": {
			"values: {v: {required: true, default: x}}",
			Options{At: Build},
			"m.yaml:3:39: values[v].default: the value is required, and a default would never count; leave out default or required",
		},
		"no text":        {"values: {v: {type: boolean}}", Options{At: Build}, "m.yaml:3:10: values[v]: is no text and can be missing; write a default, or required: true"},
		"a name":         {"values: {1v: {default: x}}", Options{At: Build}, `m.yaml:3:10: values[1v]: "1v" is not a name; use letters, digits, hyphens and underscores, and begin with a letter`},
		"one variable":   {"values: {a-b: {default: x}, A_B: {default: x}}", Options{At: Build}, "m.yaml:3:29: values[A_B]: has the same environment variable as a-b, KKBUNDLE_VALUE_A_B; rename one of them"},
		"of no manifest": {"values: {a: {default: x}}", Options{At: Build, Given: file}, "v.yaml:2:4: b: the manifest has no value of this name; did you mean a?"},
		"too early for the site": {
			"values: {a: {at: site}, b: {default: z}}",
			Options{At: Build, Given: file},
			"v.yaml:1:4: a: is given at the site, to deploy, install and upgrade; an example in the manifest stands for it until then",
		},
		"too late for the build": {
			"values: {a: {at: site}, b: {default: z}}",
			Options{At: Site, Given: append(file, Given{Name: "b", Text: "z", Layer: FromLock})},
			"v.yaml:2:4: b: was given when the bundle was built, and is part of it; build another bundle for another value",
		},
		"control characters": {"values: {v: {default: x}}", Options{At: Build, Given: set("v=a\x1b")}, "--set v: the text has control characters, or is not UTF-8"},
	} {
		_, err := read(t, c.text+"\n", c.o)
		_, ok := errors.AsType[document.Problems](err)
		if !ok || err.Error() != c.want {
			t.Errorf("%s: %T\n%v\nwant\n%s", name, err, err, c.want)
		}
	}
}

func TestParseFileProblems(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"- a\n":                    "f:1:1: want a mapping from the names of values to values, such as domain: site.example",
		"a: [1]\nb:\nc: 1\nc: 2\n": "f:1:4: a: want one value, have a list or a mapping\nf:2:3: b: has no value; write one or leave the line out\nf:4:4: c: is there twice; remove one",
	} {
		if _, err := ParseFile("f", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
	if _, err := ParseSet("domain"); err == nil {
		t.Error("--set without = is accepted")
	}
}

const forTexts = `values:
  tag: {default: "1.10"}
  count: {type: integer, default: 3}
  ratio: {type: number, default: 2}
  on: {type: boolean, default: true}
  odd: {default: "a: 'b' #c \"d\" ${x"}
  name: {default: web}
  empty: {}
  cert: {default: "-----BEGIN-----\nMII\n"}
`

// oddText is a value with everything that could change the structure around it.
const oddText = `a: 'b' #c "d" \e {f} [g] & * ! | > %` + "`@ ${tag}"

func textSet(t testing.TB) *Set {
	t.Helper()
	return resolved(t, strings.Replace(forTexts, `"a: 'b' #c \"d\" ${x"`, "x", 1), Options{At: Build, Given: set("odd=" + oddText)})
}

func TestYAML(t *testing.T) {
	t.Parallel()
	s := textSet(t)
	const before = `# kkbundle: values
image: registry/${name}:${tag}   # ${nobody}
replicas: ${count}
ratio: ${ratio}
quoted: "${count}"
port: 80${count}
on: ${on}
version: ${tag}
single: '${odd} it''s'
double: "${odd} \"x\""
plain: ${odd}
within: <${odd}>
cert: ${cert}
${name}: &a ${tag}
again: *a
none: ${empty}
tagged: !!str ${count}
script: |
  echo $${HOME} ${name} $$ $x $(y)
folded: >-
  one ${name}
  two
flow: {a: "${tag}", b: ['${name}']}
---
second: ${name}
`
	text, err := s.YAML("k.yaml", []byte(before), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(string(text), "\n"), strings.Count(before, "\n"); got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	var first, second map[string]any
	if err := errors.Join(d.Decode(&first), d.Decode(&second)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{
		"image": "registry/web:1.10", "replicas": 3, "ratio": 2, "quoted": "3", "port": "803", "on": true,
		"version": "1.10", "single": oddText + " it's", "double": oddText + ` "x"`, "plain": oddText,
		"within": "<" + oddText + ">", "cert": "-----BEGIN-----\nMII\n", "web": "1.10", "again": "1.10", "none": "",
		"tagged": "3", "script": "echo ${HOME} web $$ $x $(y)\n", "folded": "one web two",
		"flow": map[string]any{"a": "1.10", "b": []any{"web"}},
	}, first); diff != "" {
		t.Error(diff)
	}
	if second["second"] != "web" || !strings.Contains(string(text), "# ${nobody}") {
		t.Errorf("%v\n%s", second, text)
	}
}

// A file that does not opt in keeps every byte, whatever it has; so does one with a nil Set.
func TestOptsIn(t *testing.T) {
	t.Parallel()
	s := textSet(t)
	for _, text := range []string{"a: ${name}\n", "a: ${name}\n# kkbundle: values\n", "", "x", "# values\na: ${{ x }}"} {
		if got, err := s.YAML("f", []byte(text), nil); err != nil || string(got) != text {
			t.Errorf("%q: %q %v", text, got, err)
		}
		if got, err := (*Set)(nil).Script("f", []byte(text)); err != nil || string(got) != text {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	if got, err := s.YAML("f", []byte("#!/bin/x\n\n---\n#kkbundle:values\na: ${name}\n"), nil); err != nil || !strings.HasSuffix(string(got), "a: \"web\"\n") {
		t.Errorf("%q %v", got, err)
	}
}

// Every text that cannot be expanded is a problem at its place.
func TestTextProblems(t *testing.T) {
	t.Parallel()
	s := textSet(t)
	for text, want := range map[string]string{
		"a: x\nb: ä ${nme}\n":        "f:3:6: b: ${nme}: the manifest has no value of this name; did you mean name?; write $${ for the text ${",
		"a: |\n  x\n  ${HOME:-x}\n":  "f:4:3: a: ${HOME:-x} names no value: a reference is ${name}; write $${ for the text ${",
		"a: ${name} ${name} ${{ x\n": "f:2:20: a: ${ names no value: a reference is ${name}; write $${ for the text ${",
		"a: |\n  ${cert}\n":          "f:3:3: the value has several lines or tabs, which this text cannot take; write the text in double quotes",
		"a: one\n  ${name}\n":        "f:2:4: a text of several lines without quotes has a value; write the text in quotes",
		"a: >\n  x\n  ${empty}\n":    "f:2:4: the value does not fit in this text; write the text in double quotes",
		"a: [${name}]\n":             "f:2:1: not valid YAML: did not find expected ',' or ']'; between brackets or braces, ${name} needs quotes",
	} {
		_, err := s.YAML("f", []byte("# kkbundle: values\n"+text), nil)
		if _, ok := errors.AsType[document.Problems](err); !ok || err.Error() != want {
			t.Errorf("%q: %T\n%v\nwant\n%s", text, err, err, want)
		}
	}
	for text, want := range map[string]string{
		"# kkbundle: value\n":              `f:1:1: "# kkbundle: value" is no comment for kkbundle; write "# kkbundle: values", or another comment`,
		"# x\n# kkbundle: values\na: ${b}": `f:1:1: the file opts in to values ("# kkbundle: values"), and the manifest has none; define them under values, or remove the comment`,
	} {
		if _, err := (*Set)(nil).YAML("f", []byte(text), nil); err == nil || err.Error() != want {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
}

// A tree keeps its positions; a value that stands alone and without quotes keeps its type.
func TestTree(t *testing.T) {
	t.Parallel()
	s := textSet(t)
	data := []byte(head + "values: {a: {default: '${nobody}'}}\nrest:\n  - ${name}\n  - {n: \"${count}\", m: 1}\n  - ${count}\n  - ${on}\n  - <${tag}>\n")
	tree, err := document.Parse("m.yaml", data, document.FileLimits())
	if err != nil {
		t.Fatal(err)
	}
	refused := ""
	err = s.Tree(tree, data, func(path string, v Value) string {
		refused += path + "=" + v.Name + " "
		return ""
	}, "values")
	if err != nil {
		t.Fatal(err)
	}
	if want := "rest[0]=name rest[1].n=count rest[2]=count rest[3]=on rest[4]=tag "; refused != want {
		t.Errorf("the rule was asked for %s, want %s", refused, want)
	}
	var f file
	if err := document.Decode(tree, format(), &f, func(*document.Checker) {}); err != nil {
		t.Fatal(err)
	}
	want := []any{"web", map[string]any{"n": "3", "m": int64(1)}, int64(3), true, "<1.10>"}
	if diff := cmp.Diff(want, f.Rest); diff != "" {
		t.Error(diff)
	}
	if at := tree.At("rest[1].m"); at.Line != 6 || at.Column != 24 {
		t.Errorf("rest[1].m is at %v", at)
	}
	unused := s.Unused().Error()
	for _, name := range []string{"ratio", "odd", "empty", "cert"} {
		if !strings.Contains(unused, "values["+name+"]: nothing uses it") {
			t.Errorf("%s is not said to be unused:\n%s", name, unused)
		}
	}
	if strings.Contains(unused, "values[tag]") {
		t.Errorf("tag is said to be unused:\n%s", unused)
	}
	err = s.Tree(tree, data, func(string, Value) string { return "no" }, "values")
	if err != nil {
		t.Errorf("nothing is left to refuse: %v", err)
	}
}

func TestRule(t *testing.T) {
	t.Parallel()
	s := textSet(t)
	_, err := s.YAML("f", []byte("# kkbundle: values\na: {image: 'x/${name}'}\n"), func(path string, v Value) string {
		if path == "a.image" && v.Name == "name" {
			return "not here"
		}
		return ""
	})
	if err == nil || err.Error() != "f:2:15: a.image: ${name}: not here" {
		t.Error(err)
	}
}

func TestScript(t *testing.T) {
	t.Parallel()
	s := resolved(t, "values: {domain: {at: site}, odd: {at: site}, key: {at: site, secret: true}}\n",
		Options{At: Site, Given: set("domain=a.example", "odd=$(reboot)", "key=geheim")})
	const start = "#!/bin/sh\n# kkbundle: values\n"
	got, err := s.Script("h.sh", []byte(start+"echo ${domain} $${HOME} $HOME\n"))
	if err != nil || string(got) != start+"echo a.example ${HOME} $HOME\n" {
		t.Errorf("%q %v", got, err)
	}
	_, err = s.Script("h.sh", []byte(start+"echo ${HOME}\necho ${odd} ${key}\n"))
	want := `h.sh:3:6: ${HOME}: the manifest has no value of this name; it has domain, odd, key; write $${ for the text ${
h.sh:4:6: ${odd}: the value has characters that a shell may take for something else; in a script use letters, digits and _ . : / @ , = + % -
h.sh:4:13: ${key} is secret, and scripts can be read on hosts; read it from a file there that only root can read`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	s := resolved(t, "values:\n  domain: {required: true, at: site, pattern: '[.]', example: a.b, description: The domain.}\n  on: {type: boolean, default: true}\n", Options{At: Build})
	got, err := s.table.Schema("site")
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/schema.json"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

// What is expanded means the same as when each text is replaced after reading; no line moves.
func FuzzYAML(f *testing.F) {
	for _, seed := range []string{
		"a: ${name}", "a: \"${odd}\"\nb: '${odd}'", "- |\n  ${name}\n- >\n  ${tag}\n  x", "${count}: ${count}", "{a: '$${b}'}",
		"a: &x ${name}\nb: *x", "a: !!str ${on}", "? ${name}\n: - ${odd}", "a: x ${name}\n  y", "a: \"\\\n  ${name}\"",
	} {
		f.Add(seed)
	}
	s := textSet(f)
	replace := strings.NewReplacer("$${", "${", "${tag}", "1.10", "${count}", "3", "${ratio}", "2", "${on}", "true",
		"${odd}", oddText, "${name}", "web", "${empty}", "", "${cert}", "-----BEGIN-----\nMII\n")
	f.Fuzz(func(t *testing.T, body string) {
		text := "# kkbundle: values\n" + body
		got, err := s.YAML("f", []byte(text), nil)
		if err != nil {
			if problems, ok := errors.AsType[document.Problems](err); !ok || len(problems) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		want, err := document.ParseAll("f", []byte(text), textLimits())
		if err != nil {
			return // nothing to replace
		}
		have, err := document.ParseAll("f", got, textLimits())
		if err != nil || len(have) != len(want) {
			t.Fatalf("%d documents, want %d (%v):\n%s", len(have), len(want), err, got)
		}
		var compare func(w, h *yaml.Node)
		compare = func(w, h *yaml.Node) {
			if w.Kind != h.Kind || len(w.Content) != len(h.Content) || w.Line != h.Line {
				t.Fatalf("another structure:\n%s", got)
			}
			if w.Kind == yaml.ScalarNode && replace.Replace(w.Value) != h.Value {
				t.Fatalf("%q became %q, want %q", w.Value, h.Value, replace.Replace(w.Value))
			}
			for i := range w.Content {
				compare(w.Content[i], h.Content[i])
			}
		}
		for i := range want {
			compare(want[i], have[i])
		}
	})
}

// Commands that use no secret need none; every other value that is missing is still one.
func TestNoSecrets(t *testing.T) {
	t.Parallel()
	const table = "values: {key: {at: site, secret: true, required: true}, domain: {at: site, required: true}}\n"
	if _, err := read(t, table, Options{At: Site, NoSecrets: true}); err == nil || strings.Contains(err.Error(), "values[key]") ||
		!strings.Contains(err.Error(), "values[domain]: is required") {
		t.Errorf("got %v", err)
	}
	if got := shown(resolved(t, table, Options{At: Site, NoSecrets: true, Given: set("domain=x")})); got != "key=(secret) example; domain=x --set" {
		t.Error(got)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	if got := strings.Join(Names("${a} $${b} $x ${c-d}${a} ${"), " "); got != "a c-d a" {
		t.Error(got)
	}
}
