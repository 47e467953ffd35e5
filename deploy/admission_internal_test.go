package deploy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/kkbundle/kkbundle/manifest"
)

func TestSpellings(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string][]string{
		"docker.io/library/nginx:1.29": {
			"docker.io/library/nginx:1.29", "library/nginx:1.29", "index.docker.io/library/nginx:1.29", "nginx:1.29",
			"docker.io/nginx:1.29", "index.docker.io/nginx:1.29",
		},
		"docker.io/grafana/grafana:latest": {
			"docker.io/grafana/grafana:latest", "grafana/grafana:latest", "index.docker.io/grafana/grafana:latest",
			"docker.io/grafana/grafana", "grafana/grafana", "index.docker.io/grafana/grafana",
		},
		"docker.io/looks.like/registry:1": {
			"docker.io/looks.like/registry:1",
			"index.docker.io/looks.like/registry:1",
		},
		"quay.io/app:2":                      {"quay.io/app:2"},
		"quay.io/app@" + digestA.String():    {"quay.io/app@" + digestA.String()},
		"quay.io/app:2@" + digestA.String():  {"quay.io/app:2@" + digestA.String()},
		"registry.lab:5000/team/tool:latest": {"registry.lab:5000/team/tool:latest", "registry.lab:5000/team/tool"},
	} {
		if diff := cmp.Diff(spellings(ref), want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", ref, diff)
		}
	}
}

// TestSpellingsOfBundle holds that an image is known by its tag, its digest, and both, and that excluded ones are
// left alone.
func TestSpellingsOfBundle(t *testing.T) {
	t.Parallel()
	m := testImages(t, &manifest.Bundle{ExcludeImages: []string{"registry.lab:5000/*"}})
	got := m.spellings()
	for _, text := range []string{"nginx:1.29", "nginx@" + digestA.String(), "nginx:1.29@" + digestA.String()} {
		if want := "harbor.site/mirror/docker.io/library/nginx:1.29@" + digestA.String(); got[text] != want {
			t.Errorf("%s leads to %q, want %s", text, got[text], want)
		}
	}
	if to, ok := got["registry.lab:5000/team/tool:2"]; ok {
		t.Errorf("an excluded image leads to %s", to)
	}
}

// TestPodPolicySize holds that no expression is too long for the API server's parser, and that a policy of 1000
// images fits into an object of etcd.
func TestPodPolicySize(t *testing.T) {
	t.Parallel()
	const parser, object = 100_000, 1_500_000
	names := map[string]string{}
	for i := range 1000 {
		ref := fmt.Sprintf("docker.io/library/a-name-that-is-as-long-as-they-are:v1.%d.0", i)
		for _, text := range spellings(ref) {
			names[text] = "registry.of.the.site.example:5000/mirror/" + ref + "@" + digestA.String()
		}
	}
	policy := podPolicy("shop", names, "kkbundle.pull.shop")
	all := 0
	for _, v := range policy.Spec.Variables {
		if all += len(v.Expression); len(v.Expression) >= parser {
			t.Errorf("variable %s has %d bytes", v.Name, len(v.Expression))
		}
	}
	if n := len(policy.Spec.Mutations[0].JSONPatch.Expression); n >= parser || all+n >= object {
		t.Errorf("the mutation has %d bytes, all have %d", n, all+n)
	}
}

// olderMapper has the kinds that it is made with, or, as an older API server, no policies.
type olderMapper struct{ meta.RESTMapper }

func (olderMapper) Reset() {}

func TestRedirectNeedsAPI(t *testing.T) {
	t.Parallel()
	older := &cluster{mapper: olderMapper{meta.NewDefaultRESTMapper([]schema.GroupVersion{})}, version: "v1.34.3"}
	for _, c := range []struct {
		redirect Redirecting
		record   Record
		refused  bool
	}{
		{RedirectAsBefore, Record{}, false},
		{RedirectNothing, Record{Redirect: &Redirect{}}, false},
		{RedirectAsBefore, Record{Redirect: &Redirect{}}, true},
		{RedirectPods, Record{}, true},
	} {
		r := &run{Options: Options{Redirect: c.redirect}, cluster: older, record: &c.record}
		err := r.wantsRedirect(t.Context())
		var missing *RedirectError
		if errors.As(err, &missing) != c.refused || !c.refused && err != nil {
			t.Errorf("%d, %+v: %v", c.redirect, c.record, err)
		}
		if c.refused && (!strings.Contains(err.Error(), "API server v1.34.3 has no MutatingAdmissionPolicy") ||
			!strings.Contains(missing.Hint(), "v1.36")) {
			t.Errorf("%v; %s", err, missing.Hint())
		}
	}
}

// TestForgedRecordChoosesNoNamespace: the pull secret goes into the namespaces of a redirection. Who may write in the
// namespace of records must not choose them.
func TestForgedRecordChoosesNoNamespace(t *testing.T) {
	t.Parallel()
	binding := podBinding("site", []string{Namespace, "shop", "operators"})
	foreign := podBinding("site", []string{Namespace, "victim"})
	foreign.Labels = nil
	for name, one := range map[string]struct {
		live *admissionv1.MutatingAdmissionPolicyBinding
		want []string
		is   Redirecting
	}{
		"with the policy":      {binding, []string{"operators"}, RedirectPods},
		"without a policy":     {nil, nil, RedirectAsBefore},
		"a policy of somebody": {foreign, nil, RedirectAsBefore},
	} {
		mapper := meta.NewDefaultRESTMapper(nil)
		for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
			mapper.AddSpecific(admissionv1.SchemeGroupVersion.WithKind(kind),
				admissionv1.SchemeGroupVersion.WithResource(strings.ToLower(kind[:len(kind)-1])+map[byte]string{'y': "ies", 'g': "gs"}[kind[len(kind)-1]]),
				admissionv1.SchemeGroupVersion.WithResource(strings.ToLower(kind)), meta.RESTScopeRoot)
		}
		var objects []runtime.Object
		if one.live != nil {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(one.live)
			if err != nil {
				t.Fatal(err)
			}
			objects = append(objects, &unstructured.Unstructured{Object: content})
		}
		scheme := runtime.NewScheme()
		if err := admissionv1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		r := &run{
			cluster: &cluster{any: dynamicfake.NewSimpleDynamicClient(scheme, objects...), mapper: olderMapper{mapper}},
			record:  &Record{Name: "site", Redirect: &Redirect{Namespaces: []string{"operators", "victim"}}},
			report:  &Report{Name: "site"},
		}
		if err := r.wantsRedirect(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if r.Redirect != one.is || !slices.Equal(r.RedirectNamespaces, one.want) || len(r.report.Warnings) != 1 {
			t.Errorf("%s: %v, namespaces %v, warnings %q", name, r.Redirect, r.RedirectNamespaces, r.report.Warnings)
		}
	}
}
