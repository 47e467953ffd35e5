//go:build linux

package sitetest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// wantExecutablePrograms checks at the end of every test that systemd may execute each program of a host's units
// where SELinux enforces: it lies where the policies of Fedora, Red Hat and Debian have the type bin_t
// (corecommands.fc). Below /usr/local/lib the type is lib_t, below /usr/local/libexec usr_t, below /var/lib
// var_lib_t: systemd then reports 203/EXEC.
func wantExecutablePrograms(t *testing.T, h *Rooted) {
	t.Helper()
	executable := regexp.MustCompile(`^(/usr/local/s?bin|/usr/s?bin|/s?bin|/opt/(.*/)?bin)/[^/]+$`)
	files, err := filepath.Glob(h.Root + task.UnitDir + "*.service")
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
