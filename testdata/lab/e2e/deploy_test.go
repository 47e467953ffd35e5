package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// companyApp is what deploy installs; %VERSION% differs between two bundles.
const companyApp = `apiVersion: kkbundle.io/v1
kind: Bundle
metadata: {name: app, version: %VERSION%}
platforms: [linux/amd64]
charts:
  - {name: web, repo: https://charts.lab.example/stable, version: 1.0.x}
deploy:
  - {chart: web, release: shop, namespace: shop, values: [app-web.yaml], timeout: 40s}
  - {release: batch, namespace: batch, manifests: [app-batch.yaml]}
`

const companyBatch = `apiVersion: apps/v1
kind: Deployment
metadata: {name: batch}
spec:
  selector: {matchLabels: {app: batch}}
  template:
    metadata: {labels: {app: batch}}
    spec:
      tolerations: [{operator: Exists}]
      containers: [{name: c, image: "lab/labapp:1", env: [{name: NODE_NAME, value: node}]}]
`

// TestDeploy uses a cluster that kkbundle made as if it were foreign: the nodes pull from a company's registry with a
// login, which is no mirror of theirs.
func TestDeploy(t *testing.T) {
	const address = "10.250.0.12:5443/mirror"
	ca := newCompanyCA(t, "Company registries")
	th := start(t, scenario{
		hosts:  2,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}, "etcd": {1}, "image_registry": {1}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"),
				"addons:\n  - chart: web\n    namespace: web\n    values: [web.yaml]\n", "")
			th := filepath.Join(dir, "registry-ca.pem")
			if err := os.WriteFile(th, ca.pem, 0o644); err != nil {
				t.Fatal(err)
			}
		},
	})
	d := &deployment{thread: th, address: address}
	steps(t, []step{
		{"a cluster and a registry of the company", func(t *testing.T) {
			th.companyRegistry(t, 2, ca)
			th.makeBundle(t)
			run(t, th.site(t, "install")).must(t, 0)
			th.sendFiles(t, 1, map[string][]byte{"/etc/containerd/certs.d/10.250.0.12:5443/ca.crt": ca.pem})
			d.prepare(t)
		}},
		{"deploy installs chart and YAML, and nodes pull from the company's registry", d.first},
		{"a rerun changes nothing", d.rerun},
		{"an upgrade to a second bundle", d.upgrade},
		{"a pod that cannot start is named, and the release rolled back", d.badImage},
		{
			"pods of a job and of another's deployment are led to the company's registry by the admission policy",
			d.redirectPods,
		},
		{"it is listed and removed", d.remove},
		{"the same bundle with a registry in the cluster", d.ownRegistry},
	})
}

// A deployment is a foreign cluster with bundles for it.
type deployment struct {
	*thread
	address, kubeconfig string
}

