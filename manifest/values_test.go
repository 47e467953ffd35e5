package manifest

import (
	"context"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

const withValues = `apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: shop, version: "${version}"}
values:
  version: {required: true, pattern: '^[0-9]'}
  registry: {default: docker.io/library}
  namespace: {at: site, default: shop}
  domain: {at: site, required: true}
  key: {at: site, secret: true}
  price: {default: "$${x}"}
platforms: [linux/amd64]
images:
  - ${registry}/nginx:${version}
  - name: ${registry}/redis:8
charts:
  - {name: web, repo: "https://charts.example", version: "${version}"}
deploy:
  - {chart: web, namespace: "${namespace}"}
`

// resolver returns a function that resolves with what is given.
func resolver(o values.Options) ResolveFunc {
	return func(t values.Table, src *document.Tree) (*values.Set, error) {
		return t.Resolve(context.Background(), src, o)
	}
}

func given(list ...string) (all []values.Given) {
	for _, one := range list {
		g, err := values.ParseSet(one)
		if err != nil {
			panic(err)
		}
		all = append(all, g)
	}
	return all
}

func TestParseBundleWith(t *testing.T) {
	build := resolver(values.Options{At: values.Build, Given: given("version=1.29", "registry=r.example/x")})
	b, err := ParseBundleWith("manifest.yaml", []byte(withValues), build)
	if err != nil {
		t.Fatal(err)
	}
	if b.Metadata.Version != "1.29" || b.Images[0].Name != "r.example/x/nginx:1.29" || b.Deploy[0].Namespace != "shop" {
		t.Errorf("%+v", b)
	}
	if at := b.src.At("images[1].name"); at.Line != 14 || at.Column != 11 {
		t.Errorf("images[1].name is at %v", at)
	}
	l := &Lock{Metadata: b.Metadata, Values: LockedValues(b.Set)}
	fingerprint, err := b.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	l.Manifest = fingerprint.String()
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if l, err = ParseLock("lock", text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if strings.Contains(string(text), "domain") || strings.Contains(string(text), "key") {
		t.Errorf("the lock has values of the site:\n%s", text)
	}
	// What was given counts again, and defaults are read anew.
	again, err := ParseBundleWith("manifest.yaml", []byte(withValues), resolver(values.Options{Given: l.Given(false)}))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Covers(again); err != nil {
		t.Errorf("the same values: %v", err)
	}
	for name, c := range map[string]struct {
		old, new string
		given    []string
		want     string
	}{
		"another value":   {"", "", []string{"version=1.30"}, "value version (was 1.29, is 1.30)"},
		"another default": {"$${x}", "y", nil, "value price (was ${x}, is y)"},
		"a new value":     {"  domain:", "  more: {default: z}\n  domain:", nil, "value more (new)"},
		"one less":        {"  price: {default: \"$${x}\"}\n", "", nil, "value price (no longer defined)"},
	} {
		b, err := ParseBundleWith("manifest.yaml", []byte(strings.Replace(withValues, c.old, c.new, 1)),
			resolver(values.Options{Given: append(l.Given(false), given(c.given...)...)}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := l.Covers(b); err == nil || !strings.Contains(err.Error(), "changed: "+c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Values are refused where they cannot be kept, with the place of the reference.
func TestValuesInTheWrongPlace(t *testing.T) {
	build := resolver(values.Options{At: values.Build, Given: given("version=1")})
	for name, c := range map[string]struct{ old, new, want string }{
		"nothing defines it": {"${registry}/redis:8", "${registry}/redis:${redis}", "manifest.yaml:14:29: images[1].name: ${redis}: the manifest has no value of this name; it has version, registry, namespace, domain, key, price; write $${ for the text ${"},
		"of the site":        {"redis:8", "redis:${namespace}", "manifest.yaml:14:29: images[1].name: ${namespace}: is given at the site, and this must be known when the bundle is built; write at: build"},
		"a secret":           {`namespace: "${namespace}"`, `namespace: "${key}"`, "manifest.yaml:18:30: deploy[0].namespace: ${key}: is secret, and this text is shown and recorded; only values files and Kubernetes YAML can have it"},
		"no example":         {`namespace: "${namespace}"`, `namespace: "${domain}"`, "manifest.yaml:18:30: deploy[0].namespace: ${domain}: is given at the site, and this is checked when the bundle is built, too; write an example or a default for it"},
		"a shell's":          {"redis:8", "redis:${TAG:-8}", "manifest.yaml:14:29: images[1].name: ${TAG:-8} names no value: a reference is ${name}; write $${ for the text ${"},
		"an invalid result":  {"redis:8", "redis:$${TAG}", `manifest.yaml:14:5: images[1]: "docker.io/library/redis:${TAG}" is not an image reference; write one such as docker.io/library/nginx:1.29 (invalid reference format)`},
	} {
		_, err := ParseBundleWith("manifest.yaml", []byte(strings.Replace(withValues, c.old, c.new, 1)), build)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s:\n%v\nwant\n%s", name, err, c.want)
		}
	}
}

// A manifest without a table keeps every ${.
func TestNoValues(t *testing.T) {
	text := "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: a, version: '1'}\nplatforms: [linux/amd64]\nimages: [nginx]\nexcludeImages: [\"${x}$${y}${{z}\"]\n"
	b, err := ParseBundleWith("m", []byte(text), func(values.Table, *document.Tree) (*values.Set, error) {
		t.Error("the values of a manifest without a table are resolved")
		return nil, nil
	})
	if err != nil || b.Set != nil || b.ExcludeImages[0] != "${x}$${y}${{z}" {
		t.Errorf("%v %+v", err, b)
	}
}

func TestParseClusterWith(t *testing.T) {
	text := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: \"${namespace}\"}\nkubernetes:\n  version: v${version}\n  maxPods: ${pods}\n"
	table := strings.Replace(withValues, "  key:", "  pods: {type: integer, default: 200}\n  key:", 1)
	b, err := ParseBundleWith("manifest.yaml", []byte(table), resolver(values.Options{Given: given("version=1.36.3")}))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseClusterWith(b.Set, "cluster.yaml", []byte(text), "kubernetes.proxyMode=ipvs")
	if err != nil || c.Kubernetes.Version != "v1.36.3" || c.Kubernetes.MaxPods != 200 || c.Metadata.Name != "shop" {
		t.Fatalf("%v %+v", err, c)
	}
	_, err = ParseClusterWith(b.Set, "cluster.yaml", []byte(strings.Replace(text, "${pods}", "x${pods}", 1)))
	if err == nil || err.Error() != `cluster.yaml:6:12: kubernetes.maxPods: want a whole number, have "x200"` {
		t.Error(err)
	}
	_, err = ParseClusterWith(b.Set, "cluster.yaml", []byte(strings.Replace(text, "${namespace}", "${key}", 1)))
	if err == nil || !strings.HasPrefix(err.Error(), "cluster.yaml:3:19: metadata.name: ${key}: is secret") {
		t.Error(err)
	}
	if _, err := ParseCluster("cluster.yaml", []byte(text)); err == nil {
		t.Error("without a manifest, ${ is expanded")
	}
}
