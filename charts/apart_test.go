package charts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/action"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	"k8s.io/client-go/rest"
)

// answering returns a configuration of Helm's actions whose API server knows a ConfigMap, and whose objects go nowhere.
func answering(t *testing.T) *action.Configuration {
	t.Helper()
	answers := map[string]string{
		"/version":                          `{"major":"1","minor":"34","gitVersion":"v1.34.3"}`,
		"/api":                              `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":                             `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1":                           `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["get","list"]}]}`,
		"/api/v1/namespaces/a/configmaps/x": `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","generation":7},"data":{"k":"{{ found }}"}}`,
		"/api/v1/namespaces/a/configmaps":   `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"x"}},{"metadata":{"name":"y"}}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	c, err := Connect(t.Context(), &rest.Config{Host: server.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &action.Configuration{
		RESTClientGetter: c.in("a"), Releases: storage.Init(driver.NewMemory()), Log: func(string, ...any) {},
		KubeClient: &kubefake.PrintingKubeClient{Out: io.Discard, LogOutput: io.Discard},
	}
}

// difficult is a chart with what Helm treats in its own way.
func difficult() map[string]string {
	return map[string]string{
		"Chart.yaml":          "apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies:\n- {name: sub, version: 1.0.0, condition: sub.enabled, alias: other}\n- {name: never, version: 1.0.0, condition: never.enabled}\n",
		"values.yaml":         "number: 1000000\nsub: {enabled: true}\nnever: {enabled: false}\n",
		"values.schema.json":  `{"type": "object", "properties": {"number": {"type": "number"}}}`,
		"templates/_help.tpl": "{{ define \"web.name\" }}{{ .Release.Name }}-{{ .Release.Revision }}{{ end }}",
		"templates/a.yaml": "kind: ConfigMap\napiVersion: v1\nmetadata: {name: {{ include \"web.name\" . }}}\ndata:\n  text: '{{ \"{{- not a template }}\" }}'\n" +
			"  float: '{{ .Values.number }}'\n  int: '{{ .Values.whole }}'\n  nothing: '{{ .Values.nothing }}'\n  install: '{{ .Release.IsInstall }}'\n  kube: '{{ .Capabilities.KubeVersion }}'\n" +
			"  found: '{{ (lookup \"v1\" \"ConfigMap\" \"a\" \"x\").data.k }} {{ (lookup \"v1\" \"ConfigMap\" \"a\" \"x\").metadata.generation }}'\n" +
			"  listed: '{{ len (lookup \"v1\" \"ConfigMap\" \"a\" \"\").items }}'\n  missing: '{{ lookup \"v1\" \"ConfigMap\" \"a\" \"z\" }}'\n---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n",
		"templates/hook.yaml":               "kind: ConfigMap\napiVersion: v1\nmetadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\n",
		"templates/NOTES.txt":               "Thank you for {{ .Chart.Name }}. {{ \"{{\" }}\n",
		"crds/c.yaml":                       "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: cs.example.com}\nspec: {group: example.com, names: {kind: C}, versions: [{name: v1}]}\n",
		"charts/sub/Chart.yaml":             "apiVersion: v2\nname: sub\nversion: 1.0.0\n",
		"charts/sub/templates/NOTES.txt":    "not shown",
		"charts/sub/templates/in.yaml":      "kind: ConfigMap\napiVersion: v1\nmetadata: {name: {{ .Chart.Name }}}\n",
		"charts/never/Chart.yaml":           "apiVersion: v2\nname: never\nversion: 1.0.0\n",
		"charts/never/templates/never.yaml": "kind: ConfigMap\napiVersion: v1\nmetadata: {name: never}\n",
	}
}

func loaded(t *testing.T, files map[string]string) *Chart {
	t.Helper()
	c, err := Load(bytes.NewReader(packaged(t, files)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestReleasesAreHelms: a release that is rendered in a sandbox process is the one that Helm makes of the chart itself.
func TestReleasesAreHelms(t *testing.T) {
	t.Parallel()
	values := map[string]any{
		"whole": int64(1000000), "nothing": nil, "number": 2000000.0,
		"list": []any{1.5, int64(2), "x"},
	}
	install := action.NewInstall(answering(t))
	install.ReleaseName, install.Namespace, install.Labels = "r", "a", map[string]string{MarkLabel: "m.1"}
	want, err := install.RunWithContext(t.Context(), loaded(t, difficult()).helm, copyValues(values))
	if err != nil {
		t.Fatal(err)
	}
	cfg := answering(t)
	got, err := state{cfg: cfg, mark: "m"}.apply(t.Context(), loaded(t, difficult()),
		InstallOptions{Release: "r", Namespace: "a", Values: values})
	if err != nil {
		t.Fatal(err)
	}
	compareReleases(t, want, got)
	if !strings.Contains(got.Manifest, "found: '{{ found }} 7'") || !strings.Contains(got.Manifest, "int: '1000000'") ||
		strings.Contains(got.Manifest, "name: never") {
		t.Errorf("rendered %s", got.Manifest)
	}
	stored, err := cfg.Releases.Last("r")
	if err != nil || len(stored.Chart.Templates) != 4 {
		t.Errorf("recorded %v, %v", stored, err)
	}

	upgrade := action.NewUpgrade(install2(t, want))
	upgrade.Namespace, upgrade.Labels, upgrade.ResetValues = "a", map[string]string{MarkLabel: "m.2"}, true
	want, err = upgrade.RunWithContext(t.Context(), "r", loaded(t, difficult()).helm, copyValues(values))
	if err != nil {
		t.Fatal(err)
	}
	got, err = state{cfg: install2(t, got), last: got, mark: "m"}.apply(t.Context(), loaded(t, difficult()),
		InstallOptions{Release: "r", Namespace: "a", Values: values})
	if err != nil {
		t.Fatal(err)
	}
	compareReleases(t, want, got)
}

// install2 returns a configuration that has a release.
func install2(t *testing.T, r *release.Release) *action.Configuration {
	t.Helper()
	cfg := answering(t)
	if err := cfg.Releases.Create(r); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func compareReleases(t *testing.T, want, got *release.Release) {
	t.Helper()
	for name, pair := range map[string][2]any{
		"manifest": {want.Manifest, got.Manifest}, "hooks": {len(want.Hooks), len(got.Hooks)},
		"notes": {want.Info.Notes, got.Info.Notes}, "chart": {want.Chart, got.Chart},
		"config": {want.Config, got.Config},
		"labels": {want.Labels, got.Labels}, "version": {want.Version, got.Version},
		"status": {want.Info.Status, got.Info.Status},
	} {
		a, _ := json.Marshal(pair[0])
		b, _ := json.Marshal(pair[1])
		if diff := cmp.Diff(string(a), string(b)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestHostileTemplatesAtInstall: templates without an end stop neither deploy nor install, whether they are previewed
// or installed.
func TestHostileTemplatesAtInstall(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		// At once, so that no busy machine reaches the time limit first. Package sandbox has the one that grows.
		`{{ repeat 3000000000 "x" }}`:                                                       "more than 1.0 GiB of memory",
		`{{ range $i := until 100 }}{{ repeat 1000000 "x" }}{{ end }}`:                      "chart is larger than allowed",
		`{{ .Files.Get "/etc/passwd" }}{{ getHostByName "localhost" }}{{ fail "no file" }}`: "no file",
	} {
		files := map[string]string{
			"Chart.yaml":       "apiVersion: v2\nname: web\nversion: 1.0.0\n",
			"templates/a.yaml": template,
		}
		s := state{cfg: answering(t)}
		o := InstallOptions{Release: "r", Namespace: "a"}
		if _, err := s.apply(t.Context(), loaded(t, files), o); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("installed: %v, want %s", err, want)
		}
		if _, _, err := s.render(t.Context(), loaded(t, files), o, nil); err == nil ||
			!strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("previewed: %v, want %s", err, want)
		}
		alone := RenderOptions{Release: "r", Namespace: "a", KubeVersion: "v1.34.3", MaxOutput: MaxRendered}
		if _, err := RenderApart(t.Context(), loaded(t, files), alone); err == nil ||
			!strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("rendered alone: %v, want %s", err, want)
		}
	}
}