// prepare builds two bundles and gets a kubeconfig.
func (d *deployment) prepare(t *testing.T) {
	manifest, err := os.ReadFile(filepath.Join(d.dir, "manifest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, sources, ok := strings.Cut(string(manifest), "sources:\n")
	if !ok {
		t.Fatal("the manifest has no sources")
	}
	write := func(name, text string) string {
		file := filepath.Join(d.dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("app-batch.yaml", companyBatch)
	for version, replicas := range map[string]string{"1.0.0": "1", "2.0.0": "1\nservice: {type: ClusterIP, port: 80}"} {
		write("app-web.yaml", "replicas: "+replicas+"\n")
		write("app.yaml", strings.ReplaceAll(companyApp, "%VERSION%", version)+"sources:\n"+sources)
		d.connected(t, "build", "-o", d.app(version), "app.yaml").must(t, 0)
	}
	text := d.on(t, 1, "sed 's|server: .*|server: https://10.250.0.11:6443|' /etc/kubernetes/admin.conf")
	d.kubeconfig = write("foreign.conf", text)
}

func (d *deployment) app(version string) string { return filepath.Join(d.dir, "app-"+version+".kkb") }

// deploy runs kkbundle deploy in the hosts' network.
func (d *deployment) deploy(t *testing.T, version string, flags ...string) result {
	t.Helper()
	args := append([]string{
		"deploy", "--kubeconfig", d.kubeconfig, "--registry", d.address, "--ca",
		filepath.Join(d.dir, "registry-ca.pem"), "--username", companyUser, "--password-stdin", d.app(version),
	}, flags...)
	cmd := d.lab.Command(t.Context(), d.kkbundle, args...)
	cmd.Stdin = strings.NewReader(companyPassword + "\n")
	r := run(t, cmd)
	if strings.Contains(r.stdout+r.stderr, companyPassword) {
		t.Error("the output has the password")
	}
	t.Logf("deploy %s: %s\n%s", version, r.took.Round(100*time.Millisecond), r.stderr)
	return r
}

func (d *deployment) first(t *testing.T) {
	d.deploy(t, "1.0.0").must(t, 0)
	for _, namespace := range []string{"shop", "batch"} {
		got := d.kubectl(t, "--namespace="+namespace+
			" get pods -o jsonpath='{.items[*].spec.containers[*].image} {.items[*].status.containerStatuses[*].ready}'")
		if !strings.HasPrefix(got, d.address+"/docker.io/lab/labapp:1@sha256:") ||
			!strings.HasSuffix(strings.TrimSpace(got), " true") {
			t.Errorf("%s: %s", namespace, got)
		}
	}
	d.on(t, 2, "journalctl --unit=company-registry --no-pager | grep -q 'GET /v2/mirror/docker.io/lab/labapp/.*containerd'")
}

func (d *deployment) rerun(t *testing.T) {
	before := d.kubectl(t, "get deployments,secrets,services -A -o jsonpath='{range .items[*]}{.kind}{.metadata.name}{.metadata.generation}{.metadata.uid} {end}'")
	if r := d.deploy(t, "1.0.0").must(t, 0); !strings.Contains(r.stderr, "2 releases, 0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
	if after := d.kubectl(t,
		"get deployments,secrets,services -A -o jsonpath='{range .items[*]}{.kind}{.metadata.name}{.metadata.generation}{.metadata.uid} {end}'"); after != before {
		t.Errorf("before %s\nafter %s", before, after)
	}
	if r := d.deploy(t, "2.0.0", "--dry-run").must(t, 0); !strings.Contains(r.stdout, "-  type: NodePort") ||
		!strings.Contains(r.stdout, "+  type: ClusterIP") {
		t.Errorf("the dry run prints\n%s", r.stdout)
	}
}

func (d *deployment) upgrade(t *testing.T) {
	if r := d.deploy(t, "2.0.0").must(t, 0); !strings.Contains(r.stderr, "2 releases, 1 changed") {
		t.Errorf("want 1 changed, got\n%s", r.stderr)
	}
	if got := d.kubectl(t, "--namespace=shop get service shop -o jsonpath='{.spec.type}'"); strings.TrimSpace(got) != "ClusterIP" {
		t.Errorf("the service is %s", got)
	}
}

func (d *deployment) badImage(t *testing.T) {
	r := d.deploy(t, "2.0.0", "--set", "shop=image="+d.address+"/lab/none:1").must(t, 16)
	for _, want := range []string{
		"shop/shop", "not ready after 40s", "pod shop/shop-", "ErrImagePull",
		"rolled back to revision",
	} {
		if !strings.Contains(strings.ReplaceAll(r.stderr, "ImagePullBackOff", "ErrImagePull"), want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	d.kubectl(t, "--namespace=shop rollout status deployment/shop --timeout=60s")
}

// redirectPods stands for an operator: a job and a deployment name the image as upstream does, and have no pull
// secret. The company's registry wants a login, so that only a pod with the policy's pull secret gets it from there.
func (d *deployment) redirectPods(t *testing.T) {
	d.deploy(t, "2.0.0", "--redirect-pods").must(t, 0)
	d.kubectl(t, "--namespace=batch create job once --image=docker.io/lab/labapp:1 -- /labapp lookup kubernetes.default.svc.cluster.local")
	d.kubectl(t, "--namespace=batch create deployment operated --image=lab/labapp:1")
	d.kubectl(t, "--namespace=batch wait --for=condition=complete --timeout=2m job/once")
	d.kubectl(t, "--namespace=batch rollout status deployment/operated --timeout=2m")
	for _, selector := range []string{"job-name=once", "app=operated"} {
		got := d.kubectl(t, "--namespace=batch get pods --selector="+selector+
			" -o jsonpath='{.items[*].spec.containers[*].image} {.items[*].spec.imagePullSecrets[*].name}'")
		if !strings.HasPrefix(got, d.address+"/docker.io/lab/labapp:1@sha256:") || !strings.Contains(got, " kkbundle") {
			t.Errorf("%s: %s", selector, got)
		}
	}
	// a removal keeps a namespace with other objects
	d.kubectl(t, "--namespace=batch delete job/once deployment/operated --wait --cascade=foreground")
}

func (d *deployment) remove(t *testing.T) {
	kkbundle := func(args ...string) result {
		return run(t, d.lab.Command(t.Context(), d.kkbundle, append(args, "--kubeconfig", d.kubeconfig)...))
	}
	if r := kkbundle("deploy", "ls").must(t, 0); !strings.Contains(r.stdout, "shop/shop") ||
		!strings.Contains(r.stdout, "batch/batch") {
		t.Errorf("listed:\n%s", r.stdout)
	}
	r := kkbundle("deploy", "remove", "--yes", d.app("2.0.0")).must(t, 0)
	t.Logf("remove: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if left := d.kubectl(t, "get mutatingadmissionpolicies,mutatingadmissionpolicybindings -o name"); strings.TrimSpace(left) != "" {
		t.Errorf("left: %s", left)
	}
	d.waitFor(t, time.Minute, "the namespaces are gone", 1,
		"! kubectl --kubeconfig=/etc/kubernetes/admin.conf get namespaces -o name | grep -E '/(shop|batch|kkbundle)$'")
}

// ownRegistry deploys with a registry that the command puts into the cluster. Its containerd leads nothing to
// kkbundle's registry of the site any more, as in a foreign cluster.
func (d *deployment) ownRegistry(t *testing.T) {
	d.on(t, 1, "rm -r /etc/containerd/certs.d/_default")
	deploy := func(args ...string) result {
		r := run(t, d.lab.Command(t.Context(), d.kkbundle, append([]string{"deploy", "--kubeconfig", d.kubeconfig},
			args...)...)).must(t, 0)
		t.Logf("%v: %s\n%s", args, r.took.Round(100*time.Millisecond), r.stderr)
		return r
	}
	deploy("--own-registry", d.app("1.0.0"))
	for _, namespace := range []string{"shop", "batch"} {
		got := d.kubectl(t, "--namespace="+namespace+
			" get pods -o jsonpath='{.items[*].spec.containers[*].image} {.items[*].status.containerStatuses[*].ready}'")
		if !strings.HasPrefix(got, "127.0.0.1:15050/docker.io/lab/labapp:1@sha256:") ||
			!strings.HasSuffix(strings.TrimSpace(got), " true") {
			t.Errorf("%s: %s", namespace, got)
		}
	}
	if r := deploy("--own-registry", d.app("1.0.0")); !strings.Contains(r.stderr, "2 releases, 0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
	deploy("remove", "--yes", d.app("1.0.0"))
	deploy("remove-registry", "--yes")
	d.waitFor(t, time.Minute, "the registry is gone", 1,
		"! kubectl --kubeconfig=/etc/kubernetes/admin.conf get namespaces -o name | grep -E '/(shop|batch|kkbundle.*)$'")
}
