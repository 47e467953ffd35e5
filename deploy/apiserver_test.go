package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// serverEnv names a kubeconfig of an API server. The lab starts the server; see TestDeployAPIServer there.
const serverEnv = "KKBUNDLE_TEST_APISERVER"

// An apiServer is a genuine API server with etcd, without controllers and nodes: namespaces are never really gone,
// and no pod runs. The token guest-token is of a user without rights.
type apiServer struct {
	admin *rest.Config
	kube  kubernetes.Interface
}

func connect(t testing.TB) *apiServer {
	t.Helper()
	path := os.Getenv(serverEnv)
	if path == "" {
		t.Skipf("set %s to a kubeconfig of an API server without nodes; the lab's TestDeployAPIServer does", serverEnv)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &apiServer{admin: config}
	if s.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return s
}

// A site is a bundle's files and what they name.
type site struct {
	name, version, deploy string
	files                 map[string]string
	charts                map[string]map[string]string // name: files of version 1.0.0, or of "version" in it
	images                []string
	table                 groups.Table
}

func (s site) bundle(t testing.TB) *bundle.Reader {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Index.Name, b.Index.Version = s.name, s.version
	if err := s.table.Put(&b.Index); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: %s, version: %q}\nplatforms: [linux/amd64]\n", s.name, s.version)
	for _, name := range slices.Sorted(maps.Keys(s.charts)) {
		files := maps.Clone(s.charts[name])
		version := files["version"]
		if version == "" {
			version = "1.0.0"
		}
		delete(files, "version")
		files["Chart.yaml"] = fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n", name, version)
		b.Chart("https://charts.example/"+name+":"+version, name, version, archive(t, name, files))
	}
	if len(s.charts) > 0 {
		text += "charts:\n"
		for _, name := range slices.Sorted(maps.Keys(s.charts)) {
			text += fmt.Sprintf("  - {name: %s, repo: https://charts.example, version: 1.0.0}\n", name)
		}
	}
	for i, ref := range s.images {
		b.Image(ref, bundletest.RandomImage(t, int64(i), 1, 500))
	}
	documents := []bundle.Document{{
		Kind: bundle.KindManifest, Ref: bundle.DocumentManifest,
		Data: []byte(text + s.deploy),
	}}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		documents = append(documents, bundle.Document{
			Kind: bundle.KindManifest, Ref: name,
			Data: []byte(s.files[name]),
		})
	}
	for _, d := range documents {
		it, err := d.Put(t.Context(), b.Cache)
		if err != nil {
			t.Fatal(err)
		}
		b.Item(it)
	}
	return b.Bundle().Reader
}

func archive(t testing.TB, name string, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := tw.WriteHeader(&tar.Header{
			Name: name + "/" + file, Mode: 0o644,
			Size: int64(len(files[file])),
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(files[file])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// webChart has a Deployment, a Secret and a hook.
func webChart(version string) map[string]string {
	return map[string]string{
		"version":     version,
		"values.yaml": "replicas: 1\nimage: app:1.0\npassword: hunter2\n",
		"templates/web.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ .Release.Name }}"}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "{{ .Values.image }}"}]}
`,
		"templates/secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: \"{{ .Release.Name }}\"}\nstringData: {password: {{ .Values.password }}}\n",
		"templates/hook.yaml": `apiVersion: v1
kind: Pod
metadata: {name: "{{ .Release.Name }}-test", annotations: {helm.sh/hook: test}}
spec: {restartPolicy: Never, containers: [{name: c, image: "{{ .Values.image }}"}]}
`,
	}
}

const notesYAML = `apiVersion: v1
kind: Namespace
metadata: {name: notes, labels: {team: a}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: notes}
spec: {size: 3}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec: {schedule: "0 0 * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: "note:1"}]}}}}}
`

func shop(version string) site {
	return site{
		name: "shop", version: version,
		charts: map[string]map[string]string{"web": webChart(version)},
		images: []string{"docker.io/library/app:1.0", "docker.io/library/note:1"},
		files:  map[string]string{"values/web.yaml": "replicas: 2\n", "notes.yaml": notesYAML},
		deploy: "deploy:\n  - {chart: web, release: front, namespace: shop, values: [values/web.yaml], wait: none}\n  - {release: notes, namespace: shop, manifests: [notes.yaml], wait: none}\n",
	}
}

// A foreign is a cluster and a registry with a login.
type foreign struct {
	*apiServer
	registry *registrytest.Server
}

func newForeign(t testing.TB) *foreign {
	t.Helper()
	return &foreign{apiServer: connect(t), registry: registrytest.Start(t,
		registrytest.Options{Auth: registrytest.AuthBasic})}
}

func (f *foreign) options() deploy.Options {
	return deploy.Options{
		Cluster: f.admin, By: "ops@lab",
		Registry: deploy.Given{Endpoint: deploy.Endpoint{
			Pull: f.registry.Host + "/mirror", PullSecret: []byte(`{"auths":{"` + f.registry.Host +
				`":{"username":"u","password":"pull-secret-word"}}}`),
			Options: registry.PushOptions{
				Registry: f.registry.Host + "/mirror", PlainHTTP: true,
				Auth: f.registry.Keychain(),
			},
		}},
	}
}

