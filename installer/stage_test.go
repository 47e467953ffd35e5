//go:build linux

package installer

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// A stage of a first installation puts nothing into its place and runs no program; another one sends nothing, and a
// command that only looks leaves it. The registry that install makes is not filled.
func TestInstallStage(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	for _, h := range s.Hosts {
		h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
			return &host.ExitError{Host: "h", Args: cmd.Args, Code: 3} // not active
		})
	}
	b := sitetest.ClusterBundle(t, s.Options.Cluster)
	for run, want := range []bool{true, false} { // whether something is sent
		s.Events = nil
		r := s.Run(t, b)
		phase, err := staged(t.Context(), r, plan.Plan(s.Options.Cluster))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Phases(t.Context(), []task.Phase{phase}); err != nil {
			t.Fatal(err)
		}
		sent, warned := int64(0), false
		for _, e := range s.Events {
			if e.State == task.Progress {
				sent += e.Bytes
			}
			warned = warned || e.State == task.Warned && strings.Contains(e.Message, "no registry runs yet")
		}
		if sent > 0 != want || r.Report.Changed > 0 != want || !warned {
			t.Errorf("run %d: %d bytes were sent, %d changed, warned: %t", run, sent, r.Report.Changed, warned)
		}
		for _, h := range r.Hosts {
			if err := begin.ForgetHelper(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, h := range s.Hosts {
		for _, file := range []string{"/usr/local/bin/kubelet", siteregistry.Binary, string(marks.Setting("kubelet"))} {
			if h.Content(file) != "" {
				t.Errorf("%s has %s", name, file)
			}
		}
		if ran := h.Said("systemctl"); slices.ContainsFunc(ran, func(line string) bool {
			return !strings.Contains(line, "is-active")
		}) {
			t.Errorf("%s ran %q", name, ran)
		}
	}
}
