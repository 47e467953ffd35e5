//go:build linux

package installer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

const debianChrony = "pool 2.debian.pool.ntp.org iburst\nsourcedir /etc/chrony/sources.d\nmakestep 1 3\n# no end"

func TestWithSources(t *testing.T) {
	t.Parallel()
	from := machine.TimeSources{
		Servers: []string{"10.0.0.1"}, Pools: []string{"pool.corp.example"},
		Clients: []netip.Addr{netip.MustParseAddr("10.0.0.4")},
	}
	got := string(machine.WithSources([]byte(debianChrony), from))
	want := "#kkbundle# pool 2.debian.pool.ntp.org iburst\n#kkbundle# sourcedir /etc/chrony/sources.d\nmakestep 1 3\n# no end\n" + task.OpenBegin + `
server 10.0.0.1 iburst
pool pool.corp.example iburst
local stratum 10 orphan
allow 10.0.0.4
` + task.BlockEnd + "\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if again := string(machine.WithSources([]byte(got), from)); again != want {
		t.Errorf("again: %q", again)
	}
	if back := string(machine.WithSources([]byte(got), machine.TimeSources{})); back != debianChrony {
		t.Errorf("without any: %q", back)
	}
}

// TestClock has the first control plane give the time to a host with chrony and to one with systemd-timesyncd, and
// puts everything back. No clock is set: systemctl is played, as all hosts of a test share the machine's.
func TestClock(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	s.Options.Cluster = tasktest.Cluster(t, "time: {servers: [cp1, ntp.corp.example]}\n")
	for name, h := range s.Hosts {
		h.Answer("systemctl", func(context.Context, host.Cmd) error { return nil })
		if name == "node2" {
			h.Put(t, "/usr/lib/systemd/systemd-timesyncd", "")
		} else {
			h.Put(t, "/etc/chrony/chrony.conf", debianChrony)
		}
	}
	before := map[string]string{}
	for name, h := range s.Hosts {
		before[name] = h.Content("/etc/chrony/chrony.conf")
	}
	phases := []task.Phase{{Name: "init", Tasks: []task.Task{machine.ClockTask()}}}
	for _, want := range []string{"changed", "done"} {
		if err := s.Run(t, nil).Phases(t.Context(), phases); err != nil {
			t.Fatal(err)
		}
		if got := s.States(); !slices.Equal(got, []string{"clock@cp1 " + want, "clock@node1 " + want, "clock@node2 " +
			want}) {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	r := s.Run(t, nil)
	ip := func(name string) string { return r.HostNamed(name).IP.String() }
	for name, want := range map[string]string{
		"cp1": "\nserver ntp.corp.example iburst\nlocal stratum 10 orphan\nallow " + ip("node1") + "\nallow " +
			ip("node2") + "\n",
		"node1": "\nserver " + ip("cp1") + " iburst\nserver ntp.corp.example iburst\n" + task.BlockEnd,
	} {
		if got := s.Hosts[name].Content("/etc/chrony/chrony.conf"); !strings.Contains(got, want) {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if got := s.Hosts["node2"].Content(machine.TimesyncdPath); !strings.Contains(got, "\nNTP="+ip("cp1")+
		" ntp.corp.example\n") {
		t.Errorf("node2 has %q", got)
	}
	for _, target := range r.Hosts {
		if err := machine.RestoreClock(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		h := s.Hosts[target.Name]
		if got := h.Content("/etc/chrony/chrony.conf"); got != before[target.Name] ||
			h.Content(machine.TimesyncdPath) != "" {
			t.Errorf("%s: after a reset %q", target.Name, got)
		}
	}
	s.Hosts["cp1"].Put(t, "/usr/lib/systemd/systemd-timesyncd", "")
	if err := r.Hosts[0].Run(t.Context(), "rm", "/etc/chrony/chrony.conf"); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t, nil).Phases(t.Context(), phases); err == nil ||
		!strings.Contains(err.Error(), "cp1: init clock: systemd-timesyncd cannot serve the time to other hosts") {
		t.Errorf("a server without chrony: %v", err)
	}
	if _, err := machine.TimeConfig(t.Context(), r.Hosts[1], machine.TimeSources{}); errors.Is(err,
		machine.ErrNoTimeService) {
		t.Error(err)
	}
}