func actions(r *deploy.Report) string {
	var list []string
	for _, one := range r.Results {
		list = append(list, one.String()+" "+string(one.Action))
	}
	return strings.Join(list, ", ")
}

// TestAPIServer deploys onto a genuine API server: first install, rerun, dry run, upgrade, values of the site, list,
// refusals and removal.
func TestAPIServer(t *testing.T) {
	f := newForeign(t)
	one := shop("1.0.0").bundle(t)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"a dry run shows the objects, and changes nothing", func(t *testing.T) { f.dryRunFirst(t, one) }},
		{"an image that the bundle lacks stops it before anything changes", f.missingImage},
		{"it is installed, with images and pull secrets of the registry", func(t *testing.T) { f.first(t, one) }},
		{"a rerun changes nothing", func(t *testing.T) { f.rerun(t, one) }},
		{
			"a dry run of other values shows the difference, and no secret",
			func(t *testing.T) { f.dryRunValues(t, one) },
		},
		{"a second run is refused while one is at work", func(t *testing.T) { f.locked(t, one) }},
		{"an upgrade is one", f.upgrade},
		{"a release of another bundle is refused", f.taken},
		{"a right that is missing is named", func(t *testing.T) { f.forbidden(t, one) }},
		{"an immutable field is named", f.immutable},
		{"it is listed", f.list},
		{"it is removed, but what may hold data", f.remove},
	} {
		if !t.Run(step.name, step.run) {
			return
		}
	}
}

func (f *foreign) dryRunFirst(t *testing.T, b *bundle.Reader) {
	o := f.options()
	o.DryRun = true
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"+++ Deployment.apps/v1 shop/front (deployed)", "+      - image: " + f.registry.Host +
			"/mirror/docker.io/library/app:1.0@sha256:", "+  replicas: 2",
		"+++ Widget.example.com/v1 notes/w (deployed)", "(masked)",
	} {
		if !strings.Contains(report.Diff, want) {
			t.Errorf("the diff lacks %q:\n%s", want, report.Diff)
		}
	}
	if strings.Contains(report.Diff, "hunter2") || report.Pushed.Missing == 0 {
		t.Errorf("missing: %d\n%s", report.Pushed.Missing, report.Diff)
	}
	if list, err := f.kube.CoreV1().Namespaces().List(t.Context(),
		metav1.ListOptions{LabelSelector: deploy.ManagedLabel}); err != nil || len(list.Items) > 0 {
		t.Errorf("namespaces: %v, %v", list.Items, err)
	}
}

func (f *foreign) missingImage(t *testing.T) {
	s := shop("0.9.0")
	s.images = s.images[:1]
	_, err := deploy.Run(t.Context(), s.bundle(t), f.options())
	var missing *deploy.MissingError
	if !errors.As(err, &missing) || len(missing.Images) != 1 ||
		!strings.HasPrefix(missing.Images[0], "docker.io/library/note:1 in CronJob nightly") {
		t.Fatalf("got %v", err)
	}
	if _, err := f.kube.CoreV1().Namespaces().Get(t.Context(), "shop", metav1.GetOptions{}); err == nil {
		t.Error("the namespace exists")
	}
	if n := f.registry.Count("PUT", ""); n != 0 {
		t.Errorf("%d uploads", n)
	}
}

