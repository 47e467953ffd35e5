//go:build linux

package installer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// dialing makes Options.Dial connect to the site's hosts, but for one.
func (s *site) dialing(lost string) {
	s.options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) {
		if h.Name == lost {
			return nil, &host.UnreachableError{Host: h.Name, Address: "10.0.0.4:22", Err: errors.New("no route to host")}
		}
		return s.hosts[h.Name], nil
	}
}

// TestResetOfWhatIsThere resets a site of which one host is gone, and then all of it.
func TestResetOfWhatIsThere(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1", "node2")
	if err := s.run(t, nil).Phases(t.Context(), []task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask()}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t, nil).Dir.Write(task.AdminConfFile, nil); err != nil {
		t.Fatal(err)
	}
	hook := engine.Hook{Name: "pre_install.sh", Data: []byte("#!/bin/sh\n")}
	if err := engine.RunHook(t.Context(), s.run(t, nil).Hosts[2], hook); err != nil {
		t.Fatal(err)
	}
	s.dialing("node1")
	var lost *host.UnreachableError
	if err := Reset(t.Context(), s.options); !errors.As(err, &lost) || lost.Host != "node1" {
		t.Fatalf("got %v, want node1's loss", err)
	}
	for name, want := range map[string]bool{"cp1": false, "node1": true, "node2": false} {
		if got := strings.Contains(s.hosts[name].content("/etc/hosts"), "kkbundle"); got != want {
			t.Errorf("%s: our lines are in /etc/hosts: %v, want %v", name, got, want)
		}
	}
	for _, path := range []string{engine.HooksOnHost, task.StateDir} {
		if _, err := os.Stat(filepath.Join(s.hosts["node2"].root, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("node2 still has %s (%v)", path, err)
		}
	}
	admin := filepath.Join(s.options.WorkDir, task.AdminConfFile)
	if _, err := os.Stat(admin); err != nil {
		t.Error("admin.conf is gone before the cluster is:", err)
	}
	s.dialing("")
	if err := Reset(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(admin); !errors.Is(err, os.ErrNotExist) {
		t.Error("admin.conf is still there:", err)
	}
	if text := s.hosts["node1"].content("/etc/hosts"); strings.Contains(text, "kkbundle") {
		t.Errorf("node1's /etc/hosts: %s", text)
	}
}

// TestResetFollowsLinks has a site that put the kubelet's directory on another disk by a link.
func TestResetFollowsLinks(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	h := s.hosts["cp1"]
	h.put(t, "/data/kubelet/pods/a/volumes/b", "")
	h.put(t, "/data/other", "")
	h.put(t, "/proc/mounts", "tmpfs /data/kubelet/pods/a/volumes tmpfs rw 0 0\ntmpfs /data/other tmpfs rw 0 0\ntmpfs /var/lib/kubelet-not tmpfs rw 0 0\n")
	link := filepath.Join(h.root, "var/lib/kubelet")
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../../data/kubelet", link)); err != nil {
		t.Fatal(err)
	}
	var unmounted []string
	h.answer("umount", func(_ context.Context, cmd host.Cmd) error {
		unmounted = append(unmounted, cmd.Args[len(cmd.Args)-1])
		return nil
	})
	c := s.run(t, nil).Hosts[0]
	if err := errors.Join(c.Unmount(t.Context(), "/var/lib/kubelet/", "/run/none/"), c.Empty(t.Context(), "/var/lib/kubelet")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/data/kubelet/pods/a/volumes"}; !slices.Equal(unmounted, want) {
		t.Errorf("unmounted %q, want %q", unmounted, want)
	}
	if left, err := filepath.Glob(filepath.Join(h.root, "data/*/*")); err != nil || len(left) > 0 {
		t.Errorf("%v; left: %q", err, left)
	}
	if _, err := os.Stat(filepath.Join(h.root, "data/other")); err != nil {
		t.Error("what is not the kubelet's:", err)
	}
	if _, err := os.Readlink(link); err != nil {
		t.Error("the site's link is gone:", err)
	}
}

