//go:build linux

package installer

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestScriptsParse has the shell of this machine read every script that runs on hosts. make lint has shellcheck do
// more.
func TestScriptsParse(t *testing.T) {
	t.Parallel()
	var scripts []string
	for _, dir := range []string{
		"begin/scripts", "etcdops/scripts", "look/scripts", "reset/scripts", "upgrade/scripts",
		"host/scripts",
	} {
		list, err := filepath.Glob(filepath.Join(dir, "*.sh"))
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %v, %v", dir, list, err)
		}
		scripts = append(scripts, list...)
	}
	for _, name := range scripts {
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", name).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
