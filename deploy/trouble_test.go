package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/deploy"
)

// TestAPIServerTrouble deploys onto a genuine API server what goes wrong at sites: runs that end at any request,
// several runs at once, objects and releases of others, definitions that come with the bundle.
func TestAPIServerTrouble(t *testing.T) {
	f := newForeign(t)
	// Its record keeps the namespace kkbundle: without controllers, a deleted namespace could not be made again.
	if _, err := deploy.Run(t.Context(), plainYAML("stay", "stay", settings("a", "1")).bundle(t),
		f.options()); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"an install that ends at any request is continued, and removed without a trace", f.cutInstalls},
		{"an upgrade that ends at any request is continued", f.cutUpgrades},
		{"a removal that ends at any request is continued, by remove or by deploy", f.cutRemovals},
		{"of several runs one works, and the others name it", f.several},
		{"a namespace that ends is named before anything changes", f.terminating},
		{"fields of other managers are named before anything changes", f.conflicts},
		{"objects follow the definitions of earlier parts", f.definitions},
		{"a release of helm is refused, or adopted", f.helmRelease},
		{"an object of somebody else in a chart is refused as Helm does", f.helmOwnership},
		{"a change made with helm is no deployed state", f.helmUpgrade},
		{"a rollback made with helm to a state of ours is that state", f.helmRollback},
		{"helm at work is not disturbed", f.helmPending},
		{"what a newer version lacks is named, and pruned if it is ours", f.prune},
		{"what others have made since is neither pruned nor removed", f.since},
	} {
		t.Run(step.name, step.run)
	}
}

// plainYAML is a site of one part of YAML.
func plainYAML(name, namespace, text string) site {
	return site{
		name: name, version: "1", files: map[string]string{"all.yaml": text},
		deploy: "deploy:\n  - {release: " + name + ", namespace: " + namespace +
			", manifests: [all.yaml], wait: none}\n",
	}
}

func settings(name, value string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {key: %q}\n", name, value)
}

// shopIn is shop in other namespaces.
func shopIn(version, namespace string) site {
	s := shop(version)
	s.name = "cut"
	s.deploy = strings.ReplaceAll(s.deploy, "namespace: shop", "namespace: "+namespace)
	s.files["notes.yaml"] = strings.ReplaceAll(strings.ReplaceAll(notesYAML, "name: notes,", "name: notes-"+namespace+
		","), "namespace: notes", "namespace: notes-"+namespace)
	if version != "1.0.0" {
		s.files["notes.yaml"] = strings.ReplaceAll(s.files["notes.yaml"], "size: 3", "size: 4")
	}
	return s
}

// A line is the connection of a run that ends after some changes: of the API server's state, a killed run and an API
// server that is gone are the same.
type line struct {
	http.RoundTripper
	left *atomic.Int64
}

