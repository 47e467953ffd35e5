package build

import (
	"errors"
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

// TestExplainExit explains the outputs of finders that met their memory limit. Go's runtime prints the first one. cgo prints the second one if
// there is no memory for the stack of another thread (seen once in six runs of a template that repeats without an end).
func TestExplainExit(t *testing.T) {
	t.Parallel()
	for _, stderr := range []string{
		"fatal error: runtime: out of memory\n",
		"runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\n",
	} {
		if got := explainExit(errors.New("exit status 2"), stderr); !strings.HasPrefix(got, "rendering takes more than 1.0 GiB of memory") {
			t.Errorf("%q is explained as %q", stderr, got)
		}
	}
	if got := explainExit(errors.New("exit status 2"), "panic: x\nmore"); got != "the finder process failed: exit status 2 panic: x" {
		t.Errorf("got %q", got)
	}
}
