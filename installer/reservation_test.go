//go:build linux

package installer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

const reservation = kubeadm.PatchesDir + "/" + kubeadm.ReservationPatch

// sized gives a host memory and processors.
func sized(h *sitetest.Rooted, t *testing.T, gib float64, processors string) {
	t.Helper()
	h.Put(t, "/proc/meminfo", fmt.Sprintf("MemTotal:       %d kB\nMemFree: 1 kB\n", int(gib*(1<<20))))
	h.Put(t, "/sys/devices/system/cpu/online", processors+"\n")
}

func patch(s *sitetest.Site, t *testing.T) {
	t.Helper()
	if err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{kubeadm.PatchesTask()}}}); err != nil {
		t.Fatal(err)
	}
}

// TestKubeletsReserveBySize holds that a new node's kubelet reserves what Google's table has for the size of the
// machine.
func TestKubeletsReserveBySize(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		gib         float64
		processors  string
		memory, cpu string
	}{
		{0.95, "0", "256Mi", "60m"},
		{3.8, "0-1", "1024Mi", "70m"}, // of 4 GiB the firmware and the kernel have taken a little
		{7.7, "0-3", "1844Mi", "80m"},
		{15.6, "0-7", "2663Mi", "90m"},
		{62.8, "0-15", "5551Mi", "110m"},
		{251.7, "0-7,16-23", "12084Mi", "110m"},
	} {
		s := sitetest.NewSite(t, "cp1", "node1")
		sized(s.Hosts["node1"], t, one.gib, one.processors)
		patch(s, t)
		want := "kubeReserved:\n  cpu: " + one.cpu + "\n  memory: " + one.memory + "\n"
		if got := s.Hosts["node1"].Content(reservation); got != want {
			t.Errorf("%v GiB, processors %s: got %q, want %q", one.gib, one.processors, got, want)
		}
		s.States()
		if patch(s, t); strings.Contains(strings.Join(s.States()[2:], " "), "changed") {
			t.Error("a second run changes something")
		}
	}
}

// TestDryRunNamesReservations checks that a dry run names the reservations of the kubelet.
func TestDryRunNamesReservations(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	sized(s.Hosts["node1"], t, 7.7, "0-3")
	s.Options.DryRun = true
	patch(s, t)
	want := "of 4 processors and 8 GiB the kubelet keeps from pods: kubeReserved: cpu: 80m memory: 1844Mi"
	if !slices.ContainsFunc(s.Events,
		func(e task.Event) bool { return e.Host == "node1" && strings.Contains(fmt.Sprint(e), want) }) {
		t.Errorf("%q is in no event: %+v", want, s.Events)
	}
}

// TestReservationsGiveWay holds that the cluster file has the last word, key by key, and can leave reservations out.
func TestReservationsGiveWay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{kubeReserved: {memory: 2Gi}}":               "kubeReserved:\n  cpu: 80m\n",
		"{kubeReserved: {memory: 2Gi, cpu: 200m}}":    "",
		"{kubeReserved: null}":                        "",
		"{systemReserved: {memory: 1Gi, cpu: \"1\"}}": "kubeReserved:\n  cpu: 80m\n  memory: 1844Mi\n",
	} {
		s := sitetest.NewSite(t, "cp1", "node1")
		s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3, kubelet: "+text+"}")
		sized(s.Hosts["node1"], t, 7.7, "0-3")
		patch(s, t)
		if got := s.Hosts["node1"].Content(reservation); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// TestReservationsLeaveNodesAlone holds that a node of an earlier release keeps its reservations: at its restart, a
// kubelet ends pods that have no room any more.
func TestReservationsLeaveNodesAlone(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	h := s.Hosts["node1"]
	sized(h, t, 7.7, "0-3")
	s.Join(t, "node1")
	patch(s, t)
	if got := h.Content(reservation); got != "" || len(h.Said("kubeadm")) > 0 {
		t.Errorf("got %q", got)
	}
	s = sitetest.NewSite(t, "cp1", "node1")
	h = s.Hosts["node1"]
	sized(h, t, 7.7, "0-3")
	patch(s, t)
	h.Put(t, member.Path, "site v1.34.3\n")
	if patch(s, t); h.Content(reservation) == "" {
		t.Error("a node of this release loses its reservations")
	}
}

// TestControlPlanesRequestRoomForEtcd holds that the scheduler keeps memory for the API server and etcd, which
// kubeadm's manifests hardly ask for, and that an etcd of its own unit is reserved for.
func TestControlPlanesRequestRoomForEtcd(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	for _, name := range []string{"cp1", "node1"} {
		sized(s.Hosts[name], t, 15.6, "0-7")
	}
	patch(s, t)
	for _, one := range []struct{ component, memory string }{{"etcd", "512Mi"}, {"kube-apiserver", "1024Mi"}} {
		path := kubeadm.PatchesDir + "/" + one.component + "%kkbundle+strategic.yaml"
		want := "spec:\n  containers:\n  - name: " + one.component +
			"\n    resources:\n      requests:\n        memory: " + one.memory + "\n"
		if got := s.Hosts["cp1"].Content(path); got != want {
			t.Errorf("cp1: got %q, want %q", got, want)
		}
		if s.Hosts["node1"].Content(path) != "" {
			t.Errorf("node1 has a patch of %s", one.component)
		}
	}
	s, _, _ = sitetest.EtcdSite(t, "external")
	sized(s.Hosts["cp1"], t, 15.6, "0-7")
	patch(s, t)
	if got, want := s.Hosts["cp1"].Content(reservation),
		"kubeReserved:\n  cpu: 90m\n  memory: 2663Mi\nsystemReserved:\n  cpu: 100m\n  memory: 1024Mi\n"; got != want {
		t.Errorf("with etcd as a unit: got %q, want %q", got, want)
	}
	if s.Hosts["cp1"].Content(kubeadm.PatchesDir+"/etcd%kkbundle+strategic.yaml") != "" {
		t.Error("there is a patch for an etcd that kubeadm does not run")
	}
}
