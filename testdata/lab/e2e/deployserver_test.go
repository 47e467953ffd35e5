package e2e

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestDeployAPIServer runs the tests of package deploy against a genuine API server and etcd, as processes of this
// machine. There are no nodes and no controllers: TestDeploy has those.
func TestDeployAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the lab's software; see make e2e")
	}
	made, err := software.Build(t.Context(), software.Options{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=15m", "-v", "-run", "^(TestAPIServer|TestDeployAgainstHelm)$", "./deploy")
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "KKBUNDLE_TEST_APISERVER="+made.Bin)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
