//go:build linux

package reset

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// TestResetOfWhatIsThere resets a site of which one host is gone, and then all of it.
func TestResetOfWhatIsThere(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	if err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask()}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t, nil).Dir.Write(task.AdminConfFile, nil); err != nil {
		t.Fatal(err)
	}
	hook := engine.Hook{Name: "pre_install.sh", Data: []byte("#!/bin/sh\n")}
	if err := engine.RunHook(t.Context(), s.Run(t, nil).Hosts[2], hook); err != nil {
		t.Fatal(err)
	}
	s.Dialing("node1")
	var lost *host.UnreachableError
	if err := Reset(t.Context(), s.Options); !errors.As(err, &lost) || lost.Host != "node1" {
		t.Fatalf("got %v, want node1's loss", err)
	}
	for name, want := range map[string]bool{"cp1": false, "node1": true, "node2": false} {
		if got := strings.Contains(s.Hosts[name].Content("/etc/hosts"), "kkbundle"); got != want {
			t.Errorf("%s: our lines are in /etc/hosts: %v, want %v", name, got, want)
		}
	}
	for _, path := range []string{engine.HooksOnHost, task.StateDir} {
		if _, err := os.Stat(filepath.Join(s.Hosts["node2"].Root, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("node2 still has %s (%v)", path, err)
		}
	}
	admin := filepath.Join(s.Options.WorkDir, task.AdminConfFile)
	if _, err := os.Stat(admin); err != nil {
		t.Error("admin.conf is gone before the cluster is:", err)
	}
	s.Dialing("")
	if err := Reset(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(admin); !errors.Is(err, os.ErrNotExist) {
		t.Error("admin.conf is still there:", err)
	}
	if text := s.Hosts["node1"].Content("/etc/hosts"); strings.Contains(text, "kkbundle") {
		t.Errorf("node1's /etc/hosts: %s", text)
	}
}

// TestResetFollowsLinks has a site that put the kubelet's directory on another disk by a link.
func TestResetFollowsLinks(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	h := s.Hosts["cp1"]
	h.Put(t, "/data/kubelet/pods/a/volumes/b", "")
	h.Put(t, "/data/other", "")
	h.Put(t, "/proc/mounts",
		"tmpfs /data/kubelet/pods/a/volumes tmpfs rw 0 0\ntmpfs /data/other tmpfs rw 0 0\ntmpfs /var/lib/kubelet-not tmpfs rw 0 0\n")
	link := filepath.Join(h.Root, "var/lib/kubelet")
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../../data/kubelet", link)); err != nil {
		t.Fatal(err)
	}
	var unmounted []string
	h.Answer("umount", func(_ context.Context, cmd host.Cmd) error {
		unmounted = append(unmounted, cmd.Args[len(cmd.Args)-1])
		return nil
	})
	c := s.Run(t, nil).Hosts[0]
	if err := errors.Join(c.Unmount(t.Context(), "/var/lib/kubelet/", "/run/none/"),
		c.Empty(t.Context(), "/var/lib/kubelet")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/data/kubelet/pods/a/volumes"}; !slices.Equal(unmounted, want) {
		t.Errorf("unmounted %q, want %q", unmounted, want)
	}
	if left, err := filepath.Glob(filepath.Join(h.Root, "data/*/*")); err != nil || len(left) > 0 {
		t.Errorf("%v; left: %q", err, left)
	}
	if _, err := os.Stat(filepath.Join(h.Root, "data/other")); err != nil {
		t.Error("what is not the kubelet's:", err)
	}
	if _, err := os.Readlink(link); err != nil {
		t.Error("the site's link is gone:", err)
	}
}

// TestResetOfCalico has a host with what Calico's pods leave outside of files: control groups that an init container has
// mounted, without which its directory could not be removed, IP sets and routes.
func TestResetOfCalico(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, "cni: {type: calico}")
	h := s.Hosts["cp1"]
	h.Put(t, "/proc/mounts", "none /run/calico/cgroup cgroup2 rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n")
	if err := removeTasks(t.Context(), s.Run(t, nil).Hosts[0]); err != nil {
		t.Fatal(err)
	}
	said := h.Said("")
	for _, want := range []string{
		"umount --lazy /run/calico/cgroup", host.HelperPath + " destroy-sets cali", "ip link delete vxlan.calico",
	} {
		if !slices.Contains(said, want) {
			t.Errorf("want %q, got %q", want, said)
		}
	}
}