func (l line) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && l.left.Load() >= 0 || r.Method != http.MethodGet && l.left.Add(-1) >= 0 {
		return l.RoundTripper.RoundTrip(r)
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// cut returns a connection that ends after a number of changes, and how many are left.
func (f *foreign) cut(after int) (*rest.Config, *atomic.Int64) {
	left := &atomic.Int64{}
	left.Store(int64(after))
	config := rest.CopyConfig(f.admin)
	config.WrapTransport = func(rt http.RoundTripper) http.RoundTripper { return line{rt, left} }
	return config, left
}

// expire lets the lock of an ended run be as old as it is after a minute.
func (f *foreign) expire(t *testing.T) {
	t.Helper()
	leases := f.kube.CoordinationV1().Leases(deploy.Namespace)
	lease, err := leases.Get(t.Context(), "kkbundle.deploy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old := metav1.NewMicroTime(time.Now().Add(-2 * time.Minute))
	lease.Spec.RenewTime = &old
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// isLost holds that an error of a lost connection says so, with a remedy.
func isLost(t *testing.T, after int, err error) {
	t.Helper()
	var network *url.Error
	if err == nil || !strings.Contains(err.Error(), "connection refused") && !errors.As(err, &network) {
		t.Errorf("after %d changes: %v", after, err)
	} else if !strings.Contains(hint(err), "run the same command again") &&
		!strings.Contains(hint(err), "check the server") {
		t.Errorf("after %d changes: %v, hint %q", after, err, hint(err))
	}
}

// cutEach makes a change with a cluster whose API server is lost after 0, 1, 2 ... requests that change something,
// until the change ends before. That must be after at least least of them. then looks at the cluster after each loss.
func (f *foreign) cutEach(t *testing.T, least int, change func(after int, cluster *rest.Config) error,
	then func(after int),
) {
	t.Helper()
	const most = 60
	for after := range most {
		cluster, left := f.cut(after)
		err := change(after, cluster)
		if left.Load() >= 0 {
			if err != nil || after < least {
				t.Errorf("%d changes: %v", after, err)
			}
			t.Logf("it ended after %d changes", after)
			return
		}
		if err != nil { // the last change is the end of the lock
			isLost(t, after, err)
		}
		f.expire(t)
		then(after)
	}
	t.Errorf("it did not end within %d changes", most)
}

// deployedAgain holds that the next run completes a bundle, and that the one after it changes nothing.
func (f *foreign) deployedAgain(t *testing.T, after int, b *bundle.Reader) {
	t.Helper()
	if _, err := deploy.Run(t.Context(), b, f.options()); err != nil {
		t.Errorf("after %d changes, again: %v", after, err)
	}
	if report, err := deploy.Run(t.Context(), b, f.options()); err != nil || report.Changed() != 0 {
		t.Errorf("after %d changes, a third time: %v, %s", after, err, actions(report))
	}
}

// deployTo deploys to a cluster.
func (f *foreign) deployTo(t *testing.T, b *bundle.Reader, cluster *rest.Config) error {
	t.Helper()
	o := f.options()
	o.Cluster = cluster
	_, err := deploy.Run(t.Context(), b, o)
	return err
}

func (f *foreign) cutInstalls(t *testing.T) {
	const least = 12
	namespace := func(after int) string { return fmt.Sprintf("cut%d", after) }
	f.cutEach(t, least, func(after int, cluster *rest.Config) error {
		return f.deployTo(t, shopIn("1.0.0", namespace(after)).bundle(t), cluster)
	}, func(after int) {
		f.deployedAgain(t, after, shopIn("1.0.0", namespace(after)).bundle(t))
		kept, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "cut"})
		if got := strings.Join(kept, "; "); err != nil ||
			got != "CustomResourceDefinition widgets.example.com: it may hold data" {
			t.Errorf("after %d changes, removed: %v, kept %s", after, err, got)
		}
		for _, name := range []string{namespace(after), "notes-" + namespace(after)} {
			if live, err := f.kube.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err != nil ||
				live.DeletionTimestamp == nil {
				t.Errorf("after %d changes: namespace %s stays: %v", after, name, err)
			}
		}
	})
}

func (f *foreign) cutUpgrades(t *testing.T) {
	const least = 8
	version := func(after int) string { return []string{"1.0.0", "1.1.0"}[after%2] }
	if _, err := deploy.Run(t.Context(), shopIn(version(1), "up").bundle(t), f.options()); err != nil {
		t.Fatal(err)
	}
	f.cutEach(t, least, func(after int, cluster *rest.Config) error {
		return f.deployTo(t, shopIn(version(after), "up").bundle(t), cluster)
	}, func(after int) {
		f.deployedAgain(t, after, shopIn(version(after), "up").bundle(t))
	})
}

func (f *foreign) cutRemovals(t *testing.T) {
	const least = 6
	namespace := func(after int) string { return fmt.Sprintf("gone%d", after) }
	lives := func(name string) bool {
		live, err := f.kube.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && live.DeletionTimestamp == nil
	}
	f.cutEach(t, least, func(after int, cluster *rest.Config) error {
		if _, err := deploy.Run(t.Context(), shopIn("1.0.0", namespace(after)).bundle(t), f.options()); err != nil {
			t.Fatal(err)
		}
		_, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: cluster, Name: "cut"})
		return err
	}, func(after int) {
		if after%2 == 0 && lives("notes-"+namespace(after)) && lives(namespace(after)) {
			if _, err := deploy.Run(t.Context(), shopIn("1.0.0", namespace(after)).bundle(t), f.options()); err != nil {
				t.Errorf("after %d changes, deployed again: %v", after, err)
			}
		}
		var unknown *deploy.UnknownError
		if _, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "cut"}); err != nil &&
			!errors.As(err, &unknown) {
			t.Errorf("after %d changes, removed again: %v", after, err)
		}
	})
}

