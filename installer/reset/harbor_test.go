//go:build linux

package reset

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// Reset leaves what Harbor keeps, and nothing else; --with-data that neither.
func TestHarborReset(t *testing.T) {
	t.Parallel()
	s := sitetest.NewHarborSite(t, "reg1", "", "")
	if err := s.Install(t); err != nil {
		t.Fatal(err)
	}
	h := s.Hosts["reg1"]
	h.Put(t, siteregistry.HarborData+"/registry/blob", "x")
	h.Put(t, siteregistry.HarborLogs+"/core.log", "x")
	target := s.R.RegistryHosts()[0]
	for _, withData := range []bool{false, true} {
		s.R.WithData = withData
		if err := removeTasks(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		if err := removeFiles(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{
			siteregistry.HarborDir, siteregistry.HarborLogs, siteregistry.DockerDir,
			siteregistry.ComposePlugin, "/usr/local/bin/docker", "/etc/systemd/system/" + siteregistry.HarborUnit,
			"/etc/systemd/system/" + cri.DockerUnit, "/etc/docker",
		} {
			if _, err := os.Stat(filepath.Join(h.Root, path)); err == nil {
				t.Errorf("%s is left", path)
			}
		}
		if got := h.Content(siteregistry.HarborData + "/registry/blob"); (got == "") != withData {
			t.Errorf("with data %t: %q", withData, got)
		}
	}
}
