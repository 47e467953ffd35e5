package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

const shopYAML = `apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: shop, version: "1"}
values:
  flavor: {required: true, pattern: '^[a-z]+$'}
  tag: {default: "1.29"}
platforms: [linux/amd64, linux/arm64]
images:
  - &web nginx:${tag}
  - {name: redis:8, platforms: [linux/amd64]}
  - ghcr.io/example/app:${flavor}
charts:
  - {name: db, repo: "https://charts.example", version: "1"}
deploy:
  - {chart: db, namespace: shop}
variants:
  slim:
    platforms: [linux/amd64]
    values: {flavor: slim}
    without: {images: ["docker.io/library/redis:8"], charts: [db], deploy: [shop/db]}
  gpu:
    values: {flavor: gpu, tag: "1.30"}
    images: [{name: "docker.io/library/redis:8", referrers: none}, example/driver:1]
    charts: [{name: db, repo: "https://other.example", version: "2"}]
    deploy: [{chart: db, namespace: shop, wait: none}]
`

func parseVariant(t *testing.T, text, name string) (*manifest.Bundle, error) {
	t.Helper()
	return manifest.ParseVariant("shop.yaml", []byte(text), nil, name,
		func(table values.Table, src *document.Tree) (*values.Set, error) {
			return table.Resolve(context.Background(), src, values.Options{At: values.Build})
		})
}

// summary lists what a test of variants changes.
func summary(b *manifest.Bundle) string {
	var s []string
	s = append(s, b.Metadata.Name, fmt.Sprint(b.Platforms))
	for _, i := range b.Images {
		s = append(s, i.Name+string(i.Referrers)+fmt.Sprint(i.Platforms))
	}
	for _, c := range b.Charts {
		s = append(s, c.Repo+"/"+c.Name+":"+c.Version)
	}
	for _, a := range b.Deploy {
		s = append(s, a.Chart+string(a.Wait))
	}
	return strings.Join(s, " ")
}

// TestVariants merges variants, and reads the text of each as a manifest of its own.
func TestVariants(t *testing.T) {
	for name, want := range map[string]string{
		"slim": "shop-slim [linux/amd64] nginx:1.29[] ghcr.io/example/app:slim[]",
		"gpu": "shop-gpu [linux/amd64 linux/arm64] nginx:1.30[] docker.io/library/redis:8none[] ghcr.io/example/app:gpu[] " +
			"example/driver:1[] https://other.example/db:2 dbnone",
	} {
		b, err := parseVariant(t, shopYAML, name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := summary(b); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
		again, err := parseVariant(t, string(b.Merged), "")
		if err != nil || summary(again) != want || again.Variant != "" {
			t.Errorf("%s, its own text: %v %s\n%s", name, err, summary(again), b.Merged)
		}
	}
	names, err := manifest.VariantNames("shop.yaml", []byte(shopYAML), nil)
	if err != nil || strings.Join(names, " ") != "slim gpu" {
		t.Errorf("%v %v", err, names)
	}
	_, err = parseVariant(t, shopYAML, "sli")
	if unknown, ok := errors.AsType[*manifest.VariantError](err); !ok ||
		unknown.Error() != "the manifest has no variant sli; its variants are slim, gpu" {
		t.Error(err)
	}
}

// TestVariantOfPlainValue: a value that has nothing but its name takes what a variant gives it.
func TestVariantOfPlainValue(t *testing.T) {
	text := strings.Replace(shopYAML, "\n  tag: ", "\n  plain:\n  tag: ", 1)
	text = strings.Replace(text, "values: {flavor: slim}", "values: {flavor: slim, plain: given}", 1)
	text = strings.Replace(text, "- &web nginx:${tag}", "- &web nginx:${tag}\n  - example/${plain}:1", 1)
	b, err := parseVariant(t, text, "slim")
	if err != nil || !strings.Contains(summary(b), "example/given:1") {
		t.Errorf("%v: %s", err, summary(b))
	}
}

// TestVariantOfCommentedList: a list whose entries are all comments changes nothing.
func TestVariantOfCommentedList(t *testing.T) {
	text := strings.Replace(shopYAML, "    values: {flavor: slim}\n", "    values: {flavor: slim}\n    images:\n    # - a:1\n    groups:\n", 1)
	b, err := parseVariant(t, text, "slim")
	if want := "shop-slim [linux/amd64] nginx:1.29[] ghcr.io/example/app:slim[]"; err != nil || summary(b) != want {
		t.Errorf("%v: %s\nwant %s", err, summary(b), want)
	}
}

// TestVariantProblems names the place of each problem in the file.
func TestVariantProblems(t *testing.T) {
	const head = `apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: shop, version: "1"}
values: {tag: {default: "1"}}
platforms: [linux/amd64]
images: ["a:${tag}", b:1]
charts: [{name: c, repo: "https://x.example", version: "1"}, {name: c, repo: "https://y.example", version: "1"}]
variants:
  v:
`
	for _, c := range []struct{ variant, want string }{
		{"    without: {images: [c:1]}", "shop.yaml:10:24: variants.v.without.images[0]: the manifest has no c:1 under images, so variant v cannot leave it out"},
		{"    without: {colours: [red]}", "shop.yaml:10:15: variants.v.without.colours: nothing of this kind can be left out; known: images, "},
		{"    images: [b:1, docker.io/library/b:1]", "shop.yaml:10:19: variants.v.images[1]: docker.io/library/b:1 is there twice in variant v, first on line 10"},
		{"    charts: [{name: c, path: x}]", "shop.yaml:10:14: variants.v.charts[0]: the manifest has c several times, on line 7 and line 7; "},
		{"    colour: red", "shop.yaml:10:5: variants.v.colour: a variant has no such key; known: platforms, "},
		{"    zone: cn\n    zone: us", "shop.yaml:10:5: variants.v.zone: is there twice, also on line 11"},
		{"    variants: {}", "shop.yaml:10:5: variants.v.variants: a variant has no such key"},
		{"    values: {tga: 1}", "shop.yaml:10:14: variants.v.values.tga: the manifest has no value of this name; "},
		{"    values: {tag: [1]}", "shop.yaml:10:19: variants.v.values.tag: want one value"},
		{"    images: [{name: d:1, colour: red}]", `shop.yaml:10:26: images[2]: unknown field "colour"`},
		{"    platforms: [linux/vax]", "shop.yaml:10:17: platforms[0]: "},
		{"    - red", "shop.yaml:10:5: variants.v: want what differs from the manifest"},
	} {
		_, err := parseVariant(t, head+c.variant+"\n", "v")
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.variant, err, c.want)
		}
	}
	bomb := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 'b'; i < 'j'; i++ {
		bomb += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	_, err := parseVariant(t, head+"    {}\n"+bomb, "v")
	if err == nil || !strings.Contains(err.Error(), "aliases repeat too much") {
		t.Errorf("aliases: %v", err)
	}
}