// A gate is a registry that opens late.
type gate struct {
	deploy.Registry
	open chan struct{}
}

func (g gate) Open(ctx context.Context, c *rest.Config, dryRun bool) (deploy.Endpoint, error) {
	<-g.open
	return g.Registry.Open(ctx, c, dryRun)
}

func (f *foreign) several(t *testing.T) {
	const runs = 4
	if err := f.kube.CoordinationV1().Leases(deploy.Namespace).Delete(t.Context(), "kkbundle.deploy",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b := plainYAML("several", "several", settings("a", "1")).bundle(t)
	open, refused := make(chan struct{}), make(chan error, runs)
	var done sync.WaitGroup
	for i := range runs {
		o := f.options()
		o.By, o.Registry = fmt.Sprintf("ops%d@lab", i), gate{o.Registry, open}
		done.Go(func() {
			_, err := deploy.Run(t.Context(), b, o)
			refused <- err
		})
	}
	for range runs - 1 {
		var locked *deploy.LockedError
		if err := <-refused; !errors.As(err, &locked) || !strings.HasPrefix(locked.Who, "ops") {
			t.Errorf("got %v", err)
		}
	}
	close(open)
	if err := <-refused; err != nil {
		t.Errorf("none worked: %v", err)
	}
	done.Wait()
}

func (f *foreign) terminating(t *testing.T) {
	s := plainYAML("ending", "dying", settings("a", "1"))
	s.files["first.yaml"] = settings("first", "1")
	s.deploy = strings.Replace(s.deploy, "deploy:\n",
		"deploy:\n  - {release: first, namespace: living, manifests: [first.yaml], wait: none}\n", 1)
	namespaces := f.kube.CoreV1().Namespaces()
	namespace := f.namespace(t, "dying")
	if err := namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := deploy.Run(t.Context(), s.bundle(t), f.options())
	if err == nil || !strings.Contains(err.Error(), "Namespace dying") ||
		!strings.Contains(hint(err), "wait until the namespace is gone") {
		t.Errorf("got %v, hint %q", err, hint(err))
	}
	if _, err := namespaces.Get(t.Context(), "living", metav1.GetOptions{}); err == nil {
		t.Error("the part before it was made")
	}
}

// namespace makes a namespace and returns its name.
func (f *foreign) namespace(t *testing.T, name string) string {
	t.Helper()
	one := &metav1.ObjectMeta{Name: name}
	if _, err := f.kube.CoreV1().Namespaces().Patch(t.Context(), name, types.ApplyPatchType,
		fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, one.Name),
		metav1.PatchOptions{FieldManager: "test"}); err != nil {
		t.Fatal(err)
	}
	return name
}

