package manifest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/sources"
	"github.com/kkbundle/kkbundle/manifest/values"
)

const includedHead = "apiVersion: kkbundle.io/v1\nkind: Bundle\n"

const siteYAML = includedHead + `metadata: {name: site, version: "1"}
include: [parts, base.yaml]
platforms: [linux/amd64]
images:
  - {name: "docker.io/library/redis:8", referrers: none}
  - nginx:1.29
without: {images: [b:1], manifests: [parts/gone/*.yaml]}
`

// parts are the files beside siteYAML. Included are nested/c.yaml, parts/a.yaml, parts/b.yaml and base.yaml.
func parts() map[string]string {
	return map[string]string{
		"parts/a.yaml": includedHead + `include: [../nested/c.yaml]
zone: cn # in China
values: {tag: {default: "1"}}
# What every site has
images: ["a:${tag}", # by tag
  # redis is replaced
  redis:8]
# The end
manifests: [yaml/*.yaml, gone/*.yaml]
charts: [{path: ./web, values: [web.yaml, /etc/web.yaml]}]
files: [{name: f, path: f.txt}, {name: g, url: "https://x.example/g"}]
deploy: [{release: r, manifests: [r.yaml]}]
`,
		"parts/b.yaml": includedHead + `include: [../nested/c.yaml]
images: [b:1]
cluster: cluster.yaml
sources: [{host: docker.io, mirror: m.example, ca: ca.pem}]
`,
		"parts/README.md": "not YAML",
		"nested/c.yaml":   includedHead + "zone: us\nplatforms: [linux/arm64]\nimages:\n",
		"base.yaml": includedHead + `values: {tag: {default: "2"}}
images: ["b:${tag}"]
trust: {root: root.json}
`,
	}
}

