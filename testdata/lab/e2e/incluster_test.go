package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDeployInCluster puts kkbundle's registry into a cluster through its API server alone. kkbundle made the
// cluster, which is used as if it were foreign: the tests of deploy/incluster get its admin.conf, and no way to the
// hosts.
func TestDeployInCluster(t *testing.T) {
	th := start(t, scenario{hosts: 2})
	tests := compileTests(t, "./deploy/incluster")
	do := func(name string) func(*testing.T) { return func(t *testing.T) { th.inCluster(t, tests, name) } }
	steps(t, []step{
		{"a cluster", func(t *testing.T) {
			th.makeBundle(t)
			run(t, th.site(t, "install")).must(t, 0)
			for n := range 2 { // containerd of a foreign cluster leads nothing to kkbundle's registry of the site
				th.on(t, n+1, "rm -r /etc/containerd/certs.d/_default")
			}
		}},
		{
			"a registry through the API server: pushed to, pulled from by every node, its pod lost",
			do("TestClusterRegistry"),
		},
		{"its node is switched off and on", th.rebootRegistry},
		{"every node pulls again, and nothing had to change", do("TestClusterPulls")},
		{"the registry is removed", do("TestClusterRemove")},
	})
}

// compileTests compiles the tests of a package.
func compileTests(t *testing.T, pkg string) string {
	t.Helper()
	tests := filepath.Join(t.TempDir(), "package.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", tests, pkg)
	cmd.Dir, cmd.Env = filepath.Join("..", "..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return tests
}

// podPrograms returns the directory of the programs that make helper built.
func podPrograms(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../../cmd/internal/helper/bin")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// inCluster runs a test of deploy/incluster beside the hosts.
func (th *thread) inCluster(t *testing.T, tests, name string) {
	t.Helper()
	config := filepath.Join(th.dir, "admin.conf")
	if err := os.WriteFile(config, []byte(th.on(t, 1, "cat /etc/kubernetes/admin.conf")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := th.lab.Command(t.Context(), tests, "-test.v", "-test.run=^"+name+"$")
	cmd.Env = append(os.Environ(), "KKBUNDLE_TEST_KUBECONFIG="+config, "KKBUNDLE_TEST_PROGRAMS="+podPrograms(t))
	r := run(t, cmd)
	t.Logf("%s\n%s", r.stdout, r.stderr)
	if r.code != 0 || !strings.Contains(r.stdout, "--- PASS: "+name) {
		t.Logf("%s", th.kubectl(t,
			"get pods -A -o wide; kubectl --kubeconfig /etc/kubernetes/admin.conf -n kkbundle-registry get events"))
		t.Fatalf("%s: exit code %d", name, r.code)
	}
}

// rebootRegistry pulls the plug of the host with the registry's pod.
func (th *thread) rebootRegistry(t *testing.T) {
	const where = "-n kkbundle-registry get pod -l app.kubernetes.io/component=registry -o jsonpath={.items[0].spec.nodeName}"
	node := strings.TrimSpace(th.kubectl(t, where))
	for _, h := range th.lab.Hosts {
		if h.Name != node {
			continue
		}
		if err := th.lab.Kill(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if err := th.lab.Start(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		const ready = "kubectl --kubeconfig /etc/kubernetes/admin.conf wait node --all --for=condition=Ready --timeout=5s"
		th.waitFor(t, 3*time.Minute, "the node is ready", 1, ready)
		return
	}
	t.Fatalf("no host is node %q", node)
}
