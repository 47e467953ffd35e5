//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// wantExecutablePrograms checks at the end of every test that systemd may execute each program of a host's units where SELinux enforces: it lies where the
// policies of Fedora, Red Hat and Debian have the type bin_t (corecommands.fc). Below /usr/local/lib the type is lib_t, below
// /usr/local/libexec usr_t, below /var/lib var_lib_t: systemd then reports 203/EXEC.
func wantExecutablePrograms(t *testing.T, h *rooted) {
	t.Helper()
	executable := regexp.MustCompile(`^(/usr/local/s?bin|/usr/s?bin|/s?bin|/opt/(.*/)?bin)/[^/]+$`)
	files, err := filepath.Glob(h.root + task.UnitDir + "*.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), hostfile.Author) {
			continue // another's unit
		}
		for line := range strings.Lines(string(text)) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart=")
			program, _, _ := strings.Cut(strings.TrimLeft(command, "-@:+!"), " ")
			if ok && !executable.MatchString(program) {
				t.Errorf("%s: systemd must not execute %s where SELinux enforces", filepath.Base(file), program)
			}
		}
	}
}

// TestProgramsMoveFromEarlierDirectory has a host that an older release installed: its programs are in a directory whose files have the
// SELinux type lib_t. An install moves the programs, and a reset removes those that are left in the old directory.
func TestProgramsMoveFromEarlierDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.options.Cluster = tasktest.Cluster(t, "cri: {type: crio}")
	s.dialing("")
	h := s.hosts["cp1"]
	const earlier = task.EarlierProgramDir + "/crio/conmon"
	h.put(t, earlier, "older")
	b := clusterBundle(t, s.options.Cluster)
	if err := s.run(t, b).Phases(t.Context(), []task.Phase{{Name: "install", Tasks: containerTasks(s.options.Cluster)}}); err != nil {
		t.Fatal(err)
	}
	if h.content(earlier) != "" || h.content("/opt/kkbundle/crio/bin/conmon") == "" {
		t.Errorf("earlier %q, now %q", h.content(earlier), h.content("/opt/kkbundle/crio/bin/conmon"))
	}
	h.put(t, task.EarlierProgramDir+"/registry", "older")
	resetLeavesNothing(t, s, []string{task.EarlierProgramDir + "/registry", "/opt/kkbundle/crio/bin/conmon"})
}