func (f *foreign) first(t *testing.T, b *bundle.Reader) {
	report, err := deploy.Run(t.Context(), b, f.options())
	if err != nil {
		t.Fatal(err)
	}
	if got := actions(report); got != "shop/front installed, shop/notes applied" {
		t.Errorf("got %s", got)
	}
	web, err := f.kube.AppsV1().Deployments("shop").Get(t.Context(), "front", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	app, _ := b.Find(bundle.KindImage, "docker.io/library/app:1.0", "")
	spec := web.Spec.Template.Spec
	if want := f.registry.Host + "/mirror/docker.io/library/app:1.0@" +
		app.Descriptor.Digest.String(); spec.Containers[0].Image != want {
		t.Errorf("image %s, want %s", spec.Containers[0].Image, want)
	}
	if *web.Spec.Replicas != 2 || len(spec.ImagePullSecrets) != 1 ||
		spec.ImagePullSecrets[0].Name != "kkbundle.pull.shop" {
		t.Errorf("%d replicas, pull secrets %v", *web.Spec.Replicas, spec.ImagePullSecrets)
	}
	secret, err := f.kube.CoreV1().Secrets("shop").Get(t.Context(), "kkbundle.pull.shop", metav1.GetOptions{})
	if err != nil || !strings.Contains(string(secret.Data[".dockerconfigjson"]), "pull-secret-word") ||
		secret.Labels[deploy.NameLabel] != "shop" {
		t.Errorf("pull secret: %v, %v", secret, err)
	}
	nightly, err := f.kube.BatchV1().CronJobs("shop").Get(t.Context(), "nightly", metav1.GetOptions{})
	if err != nil || !strings.HasPrefix(nightly.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Image,
		f.registry.Host) {
		t.Errorf("CronJob: %v", err)
	}
	record, err := f.kube.CoreV1().ConfigMaps(deploy.Namespace).Get(t.Context(), "kkbundle.deploy.shop",
		metav1.GetOptions{})
	if err != nil || strings.Contains(record.Data["record.json"], "pull-secret-word") {
		t.Errorf("record: %v", err)
	}
	f.releaseHook(t)
}

// releaseHook holds that Helm's record of the release has the hook with the registry's image.
func (f *foreign) releaseHook(t *testing.T) {
	list, err := f.kube.CoreV1().Secrets("shop").List(t.Context(),
		metav1.ListOptions{LabelSelector: "owner=helm,name=front"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d releases, %v", len(list.Items), err)
	}
	text := unpackRelease(t, list.Items[0].Data["release"])
	if n := strings.Count(text, f.registry.Host+"/mirror/docker.io/library/app:1.0@sha256:"); n != 2 {
		t.Errorf("the release has the registry's image %d times, want it in the Deployment and in the hook", n)
	}
}

func (f *foreign) versions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	add := func(kind string, items any, err error) {
		if err != nil {
			t.Fatal(err)
		}
		list, err := meta.ExtractList(items.(interface {
			metav1.ListInterface
			runtimeObject
		}))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			m, _ := meta.Accessor(o)
			all[kind+" "+m.GetNamespace()+"/"+m.GetName()] = m.GetResourceVersion()
		}
	}
	none := metav1.ListOptions{}
	secrets, err := f.kube.CoreV1().Secrets("").List(t.Context(), none)
	add("Secret", secrets, err)
	configs, err := f.kube.CoreV1().ConfigMaps("").List(t.Context(), none)
	add("ConfigMap", configs, err)
	namespaces, err := f.kube.CoreV1().Namespaces().List(t.Context(), none)
	add("Namespace", namespaces, err)
	deployments, err := f.kube.AppsV1().Deployments("").List(t.Context(), none)
	add("Deployment", deployments, err)
	jobs, err := f.kube.BatchV1().CronJobs("").List(t.Context(), none)
	add("CronJob", jobs, err)
	return all
}

func (f *foreign) rerun(t *testing.T, b *bundle.Reader) {
	before := f.versions(t)
	report, err := deploy.Run(t.Context(), b, f.options())
	if err != nil {
		t.Fatal(err)
	}
	if got := actions(report); report.Changed() != 0 || got != "shop/front unchanged, shop/notes unchanged" {
		t.Errorf("got %s", got)
	}
	if after := f.versions(t); !maps.Equal(before, after) {
		t.Errorf("before %v\nafter %v", before, after)
	}
	o := f.options()
	o.DryRun = true
	if report, err = deploy.Run(t.Context(), b, o); err != nil || report.Diff != "" || report.Pushed.Missing != 0 {
		t.Errorf("a dry run after it: %v\n%s", err, report.Diff)
	}
}

