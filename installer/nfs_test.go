//go:build linux

package installer

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// The kernel that tests run on has no NFS: what is written, and what is run, is what is looked at.
func TestNFSServer(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	c := tasktest.Cluster(t, "storage: {nfs: true}")
	s.Options.Cluster = c
	r := s.Run(t, nil)
	target, h := r.Hosts[1], s.Hosts["node1"]
	h.Put(t, "/etc/exports", "/home *(ro)\n")
	h.Stub(t, "exportfs", "exit 0")
	running := false
	h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
		line := strings.Join(cmd.Args, " ")
		switch {
		case strings.HasPrefix(line, "systemctl is-active") && !running, line == "systemctl cat nfs-server.service":
			return &host.ExitError{Args: cmd.Args, Code: 3}
		case strings.HasPrefix(line, "systemctl enable --now"):
			running = true
		}
		return nil
	})
	task := addon.NFSServerTask(c)
	for range 2 {
		if done, err := task.Done(t.Context(), target); done || err != nil {
			t.Fatal(done, err)
		}
		if err := task.Do(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		if done, err := task.Done(t.Context(), target); !done || err != nil {
			t.Fatal(done, err)
		}
		if err := os.RemoveAll(filepath.Join(h.Root, "srv")); err != nil { // the next round is a repair
			t.Fatal(err)
		}
	}
	want := "# Written by kkbundle: the cluster's nodes.\n" +
		"/srv/nfs/kubernetes 10.0.0.3(rw,sync,no_subtree_check,no_root_squash)\n/srv/nfs/kubernetes 10.0.0.4(rw,sync,no_subtree_check,no_root_squash)\n"
	if got := h.Content(addon.ExportsFile); got != want {
		t.Errorf("got\n%s", got)
	}
	said := strings.Join(h.Said("systemctl"), "\n")
	if !strings.Contains(said, "enable --now nfs-kernel-server.service") || strings.Contains(said, "restart") {
		t.Errorf("ran\n%s", said)
	}
	h.Put(t, "/srv/nfs/kubernetes/volume", "data")
	if err := task.Leaves.Undo(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if h.Content("/srv/nfs/kubernetes/volume") != "data" {
		t.Error("data are gone without --with-data")
	}
	if said := strings.Join(h.Said("systemctl"), "\n"); h.Content(addon.ExportsFile) != "" ||
		!strings.Contains(said, "disable --now nfs-kernel-server.service") {
		t.Errorf("reset left the export, or the server that was started:\n%s", said)
	}
	if _, err := os.Stat(filepath.Join(h.Root, filepath.Dir(addon.ExportsFile))); !os.IsNotExist(err) {
		t.Errorf("reset left the empty directory of the export: %v", err)
	}
	r.WithData = true
	h.Put(t, addon.ExportsFile, "x")
	if err := task.Leaves.Undo(t.Context(), target); err != nil || h.Content("/srv/nfs/kubernetes/volume") != "" {
		t.Error("data are there with --with-data", err)
	}
	if h.Content("/etc/exports") != "/home *(ro)\n" {
		t.Error("the operator's exports were changed")
	}
}

// NetworkManager and networkd are told of the pods' interfaces where they run, and nowhere else.
func TestPodLinks(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	c := tasktest.Cluster(t, "cni: {type: calico}")
	r := s.Run(t, nil)
	target, h := r.Hosts[0], s.Hosts["cp1"]
	runs := map[string]bool{"NetworkManager.service": true}
	h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "is-active" && !runs[cmd.Args[3]] {
			return &host.ExitError{Args: cmd.Args, Code: 3}
		}
		return nil
	})
	task := machine.LinksTask(c, network.All().Primary(c).Links())
	if err := task.Do(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if done, err := task.Done(t.Context(), target); !done || err != nil {
		t.Error(done, err)
	}
	want := "unmanaged-devices+=interface-name:cali*;interface-name:tunl*;interface-name:vxlan.calico;"
	if got := h.Content(machine.NetworkManagerFile); !strings.Contains(got, want) ||
		h.Content(machine.NetworkdFile) != "" {
		t.Errorf("got\n%s%s", got, h.Content(machine.NetworkdFile))
	}
	// A list in a file of the operator's that NetworkManager reads after ours replaces the one that ours adds to. A
	// section of a device stays.
	const section = "[device-kkbundle]\nmatch-device=interface-name:cali*;interface-name:tunl*;interface-name:vxlan.calico;"
	if got := h.Content(machine.NetworkManagerFile); !strings.Contains(got, section) ||
		!strings.HasSuffix(got, "\nmanaged=0\n") {
		t.Errorf("no section of its own in\n%s", got)
	}
	if err := task.Leaves.Undo(t.Context(), target); err != nil || h.Content(machine.NetworkManagerFile) != "" {
		t.Error("reset left the file", err)
	}
}