// applyAs applies a ConfigMap as another program.
func (f *foreign) applyAs(t *testing.T, manager, namespace, name, value string) {
	t.Helper()
	text := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"key":%q}}`, name,
		value)
	if _, err := f.kube.CoreV1().ConfigMaps(namespace).Patch(t.Context(), name, types.ApplyPatchType, text,
		metav1.PatchOptions{FieldManager: manager, Force: new(true)}); err != nil {
		t.Fatal(err)
	}
}

func (f *foreign) value(t *testing.T, namespace, name string) string {
	t.Helper()
	m, err := f.kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "none"
	}
	return m.Data["key"]
}

func (f *foreign) conflicts(t *testing.T) {
	f.namespace(t, "shared")
	f.applyAs(t, "argocd", "shared", "one", "theirs")
	f.applyAs(t, "flux", "shared", "two", "theirs")
	b := plainYAML("shared", "shared", settings("first", "ours")+settings("one", "ours")+settings("two",
		"ours")).bundle(t)
	_, err := deploy.Run(t.Context(), b, f.options())
	if err == nil || !strings.Contains(hint(err), "--force-conflicts") {
		t.Fatalf("got %v, hint %q", err, hint(err))
	}
	for _, want := range []string{"ConfigMap.v1 shared/one", "argocd", "ConfigMap.v1 shared/two", "flux", ".data.key"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
	if got := f.value(t, "shared", "first"); got != "none" {
		t.Errorf("the object before them is %s", got)
	}
	o := f.options()
	o.Force = true
	if _, err := deploy.Run(t.Context(), b, o); err != nil || f.value(t, "shared", "two") != "ours" {
		t.Errorf("forced: %v, %s", err, f.value(t, "shared", "two"))
	}
}

const definition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.trouble.example}
spec:
  group: trouble.example
  names: {kind: %[2]s, plural: %[1]ss}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

const object = "apiVersion: trouble.example/v1\nkind: %s\nmetadata: {name: %s}\n"

func (f *foreign) definitions(t *testing.T) {
	s := site{
		name: "kinds", version: "1",
		charts: map[string]map[string]string{
			"own": {
				"crds/gear.yaml":      fmt.Sprintf(definition, "gear", "Gear"),
				"templates/gear.yaml": fmt.Sprintf(object, "Gear", "own"),
			},
			"operator": {"templates/bolt.yaml": fmt.Sprintf(definition, "bolt", "Bolt")},
			"user":     {"templates/use.yaml": fmt.Sprintf(object, "Bolt", "chart")},
		},
		files: map[string]string{"use.yaml": fmt.Sprintf(object, "Bolt", "plain")},
		deploy: `deploy:
  - {chart: own, namespace: kinds, wait: none}
  - {chart: operator, namespace: kinds, wait: none}
  - {chart: user, namespace: kinds, wait: none}
  - {release: plain, namespace: kinds, manifests: [use.yaml], wait: none}