func (f *foreign) dryRunValues(t *testing.T, b *bundle.Reader) {
	o := f.options()
	o.DryRun = true
	o.Values = []deploy.Value{
		{Release: "front", Set: "password=other-secret"},
		{Release: "shop/front", File: "prod.yaml", Data: []byte("replicas: 5\n")},
	}
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-  replicas: 2\n+  replicas: 5\n", "-  password: (masked", "+  password: (masked"} {
		if !strings.Contains(report.Diff, want) {
			t.Errorf("the diff lacks %q:\n%s", want, report.Diff)
		}
	}
	if strings.Contains(report.Diff, "image:") && strings.Contains(report.Diff, "+        image") ||
		strings.Contains(report.Diff, "secret\n") || strings.Count(report.Diff, "\n@@") != 2 {
		t.Errorf("the diff has more than two changes:\n%s", report.Diff)
	}
	o.Values = []deploy.Value{{Release: "back", Set: "a=b"}}
	var wrong *deploy.ValueError
	if _, err := deploy.Run(t.Context(), b, o); !errors.As(err, &wrong) ||
		!strings.Contains(err.Error(), "its releases: shop/front") {
		t.Errorf("a release that is not there: %v", err)
	}
}

func (f *foreign) locked(t *testing.T, b *bundle.Reader) {
	leases := f.kube.CoordinationV1().Leases(deploy.Namespace)
	lease, err := leases.Get(t.Context(), "kkbundle.deploy", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity != nil {
		t.Fatalf("the lock is held after a run: %v, %v", lease, err)
	}
	// The lock is as young an hour later: a busy machine may need more than its minute to look at it.
	who, now, seconds := "eva@laptop (process 7)", metav1.NewMicroTime(time.Now().Add(time.Hour)), int32(60)
	lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &who, &now, &seconds
	if lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var locked *deploy.LockedError
	if _, err := deploy.Run(t.Context(), b, f.options()); !errors.As(err, &locked) || locked.Who != who {
		t.Errorf("got %v", err)
	}
	old := metav1.NewMicroTime(time.Now().Add(-2 * time.Minute)) // its run was killed
	lease.Spec.RenewTime = &old
	if _, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := deploy.Run(t.Context(), b, f.options()); err != nil {
		t.Errorf("a lock of a killed run: %v", err)
	}
}

func (f *foreign) upgrade(t *testing.T) {
	s := shop("1.1.0")
	s.files["notes.yaml"] = strings.ReplaceAll(notesYAML, "size: 3", "size: 4")
	report, err := deploy.Run(t.Context(), s.bundle(t), f.options())
	if err != nil {
		t.Fatal(err)
	}
	if got := actions(report); got != "shop/front upgraded, shop/notes applied" || report.Results[0].Was != "1.0.0" ||
		report.Results[0].Version != "1.1.0" {
		t.Errorf("got %s, %+v", got, report.Results[0])
	}
}

func (f *foreign) taken(t *testing.T) {
	s := shop("1.0.0")
	s.name = "other"
	var taken *deploy.TakenError
	if _, err := deploy.Run(t.Context(), s.bundle(t), f.options()); !errors.As(err, &taken) ||
		taken.By != "bundle shop" {
		t.Errorf("got %v", err)
	}
}

func (f *foreign) forbidden(t *testing.T, b *bundle.Reader) {
	o := f.options()
	guest := rest.CopyConfig(f.admin)
	guest.BearerToken = "guest-token"
	o.Cluster = guest
	_, err := deploy.Run(t.Context(), b, o)
	if err == nil || !strings.Contains(err.Error(), `User "guest" cannot get resource "namespaces"`) ||
		!strings.Contains(hint(err), "verb and resource") {
		t.Errorf("got %v, hint %q", err, hint(err))
	}
	guest.BearerToken = "wrong"
	var unreachable *deploy.UnreachableError
	if _, err := deploy.Run(t.Context(), b, o); !errors.As(err, &unreachable) ||
		!strings.Contains(hint(err), "renew the credentials") {
		t.Errorf("got %v, hint %q", err, hint(err))
	}
	guest.Host = "https://127.0.0.1:1"
	if _, err := deploy.Run(t.Context(), b, o); !errors.As(err, &unreachable) ||
		!strings.Contains(hint(err), "--context") {
		t.Errorf("got %v, hint %q", err, hint(err))
	}
}

func hint(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		return hinted.Hint()
	}
	return ""
}

func (f *foreign) immutable(t *testing.T) {
	s := shop("1.2.0")
	s.charts["web"]["templates/web.yaml"] = strings.ReplaceAll(s.charts["web"]["templates/web.yaml"], "app: web",
		"app: other")
	_, err := deploy.Run(t.Context(), s.bundle(t), f.options())
	if err == nil || !strings.Contains(err.Error(), "field is immutable") ||
		!strings.Contains(err.Error(), "rolled back to revision") || !strings.Contains(hint(err), "delete the object") {
		t.Errorf("got %v, hint %q", err, hint(err))
	}
}

func (f *foreign) list(t *testing.T) {
	list, err := deploy.List(t.Context(), f.admin, nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	r := list[0]
	if r.Name != "shop" || r.Bundle != "1.2.0" || r.State != deploy.StateFailed || r.By != "ops@lab" ||
		len(r.Parts) != 2 || r.Parts[0].Status != "deployed" {
		t.Errorf("%+v", r)
	}
}

func (f *foreign) remove(t *testing.T) {
	if _, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "other"}); hint(err) != "" ||
		err == nil || !strings.Contains(err.Error(), "deployed: shop") {
		t.Errorf("another name: %v", err)
	}
	mine, err := f.kube.CoreV1().ConfigMaps("notes").Create(t.Context(), configMap("mine"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "shop", By: "ops@lab"})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(kept,
		"; "); got != "CustomResourceDefinition widgets.example.com: it may hold data; Namespace notes: it still has ConfigMap "+mine.Name {
		t.Errorf("kept %s", got)
	}
	all, err := f.kube.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) > 0 {
		t.Errorf("deployments: %v, %v", all.Items, err)
	}
	for name, gone := range map[string]bool{"shop": true, deploy.Namespace: true, "notes": false} {
		live, err := f.kube.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || (live.DeletionTimestamp != nil) != gone { // no controller finishes it here
			t.Errorf("namespace %s: deleted %v, want %v (%v)", name, live.DeletionTimestamp != nil, gone, err)
		}
	}
	if list, err := deploy.List(t.Context(), f.admin, nil); err != nil || len(list) > 0 {
		t.Errorf("still deployed: %v, %v", list, err)
	}
}

