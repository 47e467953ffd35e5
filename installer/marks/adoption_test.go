//go:build linux

package marks_test

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// TestOnControlPlane: the lead may be a control plane that kkbundle has added to the cluster of another tool.
func TestOnControlPlane(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewHA(t, "")
	r := s.Run(t, nil)
	is := func(adopted, others bool) {
		t.Helper()
		if got, err := marks.OnControlPlane(t.Context(), r.Site, marks.IsAdopted); got != adopted || err != nil {
			t.Errorf("adopted: %t, %v", got, err)
		}
		if got, err := marks.OnControlPlane(t.Context(), r.Site, marks.HasOthersPrograms); got != others || err != nil {
			t.Errorf("has the other tool's programs: %t, %v", got, err)
		}
	}
	is(false, false)
	s.Hosts["cp2"].Put(t, marks.AdoptionOf("v1.34.3").Path("complete"), "")
	is(true, true)
	s.Hosts["cp2"].Put(t, string(marks.Setting("kubelet")), "")
	is(true, false)
}