// TestResetRestores compares everything on a host before what init changes and after the reset.
func TestResetRestores(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	s.Dialing("")
	h := s.Hosts["node1"]
	h.Put(t, "/etc/hosts", "127.0.0.1 localhost\n\n# no end")
	h.Put(t, "/etc/fstab", "/dev/sda1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n#/dev/sda3 none swap sw 0 0")
	h.Put(t, "/etc/sysctl.d/10-own.conf", "net.ipv4.ip_forward = 0\n")
	if err := errors.Join(os.Chmod(filepath.Join(h.Root, "/etc/fstab"), 0o640),
		os.Chmod(filepath.Join(h.Root, "/etc/hosts"), 0o664)); err != nil {
		t.Fatal(err)
	}
	h.Mkdir(t, "/etc/systemd/system")
	h.Mkdir(t, "/etc/modules-load.d")
	before := h.Tree(t)
	c := s.Options.Cluster
	phases := []task.Phase{{Name: "init", Tasks: []task.Task{
		machine.HostsTask(), machine.SwapTask(c),
		machine.KernelTask(c), machine.RouteTask(c),
	}}}
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if during := h.Tree(t); during == before {
		t.Error("nothing was changed")
	}
	resetWould(s, t, "node1", "host", "/etc/systemd/system/"+machine.RouteUnit, machine.SysctlPath)
	if err := Reset(t.Context(), s.Options); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h.Tree(t), before); diff != "" {
		t.Errorf("after the reset (-got +before):\n%s", diff)
	}
}

// TestResetLimit resets one host, and needs no other.
func TestResetLimit(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	if err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask()}}}); err != nil {
		t.Fatal(err)
	}
	s.Dialing("cp1")
	s.Options.Limit = []string{"node1"}
	if err := Reset(t.Context(), s.Options); err != nil {
		t.Error(err)
	}
	if strings.Contains(s.Hosts["node1"].Content("/etc/hosts"), "kkbundle") ||
		!strings.Contains(s.Hosts["cp1"].Content("/etc/hosts"), "kkbundle") {
		t.Error("it must reset node1, and node1 alone")
	}
}

func TestTwoRunsWithOneWorkDirectory(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Dialing("")
	r := s.Run(t, nil)
	if err := r.Dir.Lock(task.ThisOwner(r.Now())); err != nil {
		t.Fatal(err)
	}
	var locked *task.LockedError
	if err := Reset(t.Context(), s.Options); !errors.As(err, &locked) ||
		!strings.Contains(err.Error(), "work directory "+s.Options.WorkDir) {
		t.Errorf("a second run: %v", err)
	}
	if err := r.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Reset(t.Context(), s.Options); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

// TestLookingLeavesARunAlone has a dry run end on a host where an installation has just begun.
func TestLookingLeavesARunAlone(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	one, two := s.Run(t, nil).Hosts[0], s.Run(t, nil).Hosts[0]
	helper := filepath.Join(s.Hosts["cp1"].Root, host.HelperPath)
	s.Hosts["cp1"].Put(t, host.HelperPath, "")
	release, err := engine.Lock(t.Context(), one, task.ThisOwner(one.Site.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if err := begin.ForgetHelper(t.Context(), two); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(helper); err != nil {
		t.Error("the helper was taken from a run that needs it:", err)
	}
	release()
	for range 2 {
		if err := begin.ForgetHelper(t.Context(), two); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.Hosts["cp1"].Root, task.StateDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

// resetWould wants a dry run of reset to name paths on a host.
func resetWould(s *sitetest.Site, t *testing.T, host, step string, paths ...string) {
	t.Helper()
	o := s.Options
	o.DryRun = true
	s.Events = nil
	if err := Reset(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.Events,
		func(e task.Event) bool { return e.State == task.Would && e.Host == host && e.Task == step })
	if i < 0 {
		t.Fatalf("nothing about %s on %s in %+v", step, host, s.Events)
	}
	for _, p := range paths {
		if !strings.Contains(s.Events[i].Message, p) {
			t.Errorf("%s would go with %q, which lacks %s", step, s.Events[i].Message, p)
		}
	}
}