// TestResetRestores compares everything on a host before what init changes and after the reset.
func TestResetRestores(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	s.dialing("")
	h := s.hosts["node1"]
	h.put(t, "/etc/hosts", "127.0.0.1 localhost\n\n# no end")
	h.put(t, "/etc/fstab", "/dev/sda1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n#/dev/sda3 none swap sw 0 0")
	h.put(t, "/etc/sysctl.d/10-own.conf", "net.ipv4.ip_forward = 0\n")
	if err := errors.Join(os.Chmod(filepath.Join(h.root, "/etc/fstab"), 0o640), os.Chmod(filepath.Join(h.root, "/etc/hosts"), 0o664)); err != nil {
		t.Fatal(err)
	}
	h.mkdir(t, "/etc/systemd/system")
	h.mkdir(t, "/etc/modules-load.d")
	before := h.tree(t)
	c := s.options.Cluster
	phases := []task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask(), machine.SwapTask(c), machine.KernelTask(c), machine.RouteTask(c)}}}
	if err := s.run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if during := h.tree(t); during == before {
		t.Error("nothing was changed")
	}
	resetWould(s, t, "node1", "host", "/etc/systemd/system/"+machine.RouteUnit, machine.SysctlPath)
	if err := Reset(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h.tree(t), before); diff != "" {
		t.Errorf("after the reset (-got +before):\n%s", diff)
	}
}

// TestResetLimit resets one host, and needs no other.
func TestResetLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1", "node1")
	if err := s.run(t, nil).Phases(t.Context(), []task.Phase{{Name: "init", Tasks: []task.Task{machine.HostsTask()}}}); err != nil {
		t.Fatal(err)
	}
	s.dialing("cp1")
	s.options.Limit = []string{"node1"}
	if err := Reset(t.Context(), s.options); err != nil {
		t.Error(err)
	}
	if strings.Contains(s.hosts["node1"].content("/etc/hosts"), "kkbundle") || !strings.Contains(s.hosts["cp1"].content("/etc/hosts"), "kkbundle") {
		t.Error("it must reset node1, and node1 alone")
	}
}

func TestTwoRunsWithOneWorkDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	s.dialing("")
	r := s.run(t, nil)
	if err := r.Dir.Lock(task.ThisOwner(r.Now())); err != nil {
		t.Fatal(err)
	}
	var locked *task.LockedError
	if err := Reset(t.Context(), s.options); !errors.As(err, &locked) || !strings.Contains(err.Error(), "work directory "+s.options.WorkDir) {
		t.Errorf("a second run: %v", err)
	}
	if err := r.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Reset(t.Context(), s.options); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
}

// TestLookingLeavesARunAlone has a dry run end on a host where an installation has just begun.
func TestLookingLeavesARunAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, "cp1")
	one, two := s.run(t, nil).Hosts[0], s.run(t, nil).Hosts[0]
	helper := filepath.Join(s.hosts["cp1"].root, host.HelperPath)
	s.hosts["cp1"].put(t, host.HelperPath, "")
	release, err := engine.Lock(t.Context(), one, task.ThisOwner(one.Site.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if err := forgetHelper(t.Context(), two); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(helper); err != nil {
		t.Error("the helper was taken from a run that needs it:", err)
	}
	release()
	for range 2 {
		if err := forgetHelper(t.Context(), two); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.hosts["cp1"].root, task.StateDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

// resetWould wants a dry run of reset to name paths on a host.
func resetWould(s *site, t *testing.T, host, step string, paths ...string) {
	t.Helper()
	o := s.options
	o.DryRun = true
	s.events = nil
	if err := Reset(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(s.events, func(e task.Event) bool { return e.State == task.Would && e.Host == host && e.Task == step })
	if i < 0 {
		t.Fatalf("nothing about %s on %s in %+v", step, host, s.events)
	}
	for _, p := range paths {
		if !strings.Contains(s.events[i].Message, p) {
			t.Errorf("%s would go with %q, which lacks %s", step, s.events[i].Message, p)
		}
	}
}
