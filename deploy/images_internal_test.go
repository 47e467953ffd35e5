package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	digestA = digest.Digest("sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	digestB = digest.Digest("sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	digestC = digest.Digest("sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc")
)

func testImages(t *testing.T, b *manifest.Bundle) *images {
	t.Helper()
	items := []bundle.Item{
		{Kind: bundle.KindImage, Ref: "docker.io/library/nginx:1.29"},
		{Kind: bundle.KindImage, Ref: "registry.lab:5000/team/tool:2"},
		{Kind: bundle.KindImage, Ref: "quay.io/pinned/app@" + digestC.String()},
		{Kind: bundle.KindFile, Ref: "https://files.example/x"},
	}
	for i, d := range []digest.Digest{digestA, digestB, digestC, digestA} {
		items[i].Descriptor.Digest = d
	}
	m, err := newImages(items, b, Endpoint{Pull: "harbor.site/mirror"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDestination(t *testing.T) {
	t.Parallel()
	m := testImages(t, &manifest.Bundle{})
	for text, want := range map[string]string{
		"nginx:1.29": "harbor.site/mirror/docker.io/library/nginx:1.29@" +
			digestA.String(),
		"docker.io/library/nginx:1.29": "harbor.site/mirror/docker.io/library/nginx:1.29@" +
			digestA.String(),
		"nginx:1.29@" + digestA.String(): "harbor.site/mirror/docker.io/library/nginx:1.29@" +
			digestA.String(),
		"nginx@" + digestA.String(): "harbor.site/mirror/docker.io/library/nginx:1.29@" +
			digestA.String(),
		"registry.lab:5000/team/tool:2": "harbor.site/mirror/registry.lab_5000/team/tool:2@" +
			digestB.String(),
		"quay.io/pinned/app:7@" + digestC.String(): "harbor.site/mirror/quay.io/pinned/app@" + digestC.String(),
		"harbor.site/mirror/own:1":                 "harbor.site/mirror/own:1",
		// as the values of a site may have it
		"harbor.site/mirror/docker.io/library/nginx:1.29": "harbor.site/mirror/docker.io/library/nginx:1.29@" +
			digestA.String(),
		"harbor.site/mirror/registry.lab_5000/team/tool:2": "harbor.site/mirror/registry.lab_5000/team/tool:2@" +
			digestB.String(),
		"harbor.site/mirror/docker.io/library/nginx@" +
			digestB.String(): "harbor.site/mirror/docker.io/library/nginx@" + digestB.String(),
		"nginx:1.29@" + digestB.String(): "",
		"nginx":                          "",
		"harbor.site/other/own:1":        "",
		"Not An Image":                   "",
	} {
		if got, ok := m.destination(text); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v", text, got, ok)
		}
	}
}

// TestRewrite holds the whole text: documents without images stay as they are, numbers stay whole.
func TestRewrite(t *testing.T) {
	t.Parallel()
	m := testImages(t, &manifest.Bundle{ImageRules: []manifest.ImageRule{{
		Kind:  "Widget",
		Paths: []string{".spec.image"},
	}}})
	m.secret = "kkbundle.pull.shop"
	got, err := m.rewrite([]byte(`# Source: web/templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: a}   # as written
data: {image: "nginx:1.29"}
---
# Source: web/templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, annotations: {a: "12345678901234567"}}
spec:
  progressDeadlineSeconds: 12345678901234567
  template:
    spec:
      initContainers: [{name: i, image: registry.lab:5000/team/tool:2}]
      containers: [{name: c, image: nginx:1.29, env: [{name: X, value: "nginx:1.29"}]}]
      volumes: [{name: v, image: {reference: nginx:1.29}}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: cj}
spec: {jobTemplate: {spec: {template: {spec: {imagePullSecrets: [{name: own}], containers: [{name: c, image: nginx:1.29}]}}}}}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
spec: {image: nginx:1.29, other: nginx:1.29}
---
apiVersion: example.com/v1
kind: Deployment
metadata: {name: not-ours}
spec: {template: {spec: {containers: [{name: c, image: nginx:1.29}]}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	nginx := "harbor.site/mirror/docker.io/library/nginx:1.29@" + digestA.String()
	tool := "harbor.site/mirror/registry.lab_5000/team/tool:2@" + digestB.String()
	if diff := cmp.Diff(string(got.text), `---
# Source: web/templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: a}   # as written
data: {image: "nginx:1.29"}
---
# Source: web/templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  annotations:
    a: "12345678901234567"
  name: web
  namespace: shop
spec:
  progressDeadlineSeconds: 12345678901234567
  template:
    spec:
      containers:
      - env:
        - name: X
          value: nginx:1.29
        image: `+nginx+`
        name: c
      imagePullSecrets:
      - name: kkbundle.pull.shop
      initContainers:
      - image: `+tool+`
        name: i
      volumes:
      - image:
          reference: `+nginx+`
        name: v
---
apiVersion: batch/v1
kind: CronJob
metadata:
  name: cj
spec:
  jobTemplate:
    spec:
      template:
        spec:
          containers:
          - image: `+nginx+`
            name: c
          imagePullSecrets:
          - name: own
          - name: kkbundle.pull.shop
---
apiVersion: example.com/v1
kind: Widget
metadata:
  name: w
spec:
  image: `+nginx+`
  other: nginx:1.29
---
apiVersion: example.com/v1
kind: Deployment
metadata: {name: not-ours}
spec: {template: {spec: {containers: [{name: c, image: nginx:1.29}]}}}
`); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(sorted(got.pulls), []string{"", "shop"}); diff != "" {
		t.Errorf("namespaces that pull (-got +want):\n%s", diff)
	}
	again, err := m.rewrite(got.text)
	if err != nil || string(again.text) != string(got.text) {
		t.Errorf("a second time changes something: %v\n%s", err, cmp.Diff(string(again.text), string(got.text)))
	}
}

// TestUnled finds images that keep their upstream name: in an environment variable, and in a text of a ConfigMap; two
// that the bundle lacks; and texts that nobody decided.
func TestUnled(t *testing.T) {
	t.Parallel()
	m := testImages(t, &manifest.Bundle{ExcludeImages: []string{"docker.io/library/skip:*", "quay.io/known/doc:1"}})
	got, err := m.rewrite([]byte(`apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  initContainers: [{name: s, image: "skip:1"}, {name: l, image: "lost:1"}]
  containers: [{name: c, image: "nginx:1.29", env: [{name: SIDECAR_IMAGE, value: "registry.lab:5000/team/tool:2"}]}]
---
apiVersion: postgresql.cnpg.io/v1
kind: Cluster
metadata: {name: db}
spec: {imageName: "ghcr.io/cloudnative-pg/postgresql:17"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: operator}
data:
  runner: "registry.lab:5000/team/tool:2"
  other: "see quay.io/known/doc:1 and quay.io/unknown/runner:1"
`))
	if err != nil {
		t.Fatal(err)
	}
	found, err := m.unled(got.text)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found.lacking)
	slices.Sort(found.left)
	if diff := cmp.Diff(found, findings{
		lacking: []string{
			"docker.io/library/lost:1 in Pod p: spec.initContainers[1].image",
			"ghcr.io/cloudnative-pg/postgresql:17 in Cluster db: spec.imageName",
		},
		left: []string{
			"registry.lab:5000/team/tool:2 in ConfigMap operator: data.runner",
			"registry.lab:5000/team/tool:2 in Pod p: spec.containers[0].env[0].value",
		},
		unclear: []string{`"quay.io/unknown/runner:1" (it looks like an image, in an unknown place) in ConfigMap operator: data.other`},
	}, cmp.AllowUnexported(findings{})); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// TestUnnamed finds the images that a manifest lists and that no object has.
func TestUnnamed(t *testing.T) {
	t.Parallel()
	m := testImages(t, &manifest.Bundle{ExcludeImages: []string{"quay.io/pinned/app"}})
	to, _ := m.destination("nginx:1.29")
	got := m.unnamed([]manifest.Image{
		{Name: "nginx:1.29"},
		{Name: "registry.lab:5000/team/tool:2"},
		{Name: "quay.io/pinned/app@" + digestC.String()},
		{Name: "not-in-the-bundle:1"},
	}, map[string]bool{to: true})
	if diff := cmp.Diff(got, []string{"registry.lab:5000/team/tool:2"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

// TestLooseImages: an image of the registry that the bundle lacks runs by its tag, which is said.
func TestLooseImages(t *testing.T) {
	t.Parallel()
	m := testImages(t, &manifest.Bundle{})
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: ["
	for i, image := range []string{"own:1", "own:2@" + digestB.String(), "docker.io/library/nginx:1.29"} {
		pod += "{name: c" + string(rune('0'+i)) + ", image: \"harbor.site/mirror/" + image + "\"},"
	}
	got, err := m.rewrite([]byte(pod + "]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.unled(got.text)
	if err != nil || len(f.loose) != 1 || !strings.HasPrefix(f.loose[0], "harbor.site/mirror/own:1 in ") ||
		len(f.lacking) > 0 || len(f.left) > 0 {
		t.Errorf("%+v, %v", f, err)
	}
}
