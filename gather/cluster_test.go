package gather_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kkbundle/kkbundle/gather"
)

// serverEnv names a kubeconfig of a genuine API server; the lab's TestGatherAPIServer starts one.
const serverEnv = "KKBUNDLE_TEST_APISERVER"

func pod(images ...string) corev1.PodSpec {
	var spec corev1.PodSpec
	for i, image := range images {
		spec.Containers = append(spec.Containers, corev1.Container{Name: string(rune('a' + i)), Image: image})
	}
	return spec
}

func template(spec corev1.PodSpec) corev1.PodTemplateSpec {
	spec.RestartPolicy = ""
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}, Spec: spec,
	}
}

// TestCluster has a namespace with an application of each kind: of YAML, of Helm, and of a person's Secret.
func TestCluster(t *testing.T) {
	t.Parallel()
	path := os.Getenv(serverEnv)
	if path == "" {
		t.Skipf("set %s to a kubeconfig of an API server without nodes; the lab's TestGatherAPIServer does", serverEnv)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const namespace = "gather-shop"
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create, ctx := metav1.CreateOptions{}, t.Context()
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	must(kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta(namespace)}, create))
	must(kube.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: meta("web"),
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, Template: template(pod("nginx:1.29", "quay.io/team/side:2")),
		},
	}, create))
	cron := batchv1.CronJob{ObjectMeta: meta("night"), Spec: batchv1.CronJobSpec{Schedule: "0 0 * * *"}}
	cron.Spec.JobTemplate.Spec.Template = template(pod("quay.io/team/backup:1"))
	cron.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	must(kube.BatchV1().CronJobs(namespace).Create(ctx, &cron, create))
	must(kube.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, create))
	must(kube.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: meta("password"), StringData: map[string]string{"key": "hunter2"},
	}, create))
	helms := meta("of-helm")
	helms.Annotations = map[string]string{"meta.helm.sh/release-name": "app"}
	must(kube.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: helms}, create))
	releases := storage.Init(driver.NewSecrets(kube.CoreV1().Secrets(namespace)))
	for name, dependencies := range map[string][]*chart.Dependency{namespace: nil, "big": {{Name: "db", Version: "1"}}} {
		if err := releases.Create(&release.Release{
			Name: name, Namespace: namespace, Version: 1, Info: &release.Info{Status: release.StatusDeployed},
			Config: map[string]any{"replicas": 2},
			Chart: &chart.Chart{
				Metadata:  &chart.Metadata{APIVersion: "v2", Name: name, Version: "1.2.3", Dependencies: dependencies},
				Templates: []*chart.File{{Name: "templates/pod.yaml", Data: []byte("kind: Pod")}},
				Values:    map[string]any{"image": "app:1"},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}

	r, err := gather.Cluster(ctx, config, []string{namespace}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var images, files []string
	for _, i := range r.Bundle.Images {
		images = append(images, i.Name)
	}
	for _, f := range r.Files {
		files = append(files, f.Path)
		if strings.Contains(string(f.Data), "hunter2") {
			t.Errorf("%s has the secret", f.Path)
		}
		if private := !strings.HasPrefix(f.Path, "charts/"); f.Private != private {
			t.Errorf("%s: private %t", f.Path, f.Private)
		}
	}
	slices.Sort(files)
	if want := []string{"docker.io/library/nginx:1.29", "quay.io/team/backup:1", "quay.io/team/side:2"}; !slices.Equal(images, want) {
		t.Errorf("images %q, want %q", images, want)
	}
	if want := []string{
		"charts/gather-shop-1.2.3.tgz", "manifests/gather-shop.yaml", "values/gather-shop-big.yaml", "values/gather-shop-gather-shop.yaml",
	}; !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
	i := slices.IndexFunc(r.Files, func(f gather.File) bool { return strings.HasPrefix(f.Path, "manifests/") })
	if i < 0 {
		t.Fatal("no objects")
	}
	text := string(r.Files[i].Data)
	for _, want := range []string{"kind: Deployment", "kind: CronJob", "kind: Service", "kind: Namespace"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for _, not := range []string{"of-helm", "kube-root-ca.crt", "resourceVersion", "uid", "clusterIP:", "managedFields", "status:"} {
		if strings.Contains(text, not) {
			t.Errorf("%s in\n%s", not, text)
		}
	}
	i = slices.IndexFunc(r.Files, func(f gather.File) bool { return strings.HasPrefix(f.Path, "charts/") })
	if packed, err := loader.LoadArchive(bytes.NewReader(r.Files[i].Data)); err != nil || packed.Values["image"] != "app:1" {
		t.Errorf("the chart's own values are lost: %v", err)
	}
	if release := r.Bundle.Deploy[len(r.Bundle.Deploy)-1].Release; release != namespace+"-objects" {
		t.Errorf("the objects are release %s", release)
	}
	notes, err := json.Marshal(r.Notes)
	must(nil, err)
	for _, want := range []string{"its Secrets were left out (1)", "does not keep the subcharts of chart big 1.2.3", "values/gather-shop-gather-shop.yaml"} {
		if !strings.Contains(string(notes), want) {
			t.Errorf("no note %q in %s", want, notes)
		}
	}
	if len(r.Bundle.Deploy) != 2 {
		t.Errorf("deploy %+v", r.Bundle.Deploy)
	}
}
