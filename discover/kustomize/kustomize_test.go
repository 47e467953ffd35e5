package kustomize_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kkbundle/kkbundle/discover/kustomize"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {template: {spec: {containers: [{name: web, image: nginx}]}}}
`

func tree(t *testing.T, files map[string]string) *os.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestBuild(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"base/kustomization.yaml":      "resources: [web.yaml]\n",
		"base/web.yaml":                deployment,
		"base/unused.yaml":             "x",
		"parts/c/kustomization.yml":    "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{path: add.yaml}]\n",
		"parts/c/add.yaml":             "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {template: {spec: {initContainers: [{name: i, image: \"busybox:1\"}]}}}\n",
		"site/one/kustomization.yaml":  "resources: [../../base]\ncomponents: [../../parts/c]\nimages: [{name: nginx, newName: quay.io/a/web, newTag: \"2\"}]\nconfigMapGenerator: [{name: c, files: [f=conf.txt], literals: [\"URL=https://example.com\"]}]\ncommonAnnotations: {doc: \"https://example.com\"}\n",
		"site/one/conf.txt":            "text",
		"site/other/kustomization.yml": "x",
	})
	text, files, err := kustomize.Build(root, "site/one")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"image: quay.io/a/web:2", "image: busybox:1", "kind: ConfigMap",
		"URL: https://example.com",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	want := []string{
		"base/kustomization.yaml", "base/web.yaml", "parts/c/add.yaml", "parts/c/kustomization.yml",
		"site/one/conf.txt", "site/one/kustomization.yaml",
	}
	if !slices.Equal(files, want) {
		t.Errorf("it was made from %v, want %v", files, want)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	const remote = "nothing remote is fetched"
	for name, c := range map[string]struct{ text, want string }{
		"a repository":  {"resources: [\"https://github.com/acme/app//deploy?ref=v1\"]", remote},
		"a short one":   {"resources: [\"github.com/acme/app//deploy\"]", remote},
		"over ssh":      {"bases: [\"git@github.com:acme/app.git\"]", remote},
		"a file":        {"resources: [\"https://example.com/a.yaml\"]", remote},
		"a component":   {"components: [\"https://example.com/c\"]", remote},
		"a patch":       {"resources: [web.yaml]\npatches: [{path: \"https://example.com/p.yaml\"}]", "is not fetched"},
		"a config file": {"configMapGenerator: [{name: c, files: [\"a=http://example.com/p\"]}]", "is not fetched"},
		"a schema":      {"resources: [web.yaml]\nopenapi: {path: \"http://example.com/s\"}", "is not fetched"},
		"a chart": {
			"helmCharts: [{name: x, repo: \"https://example.com\"}]",
			"name the chart and its values under charts",
		},
		"outside":    {"resources: [../../etc]", remote},
		"by a link":  {"resources: [link]", remote},
		"by a file":  {"resources: [link.yaml]", remote},
		"no YAML":    {"resources: [", "kustomization.yaml: yaml: "},
		"a plugin":   {"resources: [web.yaml]\ntransformers: [plugin.yaml]", "plugin"},
		"a function": {"resources: [web.yaml]\ntransformers: [exec.yaml]", ""},
		"itself":     {"resources: [../k]", "cycle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := tree(t, map[string]string{
				"k/kustomization.yaml": c.text,
				"k/web.yaml":           deployment,
				"k/plugin.yaml":        "apiVersion: acme.example/v1\nkind: Plugin\nmetadata: {name: x}\n",
				"k/exec.yaml":          "apiVersion: v1\nkind: X\nmetadata: {name: x, annotations: {config.kubernetes.io/function: \"exec: {path: /bin/touch}\"}}\n",
			})
			for link, to := range map[string]string{"link": "/etc", "link.yaml": "/etc/passwd"} {
				if err := os.Symlink(to, filepath.Join(root.Name(), "k", link)); err != nil {
					t.Fatal(err)
				}
			}
			text, _, err := kustomize.Build(root, "k")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v\n%s", c.want, err, text)
			}
		})
	}
}

// TestPipe wants a pipe to be refused: reading one without a writer never ends.
func TestPipe(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"kustomization.yaml": "resources: [pipe.yaml]\n"})
	if err := unix.Mkfifo(filepath.Join(root.Name(), "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := kustomize.Build(root, "."); err == nil || !strings.Contains(err.Error(), "pipe.yaml is not a regular file") {
		t.Errorf("error %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"k/kustomization.yaml": "configMapGenerator: [{name: c, files: [big]}]\n",
		"k/big":                strings.Repeat("x", 4<<20+1),
	})
	if _, _, err := kustomize.Build(root, "k"); err == nil ||
		!strings.Contains(err.Error(), "k/big: a kustomization reads at most") {
		t.Errorf("got %v", err)
	}
}

// TestEqualKeys gives a kustomization 4,000 times the same key. An error for each pair of them would take a gigabyte.
func TestEqualKeys(t *testing.T) { //nolint:paralleltest // measures the memory of the process
	root := tree(t, map[string]string{"k/kustomization.yaml": strings.Repeat("resources: []\n", 4000)})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := kustomize.Build(root, "k")
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), `"resources" already set`) || len(err.Error()) > 1000 {
		t.Errorf("got %.300v", err)
	}
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
		t.Errorf("a file of 56 kB took %d MiB", took)
	}
}