// operated is a site whose operator makes pods: the bundle has their image, and no object names it.
func operated(version string) site {
	s := shop(version)
	s.name, s.images = "operated", append(s.images, "docker.io/library/worker:1", "quay.io/team/sidecar:latest")
	s.deploy = strings.ReplaceAll(s.deploy, "namespace: shop", "namespace: operated") +
		"images: [worker:1, quay.io/team/sidecar]\n"
	s.files["notes.yaml"] = strings.ReplaceAll(strings.ReplaceAll(notesYAML, "name: notes,", "name: widgets,"),
		"namespace: notes", "namespace: widgets")
	return s
}

// TestAPIServerRedirect holds that pods which an operator makes get the registry's images from an admission policy,
// in the namespaces of the bundle and nowhere else.
func TestAPIServerRedirect(t *testing.T) {
	f := newForeign(t)
	b := operated("1.0.0").bundle(t)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{
			"without the policy, the images are named before the first change",
			func(t *testing.T) { f.warnsOfOperators(t, b) },
		},
		{"a dry run shows the policy, and changes nothing", func(t *testing.T) { f.dryRunRedirect(t, b) }},
		{"pods that others make are led to the registry", func(t *testing.T) { f.redirects(t, b) }},
		{"a container that a webhook adds is led to the registry", func(t *testing.T) { f.redirectsInjected(t, b) }},
		{
			"a rerun without the flag keeps the policy and changes nothing",
			func(t *testing.T) { f.redirectsAgain(t, b) },
		},
		{"another digest arrives with the next version", f.redirectsNext},
		{"--redirect-pods=false removes the policy", f.redirectsNoMore},
		{"a removal removes the policy", f.removesRedirect},
	} {
		if !t.Run(step.name, step.run) {
			return
		}
	}
}

