package deploy_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

const valuesTable = `values:
  release: {default: "1"}
  domain: {at: site, required: true, description: The domain.}
  greeting: {at: site, default: "hello from ${domain}"}
  password: {at: site, required: true, secret: true}
deploy:
  - {release: conf, namespace: vals, manifests: [conf.yaml], wait: none}
`

const valuesYAML = `# kkbundle: values
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {domain: "${domain}", greeting: "${greeting}", shell: "$${HOME}", release: "${release}"}
---
apiVersion: v1
kind: Secret
metadata: {name: conf}
stringData: {password: "${password}"}
`

// give returns options with NAME=VALUE for the table.
func (f *foreign) give(t *testing.T, sets ...string) deploy.Options {
	t.Helper()
	o := f.options()
	var given []values.Given
	for _, one := range sets {
		g, err := values.ParseSet(one)
		if err != nil {
			t.Fatal(err)
		}
		given = append(given, g)
	}
	o.Resolve = func(ctx context.Context, table values.Table, src *document.Tree,
		known []values.Given,
	) (*values.Set, error) {
		return table.Resolve(ctx, src, values.Options{At: values.Site, Given: append(known, given...)})
	}
	return o
}

// TestAPIServerValues deploys a bundle with values of the site: missing, given, remembered, changed and removed.
func TestAPIServerValues(t *testing.T) {
	f := newForeign(t)
	b := site{name: "vals", version: "1", deploy: valuesTable, files: map[string]string{"conf.yaml": valuesYAML}}.bundle(t)
	for _, step := range []struct {
		name string
		run  func(t *testing.T, b *bundle.Reader)
	}{
		{"values that are missing are named, and nothing is made", f.valuesMissing},
		{"given ones are deployed and remembered, secret ones apart", f.valuesGiven},
		{"the next run needs none", f.valuesRemembered},
		{"a dry run shows what changes, and no secret", f.valuesDryRun},
		{"a changed one changes the objects and what is remembered", f.valuesChanged},
		{"removal takes the secret ones away", f.valuesRemoved},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, b) }) {
			return
		}
	}
}

func (f *foreign) valuesMissing(t *testing.T, b *bundle.Reader) {
	_, err := deploy.Run(t.Context(), b, f.give(t, "release=2", "domian=x"))
	want := `--set domian: the manifest has no value of this name; did you mean domain?
--set release: was given when the bundle was built, and is part of it; build another bundle for another value
manifest.yaml:7:3: values[domain]: is required (The domain.) and was not given: give it with --set domain=…, in a file with --values FILE, or in $KKBUNDLE_VALUE_DOMAIN
manifest.yaml:9:3: values[password]: is required and was not given: give it with --set password=…, in a file with --values FILE, or in $KKBUNDLE_VALUE_PASSWORD`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
	if _, err := f.kube.CoreV1().Namespaces().Get(t.Context(), deploy.Namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace of records: %v", err)
	}
}

// wantValues compares the objects, the record and its Secret.
func (f *foreign) wantValues(t *testing.T, domain, password string) {
	t.Helper()
	conf, err := f.kube.CoreV1().ConfigMaps("vals").Get(t.Context(), "conf", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := conf.Data; d["domain"] != domain || d["greeting"] != "hello from "+domain || d["shell"] != "${HOME}" ||
		d["release"] != "1" {
		t.Errorf("%v", d)
	}
	secret, err := f.kube.CoreV1().Secrets("vals").Get(t.Context(), "conf", metav1.GetOptions{})
	if err != nil || string(secret.Data["password"]) != password {
		t.Errorf("%v %q", err, secret.Data)
	}
	record, err := f.kube.CoreV1().ConfigMaps(deploy.Namespace).Get(t.Context(), "kkbundle.deploy.vals", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := record.Data["record.json"]
	if !strings.Contains(text, `"domain": "`+domain+`"`) || strings.Contains(text, password) ||
		strings.Contains(text, "greeting") {
		t.Errorf("the record:\n%s", text)
	}
	kept, err := f.kube.CoreV1().Secrets(deploy.Namespace).Get(t.Context(), "kkbundle.values.vals", metav1.GetOptions{})
	if err != nil || string(kept.Data["password"]) != password || len(kept.Data) != 1 {
		t.Errorf("%v %q", err, kept.Data)
	}
}

func (f *foreign) valuesGiven(t *testing.T, b *bundle.Reader) {
	if _, err := deploy.Run(t.Context(), b, f.give(t, "domain=a.example", `password=pass'word: "1" #`)); err != nil {
		t.Fatal(err)
	}
	f.wantValues(t, "a.example", `pass'word: "1" #`)
}

func (f *foreign) valuesRemembered(t *testing.T, b *bundle.Reader) {
	o := f.options() // without a Resolve of its own
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil || report.Changed() > 0 {
		t.Fatalf("%v %s", err, actions(report))
	}
	for _, v := range report.Values {
		if v.Changed {
			t.Errorf("changed: %s", v)
		}
	}
	f.wantValues(t, "a.example", `pass'word: "1" #`)
}

func (f *foreign) valuesDryRun(t *testing.T, b *bundle.Reader) {
	o := f.give(t, "domain=b.example", "password=geheim")
	o.DryRun = true
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, v := range report.Values {
		lines = append(lines, v.String())
	}
	want := "domain = b.example (was a.example), from --set\ngreeting = hello from b.example, from default\npassword = (secret) (changed), from --set"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	text, err := json.Marshal(report)
	if err != nil || strings.Contains(string(text), "geheim") || strings.Contains(string(text), "pass'word") {
		t.Errorf("the report has a secret: %v\n%s", err, text)
	}
	if !strings.Contains(report.Diff, "-  domain: a.example\n") || !strings.Contains(report.Diff, "+  domain: b.example\n") {
		t.Errorf("the difference:\n%s", report.Diff)
	}
	f.wantValues(t, "a.example", `pass'word: "1" #`)
}

func (f *foreign) valuesChanged(t *testing.T, b *bundle.Reader) {
	report, err := deploy.Run(t.Context(), b, f.give(t, "password=other"))
	if err != nil || report.Changed() != 1 {
		t.Fatalf("%v %s", err, actions(report))
	}
	f.wantValues(t, "a.example", "other")
}

func (f *foreign) valuesRemoved(t *testing.T, _ *bundle.Reader) {
	if _, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "vals", By: "ops@lab"}); err != nil {
		t.Fatal(err)
	}
	_, err := f.kube.CoreV1().Secrets(deploy.Namespace).Get(t.Context(), "kkbundle.values.vals", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the secret values are still there: %v", err)
	}
}
