package charts

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// packaged writes a chart of these files as an archive.
func packaged(t *testing.T, files map[string]string) []byte {
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

func render(t *testing.T, files map[string]string, o RenderOptions) (*Rendering, error) {
	t.Helper()
	if o.KubeVersion == "" {
		o.KubeVersion = "v1.34.3"
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = 1 << 20
	}
	o.Release, o.Namespace = "rel", "ns"
	return Render(bytes.NewReader(packaged(t, files)), o)
}

func renderFiles() map[string]string {
	return map[string]string{
		"Chart.yaml": `apiVersion: v2
name: app
version: 1.0.0
kubeVersion: ">=1.30.0"
annotations: {artifacthub.io/images: "- image: a", images: "- {name: l, image: l}"}
dependencies:
  - {name: some, version: 1.x, condition: some.enabled}
  - {name: none, version: 1.x, condition: none.enabled}
  - {name: tagged, version: 1.x, tags: [extra]}
  - {name: some, version: 1.x, alias: again}
`,
		"values.yaml":                         "some: {enabled: true}\nnone: {enabled: true}\ntags: {extra: false}\nname: own\n",
		"templates/a.yaml":                    "{{ .Values.name }} {{ .Release.Name }} {{ .Release.Namespace }} {{ .Capabilities.KubeVersion }} {{ .Release.IsInstall }}",
		"templates/api.yaml":                  `{{ range list "acme.example/v1" "acme.example/v1/Thing" "given/v1" "apps/v1" "other/v1" }}{{ if $.Capabilities.APIVersions.Has . }}{{ . }} {{ end }}{{ end }}`,
		"templates/hook.yaml":                 "# helm.sh/hook\nhook",
		"templates/lookup.yaml":               `{{ len (lookup "v1" "Secret" "a" "b") }} {{ len (lookup "apps/v1" "Deployment" "" "").items }}`,
		"templates/dns.yaml":                  `[{{ getHostByName "localhost" }}]`,
		"templates/empty.yaml":                "{{ if false }}x{{ end }}\n",
		"templates/_helpers.tpl":              "x",
		"templates/NOTES.txt":                 "notes",
		"crds/thing.yaml":                     "spec: {group: none}\n---\nspec: {group: acme.example, names: {kind: Thing}, versions: [{name: v1}]}\n",
		"charts/some/Chart.yaml":              "apiVersion: v2\nname: some\nversion: 1.0.0\nannotations: {artifacthub.io/images: \"- image: b\"}\n",
		"charts/some/templates/a.yaml":        "{{ .Values.global | toJson }} {{ .Values.x }}",
		"charts/none/Chart.yaml":              "apiVersion: v2\nname: none\nversion: 1.0.0\nannotations: {artifacthub.io/images: \"- image: c\"}\n",
		"charts/none/templates/a.yaml":        "off",
		"charts/tagged/Chart.yaml":            "apiVersion: v2\nname: tagged\nversion: 1.0.0\n",
		"charts/tagged/templates/a.yaml":      "tagged",
		"charts/some/templates/sub/NOTES.txt": "notes",
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	values, err := ReadValues(
		ValuesFile{"a.yaml", []byte(
			"none: {enabled: false}\nglobal: {g: 1}\nsome: {x: first, enabled: true}\nagain: {x: alias}\n")},
		ValuesFile{"b.yaml", []byte("name: given\nsome: {x: last}\n")},
	)
	if err != nil {
		t.Fatal(err)
	}
	r, err := render(t, renderFiles(), RenderOptions{Values: values, APIVersions: []string{"given/v1"}})
	if err != nil {
		t.Fatal(err)
	}
	want := &Rendering{
		Name: "app", Version: "1.0.0",
		Files: []RenderedFile{
			{"app/charts/again/templates/a.yaml", `{"g":1} alias`},
			{"app/charts/some/templates/a.yaml", `{"g":1} last`},
			{"app/templates/a.yaml", "given rel ns v1.34.3 true"},
			{"app/templates/api.yaml", "acme.example/v1 acme.example/v1/Thing given/v1 apps/v1 "},
			{"app/templates/dns.yaml", "[]"},
			{"app/templates/hook.yaml", "# helm.sh/hook\nhook"},
			{"app/templates/lookup.yaml", "0 0"},
		},
		Upgrade: []RenderedFile{{"app/templates/a.yaml", "given rel ns v1.34.3 false"}},
		Annotations: []RenderedFile{
			{"app/Chart.yaml", "- image: a"},
			{"app/charts/some/Chart.yaml", "- image: b"},
			{"app/charts/again/Chart.yaml", "- image: b"},
		},
		Definitions: []RenderedFile{{
			"app/crds/thing.yaml",
			"spec: {group: none}\n---\nspec: {group: acme.example, names: {kind: Thing}, versions: [{name: v1}]}\n",
		}},
		Listed:  []RenderedFile{{"app/Chart.yaml", "- {name: l, image: l}"}},
		Lookups: []string{"apps/v1 Deployment", "v1 Secret"},
	}
	if diff := cmp.Diff(r, want); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}

// TestRenderUpgrade wants what differs when the release is upgraded, in a cluster that has what the installation made.
func TestRenderUpgrade(t *testing.T) {
	t.Parallel()
	secret := `{{ $old := lookup "v1" "Secret" .Release.Namespace "pw" }}{{ if and .Release.IsUpgrade (not $old) }}{{ fail "the password is gone" }}{{ end }}
apiVersion: v1
kind: Secret
metadata: {name: pw}
stringData: {password: secret}
`
	files := map[string]string{
		"Chart.yaml":            "apiVersion: v2\nname: app\nversion: 1.0.0\n",
		"templates/both.yaml":   "{{ .Release.Name }}",
		"templates/first.yaml":  "{{ if .Release.IsInstall }}first{{ end }}",
		"templates/later.yaml":  "{{ if .Release.IsUpgrade }}later {{ .Release.Revision }} {{ (lookup \"v1\" \"Secret\" \"ns\" \"pw\").data.password }} {{ len (lookup \"v1\" \"Secret\" \"other\" \"\").items }}{{ end }}",
		"templates/NOTES.txt":   "{{ .Release.Revision }}",
		"templates/secret.yaml": secret,
	}
	r, err := render(t, files, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []RenderedFile{{"app/templates/first.yaml", ""}, {"app/templates/later.yaml", "later 2 c2VjcmV0 0"}}
	if diff := cmp.Diff(r.Upgrade, want); diff != "" || r.NoUpgrade != "" {
		t.Errorf("%s: -got +want:\n%s", r.NoUpgrade, diff)
	}
	if len(r.Files) != 3 || !cmp.Equal(r.Lookups, []string{"v1 Secret"}) {
		t.Errorf("files %v, lookups %v", r.Files, r.Lookups)
	}
	files["templates/no.yaml"] = `{{ if .Release.IsUpgrade }}{{ fail "install it anew" }}{{ end }}`
	r, err = render(t, files, RenderOptions{})
	if err != nil || len(r.Files) != 3 || r.Upgrade != nil || !strings.Contains(r.NoUpgrade, "install it anew") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRenderSeparators wants the documents of a file as Helm separates them: glued to the hyphens, too.
func TestRenderSeparators(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: 1\n---b: 2\n":            "a: 1\n---\nb: 2\n",
		"---a: 1\n---   # c\nb: 2\n": "a: 1\n---\n# c\nb: 2\n",
		"a: 1\r\n---\r\nb: 2\r\n":    "a: 1\n---\nb: 2\n",
		"a: 1\n--- {b: 2}\n---\n":    "a: 1\n---\n{b: 2}\n",
		"a: |\n  ---\n  x\n":         "a: |\n  ---\n  x\n",
		"{{ range list 1 2 }}\n---{{ \"\" -}}\nx: {{ . }}{{ end }}": "x: 1\n---\nx: 2\n",
		"{{ range until 12 }}\n---\n{{ . }}{{ end }}":               "0\n---\n1\n---\n2\n---\n3\n---\n4\n---\n5\n---\n6\n---\n7\n---\n8\n---\n9\n---\n10\n---\n11\n",
	} {
		r, err := render(t, map[string]string{
			"Chart.yaml":       "apiVersion: v2\nname: x\nversion: 1.0.0\n",
			"templates/x.yaml": text,
		}, RenderOptions{})
		if err != nil || len(r.Files) != 1 || r.Files[0].Content != want {
			t.Errorf("%q: got %v, %v", text, r, err)
		}
	}
}

func TestRenderIsRefused(t *testing.T) {
	t.Parallel()
	chart := func(template string) map[string]string {
		return map[string]string{
			"Chart.yaml":       "apiVersion: v2\nname: x\nversion: 1.0.0\n",
			"templates/x.yaml": template,
		}
	}
	for name, c := range map[string]struct {
		files map[string]string
		o     RenderOptions
		want  string
	}{
		"another Kubernetes": {
			renderFiles(),
			RenderOptions{KubeVersion: "v1.20.0"},
			"requires Kubernetes >=1.30.0, not v1.20.0",
		},
		"no Kubernetes": {renderFiles(), RenderOptions{KubeVersion: "new"}, `kubernetes version "new"`},
		"a missing value": {
			chart(`{{ required "name an image" .Values.image }}`),
			RenderOptions{},
			"x/templates/x.yaml:1:3): name an image",
		},
		"a failure":   {chart(`{{ fail "no" }}`), RenderOptions{}, "x/templates/x.yaml:1:3): no"},
		"no template": {chart(`{{ if }}`), RenderOptions{}, "x/templates/x.yaml:1"},
		"recursion": {
			chart(`{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}`),
			RenderOptions{},
			"nested reference name: a",
		},
		"too much": {
			chart(`{{ repeat 1000 "xxxxxxxxxx" }}`),
			RenderOptions{MaxOutput: 9999},
			ErrTooLarge.Error(),
		},
	} {
		if _, err := render(t, c.files, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want %q, got %v", name, c.want, err)
		}
	}
	if _, err := Render(strings.NewReader("no archive"), RenderOptions{}); err == nil {
		t.Error("what is no chart is rendered")
	}
	_, err := render(t, chart(`{{ repeat 1000 "xxxxxxxxxx" }}`), RenderOptions{MaxOutput: 9999})
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestReadValuesIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"- a list", "a: [", "text"} {
		if _, err := ReadValues(ValuesFile{"v.yaml", []byte(text)}); err == nil ||
			!strings.Contains(err.Error(), "values v.yaml: ") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// TestRenderDefinitions wants the files of crds/ of a chart and of its enabled subcharts: Helm installs whatever they
// hold.
func TestRenderDefinitions(t *testing.T) {
	t.Parallel()
	r, err := render(t, map[string]string{
		"Chart.yaml":                  "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies:\n- {name: used, version: 1.0.0}\n- {name: spare, version: 1.0.0, condition: spare.enabled}\n",
		"values.yaml":                 "spare: {enabled: false}\n",
		"crds/sub/webhook.yaml":       "kind: Deployment # {{ not rendered }}\n---kind: Service\n",
		"crds/README.md":              "not installed",
		"charts/used/Chart.yaml":      "apiVersion: v2\nname: used\nversion: 1.0.0\n",
		"charts/used/crds/job.json":   `{"kind": "Job"}`,
		"charts/spare/Chart.yaml":     "apiVersion: v2\nname: spare\nversion: 1.0.0\n",
		"charts/spare/crds/none.yaml": "kind: Pod\n",
	}, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []RenderedFile{
		{"app/charts/used/crds/job.json", `{"kind": "Job"}`},
		{"app/crds/sub/webhook.yaml", "kind: Deployment # {{ not rendered }}\n---\nkind: Service\n"},
	}
	if diff := cmp.Diff(r.Definitions, want); diff != "" {
		t.Errorf("-got +want:\n%s", diff)
	}
}

// TestRenderUnfit wants values that a chart's schema refuses to be said, and the templates to be rendered all the same.
func TestRenderUnfit(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"Chart.yaml":         "apiVersion: v2\nname: app\nversion: 1.0.0\n",
		"values.yaml":        "replicas: 1\n",
		"values.schema.json": `{"properties": {"replicas": {"type": "integer"}}}`,
		"templates/a.yaml":   "replicas: {{ .Values.replicas }}",
	}
	for value, want := range map[any]string{2: "", "two": "at '/replicas': got string, want integer"} {
		r, err := render(t, files, RenderOptions{Values: map[string]any{"replicas": value}})
		if err != nil || len(r.Files) != 1 || !strings.Contains(r.Unfit, want) || want == "" && r.Unfit != "" {
			t.Errorf("%v: %+v, %v", value, r, err)
		}
	}
}
