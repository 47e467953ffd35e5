//go:build linux

package look

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// TestScriptFile runs a file of two scripts, each with its own arguments.
func TestScriptFile(t *testing.T) {
	t.Parallel()
	const text = "#!/bin/sh\n[ $# = 2 ] && printf '%s;' \"$@\"\n"
	file := filepath.Join(t.TempDir(), "file")
	sitetest.WriteProgram(t, file, string(task.ScriptFile([]string{"sh", "-c", text, "a.sh", "a b", "-c"},
		[]string{"sh", "-c", text, "b.sh", "it's", "$d"})))
	out, err := exec.CommandContext(t.Context(), file).Output()
	if want := "a b;-c;it's;$d;"; err != nil || string(out) != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
}

// TestSupportBundleAnswers holds that the script answers with every file that is asked for, and knows no other.
func TestSupportBundleAnswers(t *testing.T) {
	t.Parallel()
	for _, file := range hostAnswers() {
		if !strings.Contains(supportBundleScript, "\n\t"+file+")") {
			t.Errorf("no answer for %s", file)
		}
	}
	if n := strings.Count(supportBundleScript, ".txt)") + strings.Count(supportBundleScript,
		".log)"); n != len(hostAnswers()) {
		t.Errorf("the script has %d answers, %d are asked for", n, len(hostAnswers()))
	}
}
