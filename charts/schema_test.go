package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
)

// packed makes a chart archive of these files.
func packed(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for name, text := range files {
		if err := tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: "demo/" + name, Mode: 0o644,
			Size: int64(len(text)),
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSchemaReadsNothing: Helm's check of values before an installation follows references of the chart's schema, to
// files and servers alike. A chart whose schema has such references loses it, and everything else of the chart stays.
func TestSchemaReadsNothing(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	private := filepath.Join(t.TempDir(), "private.json")
	if err := os.WriteFile(private, []byte(`{"not": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const head = "apiVersion: v2\nname: demo\nversion: 0.1.0\n"
	sub := strings.Replace(head, "demo", "sub", 1)
	for name, c := range map[string]struct {
		files   map[string]string
		dropped []string
		checked bool // values that the schema refuses are refused
	}{
		"a file": {map[string]string{"Chart.yaml": head, "values.schema.json": `{"$ref": "file://` + private +
			`"}`}, []string{"demo"}, false},
		"a server": {map[string]string{
			"Chart.yaml":         head,
			"values.schema.json": `{"properties": {"a": {"$ref": "` + server.URL + `/x"}}}`,
		}, []string{"demo"}, false},
		"a relative name": {map[string]string{"Chart.yaml": head, "values.schema.json": `{"$ref": "` +
			strings.TrimPrefix(private, "/") + `"}`}, []string{"demo"}, false},
		"a metaschema": {map[string]string{"Chart.yaml": head, "values.schema.json": `{"$schema": "` + server.URL +
			`/meta"}`}, []string{"demo"}, false},
		"a base": {map[string]string{"Chart.yaml": head, "values.schema.json": `{"$id": "` + server.URL +
			`/a", "properties": {"a": {"$ref": "b"}}}`}, []string{"demo"}, false},
		"of a subchart": {map[string]string{
			"Chart.yaml": head + "dependencies: [{name: sub, version: 0.1.0}]\n", "charts/sub/Chart.yaml": sub,
			"charts/sub/values.schema.json": `{"$ref": "file://` + private + `"}`,
			"values.schema.json":            `{"properties": {"a": {"type": "integer"}}}`,
		}, []string{"demo/charts/sub"}, true},
		"inside only": {
			map[string]string{
				"Chart.yaml":         head,
				"values.schema.json": `{"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}`,
			},
			nil, true,
		},
	} {
		loaded, err := Load(bytes.NewReader(packed(t, c.files)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		err = chartutil.ValidateAgainstSchema(loaded.helm, map[string]any{"a": "text"})
		if (err != nil) != c.checked {
			t.Errorf("%s: values that no schema of this chart allows: %v", name, err)
		}
		if !slices.Equal(loaded.Unchecked(), c.dropped) {
			t.Errorf("%s: unchecked %v, want %v", name, loaded.Unchecked(), c.dropped)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the server was asked %d times", n)
	}
}
