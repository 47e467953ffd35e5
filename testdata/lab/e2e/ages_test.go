package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestAges installs one cluster on three releases of Debian. The control plane, etcd and the registry run on the
// oldest.
func TestAges(t *testing.T) {
	th := start(t, scenario{hosts: 3, releases: []software.Release{
		software.Bullseye, software.Bookworm,
		software.Trixie,
	}})
	th.nodes, th.pristine = 3, th.traces(t)
	steps(t, []step{
		{"the hosts have three releases of the C library", th.libraries},
		{"build", th.makeBundle},
		{"the precheck blocks on none of them", func(t *testing.T) { run(t, th.site(t, "precheck")).must(t, 0) }},
		{"install", func(t *testing.T) {
			r := run(t, th.site(t, "install")).must(t, 0)
			t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
		}},
		{"the cluster works", th.cluster},
		{"a rerun changes nothing", th.rerun},
		{"status says healthy, and a support bundle has no secrets", th.looks},
		{"reset leaves nothing, and everything as it was", th.reset},
		{"no packet left the hosts' network", th.packets},
	})
}

// libraries checks that the hosts have different releases of glibc and systemd.
func (th *thread) libraries(t *testing.T) {
	var seen []string
	for _, h := range th.lab.Hosts {
		got := th.on(t, h.Number, "getconf GNU_LIBC_VERSION; systemctl --version | head -n 1; iptables --version")
		t.Logf("%s: %s", th.systems[h.Number-1], strings.ReplaceAll(strings.TrimSpace(got), "\n", ", "))
		library, _, _ := strings.Cut(got, "\n")
		seen = append(seen, library)
	}
	if want := []string{"glibc 2.31", "glibc 2.36", "glibc 2.41"}; !slices.Equal(seen, want) {
		t.Errorf("the hosts have %q, want %q", seen, want)
	}
}