// TestAPIServerNoPolicies runs on an API server whose plugin for policies is off.
func TestAPIServerNoPolicies(t *testing.T) {
	f := newForeign(t)
	o := f.options()
	o.Redirect = deploy.RedirectPods
	_, err := deploy.Run(t.Context(), operated("1.0.0").bundle(t), o)
	var not *deploy.RedirectError
	if !errors.As(err, &not) || !strings.Contains(err.Error(), "does not apply the policy kkbundle.deploy.operated") ||
		!strings.Contains(hint(err), "admission plugin") {
		t.Fatalf("got %v, hint %q", err, hint(err))
	}
	if _, err := f.kube.AppsV1().Deployments("operated").Get(t.Context(), "front", metav1.GetOptions{}); err == nil {
		t.Error("the release was installed")
	}
	f.policies(t, 0)
	if _, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "operated"}); err != nil {
		t.Error(err)
	}
}

func (f *foreign) warnsOfOperators(t *testing.T, b *bundle.Reader) {
	o := f.options()
	o.DryRun = true
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"image docker.io/library/worker:1 is in no object",
		"image quay.io/team/sidecar:latest is in no object",
	} {
		if !strings.Contains(strings.Join(report.Warnings, "\n"), want) {
			t.Errorf("no warning %q:\n%s", want, strings.Join(report.Warnings, "\n"))
		}
	}
}

func (f *foreign) dryRunRedirect(t *testing.T, b *bundle.Reader) {
	o := f.options()
	o.DryRun, o.Redirect = true, deploy.RedirectPods
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(report.Diff,
		"+++ MutatingAdmissionPolicy.admissionregistration.k8s.io/v1 kkbundle.deploy.operated (deployed)") ||
		len(report.Warnings) > 0 {
		t.Errorf("warnings %q\n%s", report.Warnings, report.Diff)
	}
	f.policies(t, 0)
}

// policies holds the number of policies and bindings.
func (f *foreign) policies(t *testing.T, want int) {
	t.Helper()
	policies, err := f.kube.AdmissionregistrationV1().MutatingAdmissionPolicies().List(t.Context(),
		metav1.ListOptions{LabelSelector: deploy.NameLabel})
	if err != nil {
		t.Fatal(err)
	}
	bindings, err := f.kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().List(t.Context(),
		metav1.ListOptions{LabelSelector: deploy.NameLabel})
	if err != nil || len(policies.Items) != want || len(bindings.Items) != want {
		t.Errorf("%d policies, %d bindings, want %d (%v)", len(policies.Items), len(bindings.Items), want, err)
	}
}

