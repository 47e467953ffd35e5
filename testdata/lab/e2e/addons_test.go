package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// notes is YAML of a user's: a kind of its own, an object of that kind before it in the file, and pods.
const notes = `apiVersion: lab.example/v1
kind: Note
metadata: {name: first, namespace: notes}
spec: {text: hello}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notes.lab.example}
spec:
  group: lab.example
  scope: Namespaced
  names: {plural: notes, singular: note, kind: Note}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {text: {type: string}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: reader}
spec:
  selector: {matchLabels: {app: reader}}
  template:
    metadata: {labels: {app: reader}}
    spec:
      tolerations: [{operator: Exists}]
      containers:
      - name: reader
        image: docker.io/lab/labapp:1
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`

// addons: YAML is applied; values that break a chart are taken back, with the reason, and mended ones take effect;
// what the cluster file does not name any more is named.
func (th *thread) addons(t *testing.T) {
	original, err := os.ReadFile(filepath.Join(th.dir, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cluster := filepath.Join(dir, "cluster.yaml")
	web := "  - chart: web\n    namespace: web\n    values: [web.yaml]\n"
	text := strings.Replace(string(original), web, "  - {release: notes, namespace: notes, manifests: [notes.yaml]}\n"+
		strings.Replace(web, "web.yaml", "web.yaml, more.yaml", 1)+"    timeout: 15s\n", 1)
	if text == string(original) {
		t.Fatal("the lab's cluster file has another addon than this test thinks")
	}
	values, err := os.ReadFile(filepath.Join(th.dir, "web.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("cluster.yaml", text)
	write("notes.yaml", notes)
	write("web.yaml", string(values))
	write("more.yaml", "image: docker.io/lab/labapp:broken\n")
	pods := th.kubectl(t, "-n web get pods -o name")

	broken := run(t, th.site(t, "install", "-c", cluster))
	t.Logf("broken values: %s\n%s", broken.took.Round(100*time.Millisecond), broken.stderr)
	for _, want := range []string{"pod web/web-", "docker.io/lab/labapp:broken", "rolled back to revision 1"} {
		if broken.code == 0 || !strings.Contains(broken.stderr, want) {
			t.Errorf("exit code %d without %q", broken.code, want)
		}
	}
	if got := th.kubectl(t, "-n web get pods --field-selector=status.phase=Running -o name"); got != pods {
		t.Errorf("pods were\n%s and are\n%s", pods, got)
	}
	if got := th.kubectl(t, "-n notes get note first -o jsonpath={.spec.text}"); got != "hello" {
		t.Errorf("the note says %q", got)
	}

	write("more.yaml", "service: {port: 8000}\n")
	run(t, th.site(t, "install", "-c", cluster)).must(t, 0)
	if got := th.kubectl(t, "-n web get service web -o jsonpath={.spec.ports[0].port}"); got != "8000" {
		t.Errorf("the service's port is %s", got)
	}
	if again := run(t, th.site(t, "install", "-c", cluster)).must(t, 0); !strings.Contains(again.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", again.stderr)
	}

	left := run(t, th.site(t, "install")).must(t, 0)
	if want := "does not name these any more, and they stay in the cluster: manifests notes/notes"; !strings.Contains(left.stderr, want) {
		t.Errorf("without %q:\n%s", want, left.stderr)
	}
}
