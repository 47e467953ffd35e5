package e2e

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/results"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// keepProcessResult writes the result of a test without hosts at its end, if a directory for results is named. The
// test has stand-ins and given files.
func keepProcessResult(t *testing.T, standIns, given []string) {
	t.Helper()
	begin, dir := time.Now(), os.Getenv(results.DirEnv)
	t.Cleanup(func() {
		if dir == "" || t.Skipped() {
			return
		}
		r := results.Result{
			Test: t.Name(), Outcome: results.Passed, Lab: results.Processes, StandIns: standIns,
			Given: givenSources(t, given),
			Date:  begin.UTC().Format(time.DateOnly), Seconds: int(time.Since(begin).Seconds()),
		}
		if t.Failed() {
			r.Outcome = results.Failed
		}
		version, err := exec.Command("../../../bin/kkbundle", "version").Output() //nolint:noctx // the test's own context has ended
		if err != nil {
			t.Error(err)
		}
		r.Version = field(string(version), 1)
		if err := results.Write(dir, r); err != nil {
			t.Error(err)
		}
	})
}

// TestDeployAPIServer runs the tests and the benchmark of package deploy, each against a genuine API server and etcd
// of its own, as processes of this machine. There are no nodes and no controllers: TestDeploy has those. The
// benchmark prints how long deploy takes compared with Helm, and fails nothing: a shared machine varies.
func TestDeployAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the lab's software; see make e2e")
	}
	keepProcessResult(t, nil, nil)
	made, err := software.Build(t.Context(), software.Options{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	tests := compileTests(t, "./deploy")
	for name, args := range map[string][]string{
		"TestAPIServer":           {"-test.run=^TestAPIServer$"},
		"TestAPIServerTrouble":    {"-test.run=^TestAPIServerTrouble$"},
		"TestAPIServerRedirect":   {"-test.run=^TestAPIServerRedirect$"},
		"TestAPIServerNoPolicies": {"-test.run=^TestAPIServerNoPolicies$"},
		"TestAPIServerValues":     {"-test.run=^TestAPIServerValues$"},
		"TestManyCharts":          {"-test.run=^TestManyCharts$"},
		"BenchmarkDeployAgainstHelm": {
			"-test.run=^$", "-test.bench=^BenchmarkDeployAgainstHelm$",
			"-test.benchtime=3x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			off := "ServiceAccount"
			if name == "TestAPIServerNoPolicies" {
				off += ",MutatingAdmissionPolicy"
			}
			server := apiServer(t, made.Bin, "--disable-admission-plugins="+off)
			cmd := exec.CommandContext(t.Context(), tests, append(args, "-test.v", "-test.timeout=30m")...)
			cmd.Dir = "../../../deploy"
			cmd.Env = append(os.Environ(), "KKBUNDLE_TEST_APISERVER="+server.kubeconfig)
			r := run(t, cmd).must(t, 0)
			t.Logf("%s\n%s", r.stdout, r.stderr)
		})
	}
}

// TestGatherAPIServer makes a manifest of a namespace of a genuine API server. There are no nodes and no controllers.
func TestGatherAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the lab's software; see make e2e")
	}
	keepProcessResult(t, nil, nil)
	made, err := software.Build(t.Context(), software.Options{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	server := apiServer(t, made.Bin, "--disable-admission-plugins=ServiceAccount")
	cmd := exec.CommandContext(t.Context(), compileTests(t, "./gather"), "-test.run=^TestCluster$", "-test.v")
	cmd.Dir = "../../../gather"
	cmd.Env = append(os.Environ(), "KKBUNDLE_TEST_APISERVER="+server.kubeconfig)
	run(t, cmd).must(t, 0)
}
