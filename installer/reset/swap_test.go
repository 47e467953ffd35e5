//go:build linux

package reset

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// Swap that is in no fstab comes back at the next boot unless its target is masked, which Reset undoes where we did it.
func TestSwapWithoutFstab(t *testing.T) {
	t.Parallel()
	for state, ours := range map[string]bool{"static": true, "masked": false} {
		s := sitetest.NewSite(t, "cp1")
		h := s.Hosts["cp1"]
		target := state
		h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
			switch {
			case slices.Contains(cmd.Args, "list-unit-files"):
				_, err := io.WriteString(cmd.Stdout, "dev-zram0.swap generated -\n")
				return err
			case slices.Contains(cmd.Args, "is-enabled"):
				_, err := io.WriteString(cmd.Stdout, target+"\n")
				return err
			case slices.Contains(cmd.Args, "mask"):
				target = "masked"
			}
			return nil
		})
		phases := []task.Phase{{Name: "init", Tasks: []task.Task{machine.SwapTask(s.Options.Cluster)}}}
		for range 2 {
			if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
				t.Fatal(err)
			}
		}
		wantStates, want := []string{"swap@cp1 done", "swap@cp1 done"}, ""
		if ours {
			wantStates[0], want = "swap@cp1 changed", "systemctl mask swap.target"
		}
		if diff := cmp.Diff(s.States(), wantStates); diff != "" {
			t.Errorf("%s: runs (-got +want):\n%s", state, diff)
		}
		changes := func() string {
			lines := slices.DeleteFunc(h.Said("systemctl"), func(line string) bool {
				return !strings.HasSuffix(line, machine.SwapTarget) || strings.Contains(line, "is-enabled")
			})
			return strings.Join(lines, ", ")
		}
		if got := changes(); got != want {
			t.Errorf("%s: installing ran %q, want %q", state, got, want)
		}
		for range 2 {
			if err := s.Run(t, nil).Phases(t.Context(),
				[]task.Phase{{
					Name:  "reset",
					Tasks: []task.Task{{Name: "host", Done: isRestored, Do: restoreHost}},
				}}); err != nil {
				t.Fatal(err)
			}
		}
		if want = ""; ours {
			want = "systemctl unmask swap.target, systemctl start swap.target"
		}
		if got := changes(); got != want {
			t.Errorf("%s: resetting ran %q, want %q", state, got, want)
		}
	}
}
