package reset

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

// TestResetTakesDataLater resets a cluster with volumes twice: the second time the stamps are gone, and what the
// first reset has left is known all the same. What nobody installed here stays, whatever the host's file says.
func TestResetTakesDataLater(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Dialing("")
	s.Options.Cluster.Storage.Local = true
	volume, others := addon.LocalPath+"/pvc-1/data", "/srv/others/data"
	gone := func(host, path string) bool {
		_, err := os.Stat(filepath.Join(s.Hosts[host].Root, path))
		return errors.Is(err, os.ErrNotExist)
	}
	s.Hosts["cp1"].Mkdir(t, task.StampDir)
	s.Hosts["cp1"].Put(t, volume, "x")
	s.Hosts["node1"].Put(t, volume, "x") // of somebody else: there was no installation
	for range 2 {
		if err := Reset(t.Context(), s.Options); err != nil {
			t.Fatal(err)
		}
	}
	if s.Hosts["cp1"].Content(volume) != "x" || !gone("cp1", task.StampDir) {
		t.Fatal("reset took the volumes without --with-data, or left its stamps")
	}
	s.Hosts["cp1"].Put(t, others, "x")
	s.Hosts["cp1"].Put(t, task.DataListFile, s.Hosts["cp1"].Content(task.DataListFile)+filepath.Dir(others)+"\n")
	s.Options.WithData = true
	for range 2 {
		if err := Reset(t.Context(), s.Options); err != nil {
			t.Fatal(err)
		}
	}
	if !gone("cp1", filepath.Dir(addon.LocalPath)) || !gone("cp1", task.StateDir) {
		t.Error("reset --with-data left the volumes, or its list of them")
	}
	if s.Hosts["cp1"].Content(others) != "x" {
		t.Error("reset --with-data took what no task makes")
	}
	if s.Hosts["node1"].Content(volume) != "x" {
		t.Error("reset --with-data took volumes of a host where nothing was installed")
	}
}
