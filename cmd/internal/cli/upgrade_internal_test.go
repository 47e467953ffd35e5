package cli

import (
	"strings"
	"testing"
)

// The command of --check has the names of the nodes, and its output is in the error.
func TestCheck(t *testing.T) {
	t.Parallel()
	names := []string{"node1", "node2"}
	if err := runCheck(t.Context(), `test "$KKBUNDLE_NODES" = "node1 node2"`, names); err != nil {
		t.Error(err)
	}
	err := runCheck(t.Context(), "echo the shop is down >&2; exit 3", names)
	if want := "--check after node1, node2: exit status 3: the shop is down"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	err = runCheck(t.Context(), "yes | head -n 100000; exit 1", names)
	const most = 8 << 10
	if err == nil || len(err.Error()) > most || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("got %d bytes", len(err.Error()))
	}
}
