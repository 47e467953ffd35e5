//go:build linux

package begin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/precheck/record"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestPrecheckTaskTakesRules holds that an installation stops at what blocks, shows the report, and goes on where the
// operator's rules say so.
func TestPrecheckTaskTakesRules(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	var report precheck.Report
	s.Options.Judged = func(r precheck.Report) { report = r }
	check := func() error {
		r := s.Run(t, nil)
		r.Precheck = func(ctx context.Context) error { return precheckHosts(ctx, r) }
		return plan.PrecheckTask().Do(t.Context(), &task.Host{Site: r.Site})
	}
	var unreached *precheck.UnreachableError // its helper says nothing
	if err := check(); !errors.As(err, &unreached) || report.Blocked == 0 || report.Time.IsZero() {
		t.Fatalf("a host without facts: %v, report %+v", err, report)
	}
	s.Options.Rules = &manifest.PrecheckRules{}
	for _, one := range report.Results {
		if !one.OK {
			s.Options.Rules.Rules = append(s.Options.Rules.Rules, manifest.PrecheckRule{
				Check: one.ID, Level: "off",
				Reason: "x",
			})
		}
	}
	s.Events = nil
	if err := check(); err != nil || report.Blocked+report.Warned > 0 || report.Ignored == 0 {
		t.Errorf("with everything turned off: %v, %d block, %d are ignored", err, report.Blocked, report.Ignored)
	}
	if i := slices.IndexFunc(s.Events,
		func(e task.Event) bool { return e.State == task.Failed || e.State == task.Warned }); i >= 0 {
		t.Errorf("what is ignored is an event: %+v", s.Events[i])
	}
}

// TestPrecheckRecorded holds that recorded facts are evaluated without asking hosts.
func TestPrecheckRecorded(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	recording, err := record.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Recorded = recording // Dial is nil: to ask would be to crash
	known := 0
	s.Options.Known = func(in precheck.Input) error {
		known = len(in.Hosts)
		return nil
	}
	report, err := Precheck(t.Context(), s.Options)
	if err != nil || known != 2 || strings.Join(report.Unreached(), " ") != "cp1 node1" {
		t.Errorf("%v; %d hosts are known, not reached are %v", err, known, report.Unreached())
	}
	s.Options.Known = func(precheck.Input) error { return errors.New("disk full") }
	if _, err := Precheck(t.Context(), s.Options); err == nil || err.Error() != "disk full" {
		t.Errorf("what is known cannot be kept: %v", err)
	}
}