`,
	}
	b := s.bundle(t)
	o := f.options()
	o.DryRun = true
	if report, err := deploy.Run(t.Context(), b, o); err != nil || !strings.Contains(report.Diff, "Bolt") {
		t.Errorf("a dry run: %v", err)
	}
	report, err := deploy.Run(t.Context(), b, f.options())
	if err != nil {
		t.Fatal(err)
	}
	if got := actions(report); got != "kinds/own installed, kinds/operator installed, kinds/user installed, kinds/plain applied" {
		t.Errorf("got %s", got)
	}
	if report, err := deploy.Run(t.Context(), b, f.options()); err != nil || report.Changed() != 0 {
		t.Errorf("again: %v, %s", err, actions(report))
	}
}

// web is the bundle of one chart.
func web(namespace string) site {
	return site{
		name: namespace, version: "1", charts: map[string]map[string]string{"web": webChart("1.0.0")},
		images: []string{"docker.io/library/app:1.0"},
		deploy: "deploy:\n  - {chart: web, release: front, namespace: " + namespace + ", wait: none}\n",
	}
}

// helm returns Helm for a namespace, as the helm command has it.
func (f *foreign) helm(t *testing.T, namespace string) *action.Configuration {
	t.Helper()
	cfg := new(action.Configuration)
	if err := cfg.Init(helmFlags(t, f, namespace), namespace, "secret", func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func helmChart(t testing.TB) *chart.Chart {
	t.Helper()
	files := webChart("1.0.0")
	delete(files, "version")
	files["Chart.yaml"] = "apiVersion: v2\nname: web\nversion: 1.0.0\n"
	c, err := loader.LoadArchive(strings.NewReader(string(archive(t, "web", files))))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (f *foreign) helmRelease(t *testing.T) {
	install := action.NewInstall(f.helm(t, "taken"))
	install.ReleaseName, install.Namespace, install.CreateNamespace = "front", "taken", true
	if _, err := install.RunWithContext(t.Context(), helmChart(t), nil); err != nil {
		t.Fatal(err)
	}
	b := web("taken").bundle(t)
	var taken *deploy.TakenError
	if _, err := deploy.Run(t.Context(), b, f.options()); !errors.As(err, &taken) ||
		!strings.Contains(hint(err), "--adopt") {
		t.Errorf("got %v", err)
	}
	o := f.options()
	o.Adopt = true
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil || actions(report) != "taken/front upgraded" {
		t.Fatalf("adopted: %v, %s", err, actions(report))
	}
	if report, err := deploy.Run(t.Context(), b, f.options()); err != nil || report.Changed() != 0 {
		t.Errorf("again: %v, %s", err, actions(report))
	}
}

func (f *foreign) helmOwnership(t *testing.T) {
	f.namespace(t, "owned")
	text := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"front"},"data":{"password":"eA=="}}`
	if _, err := f.kube.CoreV1().Secrets("owned").Patch(t.Context(), "front", types.ApplyPatchType, []byte(text),
		metav1.PatchOptions{FieldManager: "person"}); err != nil {
		t.Fatal(err)
	}
	_, err := deploy.Run(t.Context(), web("owned").bundle(t), f.options())
	if err == nil || !strings.Contains(err.Error(), `Secret "front"`) ||
		!strings.Contains(hint(err), "belongs to something else") {
		t.Errorf("got %v, hint %q", err, hint(err))
	}
	if live, err := f.kube.CoreV1().Secrets("owned").Get(t.Context(), "front", metav1.GetOptions{}); err != nil ||
		string(live.Data["password"]) != "x" {
		t.Errorf("the object is not as it was: %v", err)
	}
}

func (f *foreign) helmUpgrade(t *testing.T) {
	b := web("human").bundle(t)
	if _, err := deploy.Run(t.Context(), b, f.options()); err != nil {
		t.Fatal(err)
	}
	upgrade := action.NewUpgrade(f.helm(t, "human"))
	upgrade.Namespace = "human"
	if _, err := upgrade.RunWithContext(t.Context(), "front", helmChart(t), map[string]any{"replicas": 7}); err != nil {
		t.Fatal(err)
	}
	report, err := deploy.Run(t.Context(), b, f.options())
	if err != nil || actions(report) != "human/front upgraded" {
		t.Errorf("got %v, %s", err, actions(report))
	}
	live, err := f.kube.AppsV1().Deployments("human").Get(t.Context(), "front", metav1.GetOptions{})
	if err != nil || *live.Spec.Replicas != 1 || !strings.HasPrefix(live.Spec.Template.Spec.Containers[0].Image,
		f.registry.Host) {
		t.Errorf("%v, %d replicas of %s", err, *live.Spec.Replicas, live.Spec.Template.Spec.Containers[0].Image)
	}
	if report, err := deploy.Run(t.Context(), b, f.options()); err != nil || report.Changed() != 0 {
		t.Errorf("again: %v, %s", err, actions(report))
	}
}

func (f *foreign) helmRollback(t *testing.T) {
	b := web("back").bundle(t)
	other := f.options()
	other.Values = []deploy.Value{{Release: "front", Set: "replicas=3"}}
	for _, o := range []deploy.Options{f.options(), other} {
		if _, err := deploy.Run(t.Context(), b, o); err != nil {
			t.Fatal(err)
		}
	}
	rollback := action.NewRollback(f.helm(t, "back"))
	rollback.Version = 1
	if err := rollback.Run("front"); err != nil {
		t.Fatal(err)
	}
	if report, err := deploy.Run(t.Context(), b, f.options()); err != nil || report.Changed() != 0 {
		t.Errorf("got %v, %s", err, actions(report))
	}
	if report, err := deploy.Run(t.Context(), b, other); err != nil || report.Changed() != 1 {
		t.Errorf("the state that it left: %v, %s", err, actions(report))
	}
}