func parseSite(text string, files map[string]string) (*manifest.Bundle, error) {
	dir := fstest.MapFS{}
	for name, text := range files {
		dir[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return manifest.ParseVariant("sites/site.yaml", []byte(text), dir, "",
		func(table values.Table, src *document.Tree) (*values.Set, error) {
			return table.Resolve(context.Background(), src, values.Options{At: values.Build})
		})
}

// TestInclude merges files, and reads the text as a manifest of its own.
func TestInclude(t *testing.T) {
	b, err := parseSite(siteYAML, parts())
	if err != nil {
		t.Fatal(err)
	}
	want := manifest.Bundle{
		APIVersion: manifest.APIVersion, Kind: manifest.KindBundle,
		Metadata:  manifest.Metadata{Name: "site", Version: "1"},
		Platforms: []string{"linux/amd64"}, Zone: "cn", Cluster: "parts/cluster.yaml",
		Images: []manifest.Image{
			{Name: "a:2"}, {Name: "docker.io/library/redis:8", Referrers: "none"}, {Name: "b:2"}, {Name: "nginx:1.29"},
		},
		Manifests: []manifest.YAML{{Path: "parts/yaml/*.yaml"}},
		Charts:    []manifest.Chart{{Path: "parts/web", Values: []string{"parts/web.yaml", "/etc/web.yaml"}}},
		Files:     []manifest.File{{Name: "f", Path: "parts/f.txt"}, {Name: "g", URL: "https://x.example/g"}},
		Deploy:    []manifest.Addon{{Release: "r", Manifests: []string{"parts/r.yaml"}}},
		Trust:     manifest.ImageTrust{Root: "root.json"},
		Sources:   []sources.Source{{Host: "docker.io", Mirrors: sources.Mirrors{"m.example"}, CA: "parts/ca.pem"}},
	}
	for name, b := range map[string]*manifest.Bundle{"files": b, "text": must(parseSite(string(b.Merged), nil))(t)} {
		diff := cmp.Diff(*b, want, cmpopts.IgnoreUnexported(manifest.Bundle{}),
			cmpopts.IgnoreFields(manifest.Bundle{}, "Values", "Set", "Merged", "Included"))
		if diff != "" {
			t.Errorf("%s (-got +want):\n%s", name, diff)
		}
	}
	var files []string
	for _, in := range b.Included {
		files = append(files, in.Path)
	}
	if got := strings.Join(files, " "); got != "parts/a.yaml nested/c.yaml parts/b.yaml base.yaml" {
		t.Errorf("included: %s", got)
	}
}

func must(b *manifest.Bundle, err error) func(t *testing.T) *manifest.Bundle {
	return func(t *testing.T) *manifest.Bundle {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// TestIncludeOfVariants: an included file may have variants, and the manifest changes one of them by its name.
func TestIncludeOfVariants(t *testing.T) {
	files := map[string]string{"base.yaml": includedHead + `platforms: [linux/amd64]
images: [a:1, b:1]
variants: {slim: {without: {images: [b:1]}}, full: {}}
`}
	b, err := parseSite(includedHead+"metadata: {name: s, version: '1'}\ninclude: [base.yaml]\nimages: [c:1]\n", files)
	if err != nil || b.Variant != "slim" || len(b.Images) != 2 || b.Images[1].Name != "c:1" {
		t.Errorf("%v: %v", err, b)
	}
	files["base.yaml"] = strings.Replace(files["base.yaml"], "b:1]}}", "x:1]}}", 1)
	_, err = parseSite(includedHead+"metadata: {name: s, version: '1'}\ninclude: [base.yaml]\nimages: [c:1]\n", files)
	if want := "sites/base.yaml:5:38: variants.slim.without.images[0]: the manifest has no x:1 under images, "; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// TestIncludeProblems names file and line of each problem.
func TestIncludeProblems(t *testing.T) {
	const head = includedHead + "metadata: {name: s, version: '1'}\nplatforms: [linux/amd64]\nimages: [a:1]\n"
	many := map[string]string{}
	for i := range 101 {
		many[fmt.Sprintf("d/%03d.yaml", i)] = includedHead
	}
	for _, c := range []struct {
		include string
		files   map[string]string
		want    string
	}{
		{"[x.yaml]", nil, "sites/site.yaml:6:11: include[0]: x.yaml: there is no such file; write a path relative to this file"},
		{"[../x.yaml]", nil, "sites/site.yaml:6:11: include[0]: ../x.yaml is not below the manifest's directory; "},
		{"[/x.yaml]", nil, "sites/site.yaml:6:11: include[0]: /x.yaml is not below the manifest's directory; "},
		{"x.yaml", nil, "sites/site.yaml:6:10: include: want a list of files and directories"},
		{"[{a: b}]", nil, "sites/site.yaml:6:11: include[0]: want the path of a file or a directory"},
		{"[d]", map[string]string{"d/x.txt": ""}, "sites/site.yaml:6:11: include[0]: directory d has no file *.yaml"},
		{"[d]", map[string]string{"d/x.yaml/y": ""}, "sites/site.yaml:6:11: include[0]: d/x.yaml is not a regular file"},
		{"[d]", many, "sites/site.yaml:6:11: include[0]: more than 100 files are included; "},
		{
			"[site.yaml]",
			map[string]string{"site.yaml": ""},
			"sites/site.yaml:6:11: include[0]: site.yaml includes itself (site.yaml, site.yaml); ",
		},
		{
			"[d/x.yaml]",
			map[string]string{"d/x.yaml": includedHead + "include: [y.yaml]\n", "d/y.yaml": includedHead + "include:\n- x.yaml\n"},
			"sites/d/y.yaml:4:3: include[0]: d/x.yaml includes itself (d/x.yaml, d/y.yaml, d/x.yaml); ",
		},
		{
			"[d/x.yaml]",
			map[string]string{"d/x.yaml": includedHead + "include: [../../y.yaml]\n"},
			"sites/d/x.yaml:3:11: include[0]: ../../y.yaml is not below the manifest's directory; ",
		},
		{
			"[x.yaml]",
			map[string]string{"x.yaml": "apiVersion: kkbundle.io/v1\nkind: Cluster\n"},
			"sites/site.yaml:6:11: include[0]: x.yaml is no manifest; write apiVersion: kkbundle.io/v1 and kind: Bundle, or leave it out",
		},
		{"[x.yaml]", map[string]string{"x.yaml": "a: [\n"}, "sites/x.yaml:2:1: not valid YAML: "},
		{
			"[x.yaml]",
			map[string]string{"x.yaml": includedHead + "#" + strings.Repeat("x", 4<<20)},
			"sites/site.yaml:6:11: include[0]: with x.yaml, the included files have more than 4.0 MiB; include less",
		},
		{
			"[x.yaml]",
			map[string]string{"x.yaml": includedHead + "images:\n- {name: b:1, colour: red}\n"},
			`sites/x.yaml:4:15: images[0]: unknown field "colour"`,
		},
		{"[x.yaml]", map[string]string{"x.yaml": includedHead + "colour: red\n"}, `sites/x.yaml:3:1: unknown field "colour"`},
		{
			"[x.yaml]",
			map[string]string{"x.yaml": includedHead + "images: [b:1]\nzone: cn\nimages: [c:1]\n"},
			"sites/x.yaml:3:1: images: is there twice, also on sites/x.yaml:5",
		},
		{
			"[x.yaml]",
			map[string]string{"x.yaml": includedHead + "values: {v: {default: '1'}}\nimages: ['b:${w}']\n"},
			"sites/x.yaml:4:10: images[0]: ${w}: the manifest has no value of this name",
		},
		{
			"[x.yaml]",
			map[string]string{"x.yaml": includedHead + "values: {v: {required: true}}\nimages: ['b:${v}']\n"},
			"sites/x.yaml:3:10: values[v]: is required and was not given: ",
		},
		{
			"[x.yaml, y.yaml]",
			map[string]string{"x.yaml": includedHead + "charts: [{name: c, path: a}, {name: c, path: b}]\n", "y.yaml": includedHead + "charts: [{name: c, path: d}]\n"},
			"sites/y.yaml:3:10: charts[0]: the include has c several times, on sites/x.yaml:3 and sites/x.yaml:3; ",
		},
		{
			"[x.yaml]\nwithout: {images: [b:1]}",
			map[string]string{"x.yaml": includedHead},
			"sites/site.yaml:7:20: without.images[0]: the include has no b:1 under images, so sites/site.yaml cannot leave it out",
		},
		{
			"[]\nwithout: {colours: [red]}", nil,
			"sites/site.yaml:7:11: without.colours: nothing of this kind can be left out; known: images, ",
		},
	} {
		_, err := parseSite(head+"include: "+c.include+"\n", c.files)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s %v: %v\nwant %s", c.include, slices.Sorted(maps.Keys(c.files)), err, c.want)
		}
	}
	_, err := manifest.ParseBundle("manifest.yaml", []byte(head+"include: [x.yaml]\n"))
	if want := "manifest.yaml:6:1: include: only a manifest in a directory includes files; "; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("without a directory: %v\nwant %s", err, want)
	}
}
