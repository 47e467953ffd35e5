//go:build linux

package reset

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestHostPreparation(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	forwarding := "1\n1\n"
	for _, h := range s.Hosts {
		h.Put(t, "/etc/fstab", "/dev/sda1 / ext4 defaults 0 1\n/dev/sda2 none swap sw 0 0\n")
		h.Put(t, "/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n")
		h.Answer("swapoff", func(context.Context, host.Cmd) error {
			h.Put(t, "/proc/swaps", "Filename Type Size Used Priority\n")
			return nil
		})
		h.Answer("sysctl", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Args[1] == "--ignore" && !slices.Contains(cmd.Args, "net.ipv4.conf.all.route_localnet") {
				t.Error("what kube-proxy sets is not remembered:", cmd.Args)
			}
			text := map[string]string{
				"--ignore": "fs.inotify.max_user_watches = 999999999\nnet.ipv4.ip_forward = 0\n",
				"--values": forwarding,
			}[cmd.Args[1]]
			if text != "" {
				_, _ = cmd.Stdout.Write([]byte(text))
			}
			return nil
		})
	}
	c := s.Options.Cluster
	phases := []task.Phase{{Name: "init", Tasks: []task.Task{
		machine.HostsTask(), machine.SwapTask(c),
		machine.KernelTask(c), machine.RouteTask(c),
	}}}
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.States() {
		if !strings.HasSuffix(state, "changed") {
			t.Error(state)
		}
	}
	h := s.Hosts["node1"]
	tasktest.Golden(t, "node1-hosts", []byte(h.Content("/etc/hosts")))
	tasktest.Golden(t, "node1-fstab", []byte(h.Content("/etc/fstab")))
	tasktest.Golden(t, "node1-sysctl.conf", []byte(h.Content(machine.SysctlPath)))
	tasktest.Golden(t, "node1-route.service", []byte(h.Content("/etc/systemd/system/"+machine.RouteUnit)))
	if got := h.Content(marks.SysctlBefore); got != "fs.inotify.max_user_watches = 999999999\nnet.ipv4.ip_forward = 0\n" {
		t.Errorf("what was before: %q", got)
	}
	h.Said("")
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	for _, state := range s.States() {
		if !strings.HasSuffix(state, "done") {
			t.Error("second run:", state)
		}
	}
	forwarding = "0\n1\n" // as after a start that did not read the file
	if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
		t.Fatal(err)
	}
	if states := strings.Join(s.States(), " "); !strings.Contains(states, "kernel@cp1 changed") {
		t.Error("a parameter that was undone is not set again:", states)
	}
	h.Said("")
	if err := s.Run(t, nil).Phases(t.Context(),
		[]task.Phase{{
			Name:  "reset",
			Tasks: []task.Task{{Name: "host", Done: begin.NotInstalled, Do: restoreHost}},
		}}); err != nil {
		t.Fatal(err)
	}
	want := []string{"sysctl --write fs.inotify.max_user_watches=999999999", "sysctl --write net.ipv4.ip_forward=0"}
	if diff := cmp.Diff(h.Said("sysctl"), append([]string(nil), want...)); diff != "" {
		// The second run's looks are recorded, too; only writes count.
		t.Errorf("reset (-got +want):\n%s", diff)
	}
	if h.Content("/etc/hosts") != "127.0.0.1 localhost\n" ||
		!strings.Contains(h.Content("/etc/fstab"), "\n/dev/sda2 none swap") || h.Content(machine.SysctlPath) != "" {
		t.Errorf("reset leaves hosts %q, fstab %q, sysctl %q", h.Content("/etc/hosts"), h.Content("/etc/fstab"),
			h.Content(machine.SysctlPath))
	}
}