// operatorPod is a pod as an operator makes it.
func (f *foreign) operatorPod(t *testing.T, namespace string) *corev1.Pod {
	t.Helper()
	pod, err := f.kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "i", Image: "quay.io/team/sidecar"}},
			Containers: []corev1.Container{
				{Name: "a", Image: "docker.io/library/other:1"},
				{Name: "b", Image: "worker:1", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}},
			},
			Volumes: []corev1.Volume{
				{
					Name:         "e",
					VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
				},
				{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "index.docker.io/library/worker:1"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func (f *foreign) destination(b *bundle.Reader, ref string) string {
	it, _ := b.Find(bundle.KindImage, ref, "")
	return f.registry.Host + "/mirror/" + ref + "@" + it.Descriptor.Digest.String()
}

func (f *foreign) redirects(t *testing.T, b *bundle.Reader) {
	if _, err := f.kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := f.options()
	o.Redirect, o.RedirectNamespaces = deploy.RedirectPods, []string{"customers"}
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(report.Redirected, " "); got != "customers kkbundle operated widgets" ||
		len(report.Warnings) > 0 {
		t.Errorf("namespaces %s, warnings %q", got, report.Warnings)
	}
	for _, namespace := range []string{"operated", "widgets", "customers"} {
		pod := f.operatorPod(t, namespace)
		worker := f.destination(b, "docker.io/library/worker:1")
		got := []string{
			pod.Spec.InitContainers[0].Image, pod.Spec.Containers[0].Image, pod.Spec.Containers[1].Image,
			pod.Spec.Volumes[1].Image.Reference,
		}
		if want := []string{
			f.destination(b, "quay.io/team/sidecar:latest"), "docker.io/library/other:1", worker,
			worker,
		}; !slices.Equal(got, want) {
			t.Errorf("%s: images %q, want %q", namespace, got, want)
		}
		if s := pod.Spec.ImagePullSecrets; len(s) != 1 || s[0].Name != "kkbundle.pull.operated" ||
			len(pod.Spec.Containers[1].Env) != 1 {
			t.Errorf("%s: pull secrets %v, container %+v", namespace, s, pod.Spec.Containers[1])
		}
		if _, err := f.kube.CoreV1().Secrets(namespace).Get(t.Context(), "kkbundle.pull.operated",
			metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if pod := f.operatorPod(t, "elsewhere"); pod.Spec.Containers[1].Image != "worker:1" ||
		pod.Spec.ImagePullSecrets != nil {
		t.Errorf("a namespace that is not the bundle's: %+v", pod.Spec)
	}
}

// injector is a webhook that adds a container to each pod, as service meshes do.
func injector(t *testing.T) (url string, ca []byte) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID string } }
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		patch := `[{"op": "add", "path": "/spec/containers/-", "value": {"name": "injected", "image": "quay.io/team/sidecar:latest"}}]`
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
			"response": map[string]any{
				"uid": review.Request.UID, "allowed": true, "patchType": "JSONPatch",
				"patch": []byte(patch),
			},
		})
	}))
	t.Cleanup(server.Close)
	return server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func (f *foreign) redirectsInjected(t *testing.T, b *bundle.Reader) {
	url, ca := injector(t)
	webhooks := f.kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	none := admissionv1.SideEffectClassNone
	hook := &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "injector"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "injector.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig:      admissionv1.WebhookClientConfig{URL: &url, CABundle: ca},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "operated"}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{
					APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"pods"},
				},
			}},
		}},
	}
	if _, err := webhooks.Create(t.Context(), hook, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := webhooks.Delete(t.Context(), hook.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		pod := f.operatorPod(t, "operated")
		if n := len(pod.Spec.Containers); n == 3 {
			if got, want := pod.Spec.Containers[2].Image, f.destination(b, "quay.io/team/sidecar:latest"); got != want {
				t.Errorf("the injected container has image %s, want %s", got, want)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("the webhook is not called")
		}
	}
}

func (f *foreign) redirectsAgain(t *testing.T, b *bundle.Reader) {
	before := f.versions(t)
	report, err := deploy.Run(t.Context(), b, f.options())
	if err != nil {
		t.Fatal(err)
	}
	if after := f.versions(t); report.Changed() != 0 || !maps.Equal(before, after) ||
		!slices.Contains(report.Redirected, "customers") {
		t.Errorf("%d changed, namespaces %q\nbefore %v\nafter %v", report.Changed(), report.Redirected, before, after)
	}
	f.policies(t, 1)
}

func (f *foreign) redirectsNext(t *testing.T) {
	s := operated("1.1.0")
	// other bytes for each
	s.images = []string{
		"docker.io/library/note:1", "docker.io/library/app:1.0", "quay.io/team/sidecar:latest",
		"docker.io/library/worker:1",
	}
	b := s.bundle(t)
	if _, err := deploy.Run(t.Context(), b, f.options()); err != nil {
		t.Fatal(err)
	}
	if pod := f.operatorPod(t, "operated"); pod.Spec.Containers[1].Image != f.destination(b,
		"docker.io/library/worker:1") {
		t.Errorf("image %s", pod.Spec.Containers[1].Image)
	}
}

func (f *foreign) redirectsNoMore(t *testing.T) {
	o := f.options()
	o.Redirect = deploy.RedirectNothing
	b := operated("1.1.0").bundle(t)
	if _, err := deploy.Run(t.Context(), b, o); err != nil {
		t.Fatal(err)
	}
	f.policies(t, 0)
	// Removed policies are applied for a moment.
	for end := time.Now().Add(2 * time.Minute); f.operatorPod(t,
		"operated").Spec.Containers[1].Image != "worker:1"; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the policy is still applied")
		}
	}
	report, err := deploy.Run(t.Context(), b, f.options())
	if got := strings.Join(report.Warnings, "\n"); err != nil || !strings.Contains(got, "pod operated/made-") ||
		!strings.Contains(got, "has image worker:1, which nodes pull from upstream") ||
		strings.Contains(got, "other:1") {
		t.Errorf("%v; warnings:\n%s", err, got)
	}
	f.policies(t, 0)
}

func (f *foreign) removesRedirect(t *testing.T) {
	o := f.options()
	o.Redirect = deploy.RedirectPods
	if _, err := deploy.Run(t.Context(), operated("1.1.0").bundle(t), o); err != nil {
		t.Fatal(err)
	}
	f.policies(t, 1)
	if _, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "operated"}); err != nil {
		t.Fatal(err)
	}
	f.policies(t, 0)
}
