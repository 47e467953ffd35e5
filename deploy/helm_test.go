package deploy_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/registry"
)

type runtimeObject = runtime.Object

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// unpackRelease returns the JSON of a release that Helm stored.
func unpackRelease(t *testing.T, data []byte) string {
	t.Helper()
	packed, err := base64.StdEncoding.DecodeString(string(data))
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// charts is the number of charts that deploy and Helm install.
const charts = 20

// manyCharts is a bundle that installs a chart into a namespace, as releases with different names.
func manyCharts(namespace string) site {
	s := site{
		name: namespace, version: "1", charts: map[string]map[string]string{"web": webChart("1.0.0")},
		images: []string{"docker.io/library/app:1.0"}, deploy: "deploy:\n",
	}
	for i := range charts {
		s.deploy += fmt.Sprintf("  - {chart: web, release: front%d, namespace: %s, wait: none}\n", i, namespace)
	}
	return s
}

// TestManyCharts installs many charts with deploy and with Helm: both store the same releases, and a rerun of deploy
// changes nothing.
func TestManyCharts(t *testing.T) {
	f := newForeign(t)
	b := manyCharts("many").bundle(t)
	for _, want := range []int{charts, 0} {
		if report, err := deploy.Run(t.Context(), b, f.options()); err != nil || report.Changed() != want {
			t.Fatalf("%d changed, want %d, %v", report.Changed(), want, err)
		}
	}
	f.helmInstall(t, "by-helm")
	ours, helms := f.releases(t, "many"), f.releases(t, "by-helm")
	if len(helms) != charts || !slices.Equal(ours, helms) {
		t.Errorf("deploy stored %v, Helm %v", ours, helms)
	}
}

// BenchmarkDeployAgainstHelm compares deploy with Helm's own installation of the same charts, one after the other,
// without waiting for pods and with a seeded registry. Run it with -benchtime=1x or a few times more: each installs
// into namespaces of its own.
func BenchmarkDeployAgainstHelm(b *testing.B) {
	f := newForeign(b)
	var helm, ours, rerun time.Duration
	lap := func(sum *time.Duration, do func()) {
		begin := time.Now()
		do()
		*sum += time.Since(begin)
	}
	for b.Loop() {
		name := "bench-" + strings.ToLower(rand.Text()[:8])
		archive := manyCharts(name).bundle(b)
		deployed := func(want int) {
			if report, err := deploy.Run(b.Context(), archive, f.options()); err != nil || report.Changed() != want {
				b.Fatalf("%d changed, want %d, %v", report.Changed(), want, err)
			}
		}
		if _, err := registry.Push(b.Context(), archive, f.options().Registry.(deploy.Given).Options); err != nil {
			b.Fatal(err)
		}
		lap(&helm, func() { f.helmInstall(b, name+"-helm") })
		lap(&ours, func() { deployed(charts) })
		lap(&rerun, func() { deployed(0) })
	}
	for unit, d := range map[string]time.Duration{"s-helm/op": helm, "s-deploy/op": ours, "s-rerun/op": rerun} {
		b.ReportMetric(d.Seconds()/float64(b.N), unit)
	}
	b.ReportMetric(ours.Seconds()/helm.Seconds(), "times-helm")
}

// releases returns the names of the deployed releases that are stored in a namespace, with their revisions.
func (f *foreign) releases(t testing.TB, namespace string) (names []string) {
	t.Helper()
	list, err := f.kube.CoreV1().Secrets(namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "owner=helm,status=deployed"})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list.Items {
		names = append(names, one.Name)
	}
	return names
}

// helmFlags are the flags of the helm command for a namespace.
func helmFlags(t testing.TB, f *foreign, namespace string) *genericclioptions.ConfigFlags {
	flags := genericclioptions.NewConfigFlags(true)
	dir, insecure := t.TempDir(), true
	flags.APIServer, flags.BearerToken, flags.Insecure, flags.CacheDir, flags.Namespace = &f.admin.Host,
		&f.admin.BearerToken, &insecure, &dir, &namespace
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.QPS, c.Burst = 50, 100 // as ours: Helm's default of 5 requests a second would be the measurement
		return c
	}
	return flags
}

// helmInstall installs with a configuration for each release, as the helm command does.
func (f *foreign) helmInstall(t testing.TB, namespace string) {
	t.Helper()
	flags := helmFlags(t, f, namespace)
	for i := range charts {
		cfg := new(action.Configuration)
		if err := cfg.Init(flags, namespace, "secret", func(string, ...any) {}); err != nil {
			t.Fatal(err)
		}
		install := action.NewInstall(cfg)
		install.ReleaseName, install.Namespace, install.CreateNamespace = fmt.Sprintf("front%d", i), namespace, true
		if _, err := install.RunWithContext(t.Context(), helmChart(t), nil); err != nil {
			t.Fatal(err)
		}
	}
}
