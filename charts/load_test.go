package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	helmregistry "helm.sh/helm/v3/pkg/registry"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

const chartYAML = `apiVersion: v2
name: app
version: 1.2.3+build.4
description: An app
home: https://app.example
sources: [https://git.example/app]
maintainers:
  - {name: Anna, email: anna@app.example}
  - {name: Bert}
annotations:
  org.opencontainers.image.title: another title
  org.opencontainers.image.description: another description
  category: test
`

func chartFiles() map[string]string {
	return map[string]string{
		"Chart.yaml":                 chartYAML,
		"values.yaml":                "a: 1\n",
		"templates/cm.yaml":          "kind: ConfigMap\n",
		"templates/_helpers.tpl":     "{{/* x */}}\n",
		"files/data.bin":             "\x00\x01",
		".helmignore":                "*.bak\nsecret/\n",
		"old.bak":                    "ignored",
		"secret/key":                 "ignored",
		"charts/sub/Chart.yaml":      "apiVersion: v2\nname: sub\nversion: 0.1.0\n",
		"charts/sub/templates/a.yml": "kind: Secret\n",
	}
}

func writeDir(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "app")
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func archive(t testing.TB, files map[string]string) []byte {
	t.Helper()
	c, err := LoadDir(writeDir(t, files))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Archive(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchiveIsDeterministicAndWhole(t *testing.T) {
	t.Parallel()
	first, second := archive(t, chartFiles()), archive(t, chartFiles())
	if !bytes.Equal(first, second) {
		t.Error("two archives of the same files differ")
	}
	zr, err := gzip.NewReader(bytes.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	tr := tar.NewReader(zr)
	for i := 0; ; i++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 && h.Name != "app/Chart.yaml" {
			t.Errorf("first entry %s", h.Name)
		}
		if h.ModTime.Unix() != 0 || h.Mode != 0o644 {
			t.Errorf("%s: %v %o", h.Name, h.ModTime, h.Mode)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimPrefix(h.Name, "app/")] = string(data)
	}
	want := chartFiles()
	delete(want, "old.bak")
	delete(want, "secret/key")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	c, err := Load(bytes.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	if c.Name() != "app" || c.Version() != "1.2.3+build.4" {
		t.Errorf("%s %s", c.Name(), c.Version())
	}
}

// TestConfigAndAnnotationsAreHelms pushes with Helm's own client and compares.
func TestConfigAndAnnotationsAreHelms(t *testing.T) {
	t.Parallel()
	data := archive(t, chartFiles())
	c, err := Load(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	u := registrytest.Start(t, registrytest.Options{})
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP(), helmregistry.ClientOptWriter(io.Discard),
		helmregistry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")))
	if err != nil {
		t.Fatal(err)
	}
	ref := u.Host + "/charts/app:1.2.3+build.4"
	if _, err := client.Push(data, ref); err != nil {
		t.Fatal(err)
	}
	got, err := client.Pull(ref)
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(config, got.Config.Data) {
		t.Errorf("config:\n%s\nHelm's:\n%s", config, got.Config.Data)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(got.Manifest.Data, &m); err != nil {
		t.Fatal(err)
	}
	delete(m.Annotations, ocispec.AnnotationCreated)
	if diff := cmp.Diff(m.Annotations, c.Annotations()); diff != "" {
		t.Errorf("annotations, Helm's first: %s", diff)
	}
}

func TestLoadDirFailures(t *testing.T) {
	t.Parallel()
	missing := chartFiles()
	missing["Chart.yaml"] += "dependencies:\n  - {name: sub, version: 0.1.0}\n  - {name: redis, version: 1.0.0, repository: https://x.example}\n"
	broken := chartFiles()
	broken["Chart.yaml"] = "apiVersion: v2\nname: [\n"
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"no chart":           {map[string]string{"a": "b"}, "not a chart directory"},
		"missing dependency": {missing, "redis (run \"helm dependency update\""},
		"broken":             {broken, "Chart.yaml"},
	} {
		if _, err := LoadDir(writeDir(t, c.files)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
}

// tgz makes an archive of entries as they are, for what no honest tool writes.
func tgz(t testing.TB, entries map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for name, data := range entries {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func withChart(more map[string][]byte) map[string][]byte {
	entries := map[string][]byte{"app/Chart.yaml": []byte("apiVersion: v2\nname: app\nversion: 1.0.0\n")}
	maps.Copy(entries, more)
	return entries
}

func TestLoadBombs(t *testing.T) {
	t.Parallel()
	zeros := make([]byte, maxFile)
	sub := map[string][]byte{"sub/Chart.yaml": []byte("apiVersion: v2\nname: sub\nversion: 1.0.0\n")}
	for i := range 10 {
		sub[fmt.Sprintf("sub/f%d", i)] = zeros
	}
	inner := tgz(t, sub) // 50 MiB in 50 KB
	many := map[string][]byte{}
	for i := range 3 {
		many[fmt.Sprintf("app/charts/sub%d-1.0.0.tgz", i)] = inner
	}
	nested := tgz(t, withChart(nil))
	for range maxNesting + 2 {
		nested = tgz(t, withChart(map[string][]byte{"app/charts/app-1.0.0.tgz": nested}))
	}
	files := map[string][]byte{}
	for i := range maxEntries + 1 {
		files[fmt.Sprintf("app/f%d", i)] = nil
	}
	var padded bytes.Buffer
	zw := gzip.NewWriter(&padded)
	for range maxUnpacked/maxFile + 1 {
		if _, err := zw.Write(zeros); err != nil { // nothing but end marks, for ever
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data  []byte
		large bool
	}{
		"archives in archives": {tgz(t, withChart(many)), true},
		"nested":               {nested, true},
		"one large file":       {tgz(t, withChart(map[string][]byte{"app/f": make([]byte, maxFile+1)})), true},
		"many files":           {tgz(t, withChart(files)), true},
		"long name": {
			tgz(t, withChart(map[string][]byte{"app/" + strings.Repeat("charts/a/", 100): nil})),
			true,
		},
		"large archive":  {make([]byte, maxArchive+1), true},
		"end marks":      {padded.Bytes(), false},
		"not an archive": {[]byte("<html>"), false},
		"empty":          {nil, false},
		"no chart":       {tgz(t, map[string][]byte{"app/f": []byte("x")}), false},
		"escape":         {tgz(t, withChart(map[string][]byte{"app/../../etc/passwd": []byte("x")})), false},
		"truncated":      {inner[:len(inner)/2], false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(bytes.NewReader(c.data))
			if err == nil {
				t.Fatal("it was loaded")
			}
			if errors.Is(err, ErrTooLarge) != c.large {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(archive(f, chartFiles()))
	f.Add(tgz(f, withChart(map[string][]byte{"app/charts/sub.tgz": tgz(f, withChart(nil))})))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Load(bytes.NewReader(data))
		if err != nil {
			return
		}
		if _, err := c.Config(); err != nil {
			t.Errorf("loaded, but without config: %v", err)
		}
		if err := c.Archive(io.Discard); err != nil {
			t.Errorf("loaded, but not packaged: %v", err)
		}
	})
}
