//go:build linux

package installer

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// TestProgramsMoveFromEarlierDirectory has a host that an older release installed: its programs are in a directory
// whose files have the SELinux type lib_t. An install moves the programs, and a reset removes those that are left in
// the old directory.
func TestProgramsMoveFromEarlierDirectory(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "cri: {type: crio}")
	s.Dialing("")
	h := s.Hosts["cp1"]
	const earlier = task.EarlierProgramDir + "/crio/conmon"
	h.Put(t, earlier, "older")
	b := sitetest.ClusterBundle(t, s.Options.Cluster)
	if err := s.Run(t, b).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: plan.ContainerTasks(s.Options.Cluster)}}); err != nil {
		t.Fatal(err)
	}
	if h.Content(earlier) != "" || h.Content("/opt/kkbundle/crio/bin/conmon") == "" {
		t.Errorf("earlier %q, now %q", h.Content(earlier), h.Content("/opt/kkbundle/crio/bin/conmon"))
	}
	h.Put(t, task.EarlierProgramDir+"/registry", "older")
	resetLeavesNothing(t, s, []string{task.EarlierProgramDir + "/registry", "/opt/kkbundle/crio/bin/conmon"})
}
