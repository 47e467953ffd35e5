package installer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/task"
)

// TestResetTakesDataLater resets a cluster with volumes twice: the second time the stamps are gone, and what the first reset has
// left is known all the same. What nobody installed here stays, whatever the host's file says.
func TestResetTakesDataLater(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	s.dialing("")
	s.options.Cluster.Storage.Local = true
	volume, others := addon.LocalPath+"/pvc-1/data", "/srv/others/data"
	gone := func(host, path string) bool {
		_, err := os.Stat(filepath.Join(s.hosts[host].root, path))
		return errors.Is(err, os.ErrNotExist)
	}
	s.hosts["cp1"].mkdir(t, task.StampDir)
	s.hosts["cp1"].put(t, volume, "x")
	s.hosts["node1"].put(t, volume, "x") // of somebody else: there was no installation
	for range 2 {
		if err := Reset(t.Context(), s.options); err != nil {
			t.Fatal(err)
		}
	}
	if s.hosts["cp1"].content(volume) != "x" || !gone("cp1", task.StampDir) {
		t.Fatal("reset took the volumes without --with-data, or left its stamps")
	}
	s.hosts["cp1"].put(t, others, "x")
	s.hosts["cp1"].put(t, task.DataListFile, s.hosts["cp1"].content(task.DataListFile)+filepath.Dir(others)+"\n")
	s.options.WithData = true
	for range 2 {
		if err := Reset(t.Context(), s.options); err != nil {
			t.Fatal(err)
		}
	}
	if !gone("cp1", filepath.Dir(addon.LocalPath)) || !gone("cp1", task.StateDir) {
		t.Error("reset --with-data left the volumes, or its list of them")
	}
	if s.hosts["cp1"].content(others) != "x" {
		t.Error("reset --with-data took what no task makes")
	}
	if s.hosts["node1"].content(volume) != "x" {
		t.Error("reset --with-data took volumes of a host where nothing was installed")
	}
}
