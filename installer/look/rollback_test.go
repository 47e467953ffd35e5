//go:build linux

package look

import (
	"errors"
	"testing"

	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/upgrade"
)

// A refused run leaves the report of the run before it.
func TestRefusedRunKeepsTheReport(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	r := s.Run(t, nil)
	r.Began = r.Now()
	if err := r.KeepReport(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, cause := range []error{
		&upgrade.RefusedError{}, &upgrade.UnfitError{}, &member.OtherClusterError{},
		&upgrade.NoWayBackError{},
	} {
		if err := r.KeepReport(t.Context(), cause); err != nil {
			t.Fatal(err)
		}
		var out report.Status
		addLastRun(r, &out)
		if out.Last == nil || out.Last.Outcome != report.Succeeded {
			t.Errorf("after %T, the last run is %+v", cause, out.Last)
		}
	}
	if err := r.KeepReport(t.Context(), errors.New("disk full")); err != nil {
		t.Fatal(err)
	}
	var out report.Status
	if addLastRun(r, &out); out.Last == nil || out.Last.Outcome != report.Stopped {
		t.Errorf("a failed run is %+v", out.Last)
	}
}
