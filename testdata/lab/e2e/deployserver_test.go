package e2e

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestDeployAPIServer runs the tests and the benchmark of package deploy, each against a genuine API server and etcd of its own, as
// processes of this machine. There are no nodes and no controllers: TestDeploy has those. The benchmark prints how long deploy takes
// compared with Helm, and fails nothing: a shared machine varies.
func TestDeployAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the lab's software; see make e2e")
	}
	made, err := software.Build(t.Context(), software.Options{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	tests := compileTests(t, "./deploy")
	for name, args := range map[string][]string{
		"TestAPIServer":              {"-test.run=^TestAPIServer$"},
		"TestManyCharts":             {"-test.run=^TestManyCharts$"},
		"BenchmarkDeployAgainstHelm": {"-test.run=^$", "-test.bench=^BenchmarkDeployAgainstHelm$", "-test.benchtime=3x"},
	} {
		t.Run(name, func(t *testing.T) {
			server := apiServer(t, made.Bin, "--disable-admission-plugins=ServiceAccount")
			cmd := exec.CommandContext(t.Context(), tests, append(args, "-test.v", "-test.timeout=15m")...)
			cmd.Dir = "../../../deploy"
			cmd.Env = append(os.Environ(), "KKBUNDLE_TEST_APISERVER="+server.kubeconfig)
			r := run(t, cmd).must(t, 0)
			t.Logf("%s\n%s", r.stdout, r.stderr)
		})
	}
}