func (f *foreign) helmPending(t *testing.T) {
	b := web("busy").bundle(t)
	if _, err := deploy.Run(t.Context(), b, f.options()); err != nil {
		t.Fatal(err)
	}
	store := f.helm(t, "busy").Releases
	last, err := store.Last("front")
	if err != nil {
		t.Fatal(err)
	}
	last.Version++
	last.Info.Status = release.StatusPendingUpgrade // as a helm upgrade at work has it: Helm keeps our label
	if err := store.Create(last); err != nil {
		t.Fatal(err)
	}
	var busy *deploy.BusyError
	if _, err := deploy.Run(t.Context(), b, f.options()); !errors.As(err, &busy) ||
		!strings.Contains(err.Error(), "pending-upgrade") || !strings.Contains(hint(err), "--adopt") {
		t.Errorf("got %v", err)
	}
	o := f.options()
	o.Adopt = true
	if report, err := deploy.Run(t.Context(), b, o); err != nil || report.Changed() != 1 {
		t.Errorf("adopted: %v, %s", err, actions(report))
	}
}

// prune deploys versions of a bundle that lose releases and objects.
func (f *foreign) prune(t *testing.T) {
	first := site{
		name: "prune", version: "1",
		charts: map[string]map[string]string{"web": webChart("1.0.0")}, images: []string{"docker.io/library/app:1.0"},
		files: map[string]string{
			"all.yaml": settings("stays", "1") + settings("leaves", "1") + settings("moves",
				"1") + settings("recreated", "1") +
				"---\napiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: version}\nspec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}\n" +
				"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n" +
				"---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: prune-moves}\n",
			"extra.yaml": settings("extra", "1"),
		},
		deploy: `deploy:
  - {chart: web, release: old, namespace: prune, wait: none}
  - {release: all, namespace: prune, manifests: [all.yaml], wait: none}
  - {release: extra, namespace: prune, manifests: [extra.yaml], wait: none}
`,
	}
	if _, err := deploy.Run(t.Context(), first.bundle(t), f.options()); err != nil {
		t.Fatal(err)
	}
	if err := f.kube.CoreV1().ConfigMaps("prune").Delete(t.Context(), "recreated", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.applyAs(t, "argocd", "prune", "recreated", "theirs")
	second := plainYAML("prune", "prune", settings("stays", "2")+
		"---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: version, namespace: prune}\nspec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}}\n")
	second.version = "2"
	second.files["moved.yaml"] = settings("moves", "2") +
		"---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: prune-moves}\n"
	second.deploy = "deploy:\n  - {release: all, namespace: prune, manifests: [all.yaml], wait: none}\n  - {release: moved, namespace: prune, manifests: [moved.yaml], wait: none}\n"
	b := second.bundle(t)
	without, err := deploy.Run(t.Context(), b, f.options())
	if err != nil {
		t.Fatal(err)
	}
	f.pruned(t, "prune/old,leaves,recreated,data,extra", strings.Join(without.Warnings, "\n"))
	if len(without.Removed) > 0 || f.value(t, "prune", "leaves") != "1" {
		t.Errorf("removed without --prune: %v", without.Removed)
	}
	o := f.options()
	o.Prune, o.DryRun = true, true
	dry, err := deploy.Run(t.Context(), b, o)
	if err != nil || f.value(t, "prune", "leaves") != "1" {
		t.Fatalf("a dry run: %v", err)
	}
	o.DryRun = false
	report, err := deploy.Run(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	const want = "release prune/old, ConfigMap leaves, ConfigMap extra"
	if got := strings.Join(report.Removed, ", "); got != want || strings.Join(dry.Removed, ", ") != want {
		t.Errorf("removed %s, dry run %s", got, dry.Removed)
	}
	f.pruned(t, "ConfigMap recreated stays: another program,PersistentVolumeClaim data stays",
		strings.Join(report.Warnings, "\n"))
	for name, want := range map[string]string{
		"stays": "2", "moves": "2", "leaves": "none", "extra": "none",
		"recreated": "theirs",
	} {
		if got := f.value(t, "prune", name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if _, err := f.kube.AutoscalingV2().HorizontalPodAutoscalers("prune").Get(t.Context(), "version",
		metav1.GetOptions{}); err != nil {
		t.Errorf("an object of another version: %v", err)
	}
	if _, err := f.kube.RbacV1().ClusterRoles().Get(t.Context(), "prune-moves", metav1.GetOptions{}); err != nil {
		t.Errorf("an object of another part: %v", err)
	}
	again, err := deploy.Run(t.Context(), b, o)
	if err != nil || len(again.Removed) > 0 || again.Changed() > 0 {
		t.Errorf("again: %v, %v", err, again.Removed)
	}
	f.pruned(t, "PersistentVolumeClaim data stays", strings.Join(again.Warnings, "\n"))
}

// since lets somebody install a release anew with helm, and another bundle have an object, before both are to be
// removed.
func (f *foreign) since(t *testing.T) {
	first := web("since")
	first.files = map[string]string{"all.yaml": settings("shared", "1") + settings("own", "1")}
	first.deploy += "  - {release: all, namespace: since, manifests: [all.yaml], wait: none}\n"
	other := plainYAML("since-other", "since", settings("shared", "2"))
	other.version = "1"
	for _, s := range []site{first, other} {
		if _, err := deploy.Run(t.Context(), s.bundle(t), f.options()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := action.NewUninstall(f.helm(t, "since")).Run("front"); err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(f.helm(t, "since"))
	install.ReleaseName, install.Namespace = "front", "since"
	if _, err := install.RunWithContext(t.Context(), helmChart(t), nil); err != nil {
		t.Fatal(err)
	}
	second := plainYAML("since", "since", settings("new", "1"))
	second.version = "2"
	o := f.options()
	o.Prune = true
	report, err := deploy.Run(t.Context(), second.bundle(t), o)
	if err != nil || strings.Join(report.Removed, ", ") != "ConfigMap own" {
		t.Errorf("%v, removed %v", err, report.Removed)
	}
	f.pruned(t, "the release stays: another program,ConfigMap shared stays: another bundle",
		strings.Join(report.Warnings, "\n"))
	third := plainYAML("since", "since", settings("shared", "2"))
	third.version = "3"
	if _, err := deploy.Run(t.Context(), third.bundle(t), o); err != nil {
		t.Fatal(err)
	}
	kept, err := deploy.Remove(t.Context(), deploy.RemoveOptions{Cluster: f.admin, Name: "since"})
	if err != nil || !strings.Contains(strings.Join(kept, "; "), "ConfigMap shared: another bundle") {
		t.Errorf("removed: %v, kept %v", err, kept)
	}
	if f.value(t, "since", "shared") != "2" {
		t.Error("the other bundle's object is gone")
	}
	if _, err := f.kube.AppsV1().Deployments("since").Get(t.Context(), "front", metav1.GetOptions{}); err != nil {
		t.Errorf("helm's release: %v", err)
	}
}

// pruned holds that there is a warning for each word, and no other.
func (f *foreign) pruned(t *testing.T, words, warnings string) {
	t.Helper()
	list := strings.Split(words, ",")
	for _, word := range list {
		if !strings.Contains(warnings, word) {
			t.Errorf("no word of %s: %s", word, warnings)
		}
	}
	if n := strings.Count(warnings, "\n") + 1; n != len(list) {
		t.Errorf("%d warnings, want %d:\n%s", n, len(list), warnings)
	}
}
