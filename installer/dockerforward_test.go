//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// TestForwardIsRestored has Docker change what a host does with packets for others, and reset put that back. sysctl
// and iptables are scripts that keep a value; TestHarbor (lab) has real ones.
func TestForwardIsRestored(t *testing.T) {
	t.Parallel()
	const kept = `value=$(dirname "$0")/$(basename "$0").value
case "$*" in
  *--list-rules*) echo "-P FORWARD $(cat "$value")"; echo "-A FORWARD -j DOCKER-USER";;
  "--policy FORWARD "*) echo "$3" >"$value";;
  "--write net.ipv4.ip_forward="*) echo "${2#*=}" >"$value";;
  "--ignore net.ipv4.ip_forward") echo "net.ipv4.ip_forward = $(cat "$value")";;
esac`
	set := func(h *sitetest.Rooted, program, value string) {
		if err := os.WriteFile(filepath.Join(h.Stubs, program+".value"), []byte(value+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct{ forwards, four, six, want string }{
		"a host that does not forward": {
			"0", "ACCEPT", "ACCEPT",
			"sysctl --write net.ipv4.ip_forward=0; iptables --policy FORWARD ACCEPT",
		},
		"a node where Docker was quicker than systemd-sysctl after a restart": {
			"1", "ACCEPT", "ACCEPT",
			"iptables --policy FORWARD ACCEPT",
		},
		"one that drops": {"0", "DROP", "DROP", "sysctl --write net.ipv4.ip_forward=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "reg1")
			h := s.Hosts["reg1"]
			for program, value := range map[string]string{
				"sysctl": c.forwards, "iptables": c.four,
				"ip6tables": c.six,
			} {
				h.Stub(t, program, kept)
				set(h, program, value)
			}
			r := s.Run(t, nil)
			target := r.Hosts[0]
			for range 2 { // the second time, Docker has been there
				if err := cri.RememberForward(t.Context(), target); err != nil {
					t.Fatal(err)
				}
				set(h, "sysctl", "1")
				set(h, "iptables", "DROP")
			}
			h.Said("")
			for range 2 {
				if err := cri.RestoreForward(t.Context(), target); err != nil {
					t.Fatal(err)
				}
			}
			var changes []string
			for _, line := range h.Said("") {
				if strings.Contains(line, "--write") || strings.Contains(line, "--policy") {
					changes = append(changes, line)
				}
			}
			want := strings.Split(c.want, "; ")
			if c.forwards == "0" { // that is written without a look
				want = append(want, want[0])
			}
			if diff := cmp.Diff(changes, want); diff != "" {
				t.Errorf("it changed (-got +want):\n%s", diff)
			}
		})
	}
}

// Where Docker never ran, nothing is known and nothing is changed.
func TestForwardOfOthersStays(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "reg1")
	if err := cri.RestoreForward(t.Context(), s.Run(t, nil).Hosts[0]); err != nil {
		t.Fatal(err)
	}
	for _, line := range s.Hosts["reg1"].Said("") {
		if strings.Contains(line, "tables") || strings.Contains(line, "sysctl") {
			t.Errorf("it ran %s", line)
		}
	}
}
