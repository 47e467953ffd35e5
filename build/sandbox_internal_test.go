package build

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/capped"
)

// TestConverse has a child that ends well while its standard error is still open, as a machine that is too busy to see the end
// of it has: its answer counts. What holds it ends with the child's standard input.
func TestConverse(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec 3<&0; cat <&3 >/dev/null & echo found")
	cmd.Stderr, cmd.WaitDelay = &capped.Head{Most: 4096}, time.Millisecond
	answer, sent, err := converse(cmd, findRequest{}, strings.NewReader(""))
	if string(answer) != "found\n" || sent != nil || err != nil {
		t.Errorf("%q, %v, %v", answer, sent, err)
	}
}
