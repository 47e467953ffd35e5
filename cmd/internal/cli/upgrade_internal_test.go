package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/upgrade"
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
	// A process that the command leaves behind holds its output.
	for command, passes := range map[string]bool{"sleep 20 & true": true, "sleep 20 & false": false} {
		begun := time.Now()
		if err := runCheck(t.Context(), command, names); (err == nil) != passes || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %v after %s", command, err, time.Since(begun))
		}
	}
}

// Workers that are upgraded are not told as left to another run.
func TestWriteUpgradeOfSelectedNodes(t *testing.T) {
	t.Parallel()
	p := upgrade.Plan{Steps: []string{"v1.34.3"}, Nodes: []upgrade.Node{
		{Name: "node1", Later: true, Current: true}, {Name: "node2", Later: true},
	}}
	var out strings.Builder
	writeUpgrade(&out, p)
	if got := strings.Count(out.String(), "later (--nodes)"); got != 1 {
		t.Errorf("%d nodes are later in\n%s", got, out.String())
	}
	if nodes := newUpgradePlan(p).Nodes; nodes[0].Later || !nodes[1].Later {
		t.Errorf("got %+v", nodes)
	}
}

// A run that paused has a result and its error, one that failed the error alone.
func TestEndedUpgrade(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{
		&upgrade.PausedError{Reason: "the window is over", Left: []string{"node2"}}, errors.New("broken"),
	} {
		var out bytes.Buffer
		g := &globals{Console: terminal.NewConsole(terminal.Streams{Out: &out, Err: io.Discard})}
		g.JSON = true
		err := upgradeOptions{}.ended(g, engine.Report{}, upgrade.Plan{}, nil, cause)
		var result upgradeResult
		read := json.Unmarshal(out.Bytes(), &result)
		if _, paused := errors.AsType[*upgrade.PausedError](cause); !errors.Is(err, cause) || paused != (read == nil) ||
			paused && (result.Paused == nil || !slices.Equal(result.Paused.Left, []string{"node2"})) {
			t.Errorf("got %v, and printed %s", err, out.String())
		}
	}
}
