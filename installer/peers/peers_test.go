package peers

import (
	"encoding/base64"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// Hosts ask for the login at the same time, and get the same one.
func TestLoginOfManyHosts(t *testing.T) {
	t.Parallel()
	dir, err := task.OpenWorkDir(t.TempDir()+"/work", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	site := &task.Site{Dir: dir, Output: task.Output{Mask: task.NewMasker()}}
	var all sync.WaitGroup
	logins, errs := make([]task.Login, 50), make([]error, 50)
	for i := range logins {
		all.Go(func() { logins[i], errs[i] = Login(site) })
	}
	all.Wait()
	for i, l := range logins {
		if errs[i] != nil || l != logins[0] {
			t.Fatalf("host %d: %v, or another login than the first", i, errs[i])
		}
	}
}

// A node asks its own pod, then any pod, both with the login that the work directory keeps; its password is in no log.
func TestMirrors(t *testing.T) {
	t.Parallel()
	dir, err := task.OpenWorkDir(t.TempDir()+"/work", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	site := &task.Site{Cluster: tasktest.Cluster(t, "imageDistribution: {peers: spegel}"), Dir: dir, Output: task.Output{Mask: task.NewMasker()}}
	host := &task.Host{Host: manifest.Host{Name: "w1"}, IP: netip.MustParseAddr("fd00::4"), Site: site}
	first, err := Mirrors(host)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Mirrors(host)
	if err != nil || len(first) != 2 || len(again) != 2 || first[0] != again[0] || first[1] != again[1] {
		t.Fatalf("%v, then %v, %v", first, again, err)
	}
	if first[0].URL != "http://[fd00::4]:30020" || first[1].URL != "http://[fd00::4]:30021" || len(first[0].Password) < 32 {
		t.Errorf("got %v", first)
	}
	header := base64.StdEncoding.EncodeToString([]byte(first[0].Username + ":" + first[0].Password))
	for _, secret := range []string{first[0].Password, header} {
		if said := site.Mask.Mask("a " + secret + " b"); strings.Contains(said, secret) {
			t.Errorf("a log has the login: %s", said)
		}
	}
	site.Cluster = tasktest.Cluster(t, "")
	if list, err := Mirrors(host); err != nil || list != nil {
		t.Errorf("without peers: %v, %v", list, err)
	}
}
