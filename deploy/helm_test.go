package deploy_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/registry/registrytest"
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

// TestDeployAgainstHelm compares deploy of 20 charts with Helm's own installation of them, one after the other, without
// waiting for pods and with a seeded registry.
func TestDeployAgainstHelm(t *testing.T) {
	const count = 20
	f := &foreign{apiServer: startServer(t), registry: registrytest.Start(t, registrytest.Options{Auth: registrytest.AuthBasic})}
	s := site{name: "many", version: "1", charts: map[string]map[string]string{"web": webChart("1.0.0")}, images: []string{"docker.io/library/app:1.0"}, deploy: "deploy:\n"}
	for i := range count {
		s.deploy += fmt.Sprintf("  - {chart: web, release: front%d, namespace: shop, wait: none}\n", i)
	}
	b := s.bundle(t)
	if _, err := deploy.Run(t.Context(), s.bundle(t), warm(f)); err != nil { // the registry has everything then
		t.Fatal(err)
	}
	begin := time.Now()
	helmInstall(t, f, count)
	helm := time.Since(begin)
	begin = time.Now()
	report, err := deploy.Run(t.Context(), b, f.options())
	if err != nil || report.Changed() != count {
		t.Fatalf("%d changed, %v", report.Changed(), err)
	}
	ours := time.Since(begin)
	begin = time.Now()
	if report, err = deploy.Run(t.Context(), b, f.options()); err != nil || report.Changed() != 0 {
		t.Fatalf("%d changed, %v", report.Changed(), err)
	}
	t.Logf("%d charts: Helm %s, deploy %s (%.2f times), rerun %s", count, helm, ours, ours.Seconds()/helm.Seconds(), time.Since(begin))
	if ours > helm*2 { // the aim is 1.2; a shared machine varies
		t.Errorf("deploy takes %s, Helm %s", ours, helm)
	}
}

// warm seeds the registry without deploying.
func warm(f *foreign) deploy.Options {
	o := f.options()
	given := o.Registry.(deploy.Given)
	o.Registry, o.DryRun = given, true
	return o
}

// helmInstall installs with a configuration for each release, as the helm command does.
func helmInstall(t *testing.T, f *foreign, count int) {
	files := webChart("1.0.0")
	delete(files, "version")
	files["Chart.yaml"] = "apiVersion: v2\nname: web\nversion: 1.0.0\n"
	data := archive(t, "web", files)
	flags := genericclioptions.NewConfigFlags(true)
	dir, insecure, namespace := t.TempDir(), true, "helm"
	flags.APIServer, flags.BearerToken, flags.Insecure, flags.CacheDir, flags.Namespace = &f.admin.Host, &f.admin.BearerToken, &insecure, &dir, &namespace
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.QPS, c.Burst = 50, 100 // as ours: Helm's default of 5 requests a second would be the measurement
		return c
	}
	for i := range count {
		c, err := loader.LoadArchive(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		cfg := new(action.Configuration)
		if err := cfg.Init(flags, namespace, "secret", func(string, ...any) {}); err != nil {
			t.Fatal(err)
		}
		install := action.NewInstall(cfg)
		install.ReleaseName, install.Namespace, install.CreateNamespace = fmt.Sprintf("front%d", i), namespace, true
		if _, err := install.RunWithContext(t.Context(), c, nil); err != nil {
			t.Fatal(err)
		}
	}
}
