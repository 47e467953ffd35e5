//go:build linux

package installer

import (
	"testing"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// CoreDNS can ask the name servers that a host asks, unless that is the host itself.
func TestNameserversOfHosts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ any, forwards bool }{
		"nameserver 10.0.0.53\n": {true, true},
		" nameserver\t2001:db8::53\n# nameserver 127.0.0.1\noptions edns0\n": {true, true},
		"nameserver 127.0.0.1\n":                          {true, false},
		"nameserver 10.0.0.53\nnameserver ::1\n":          {true, false},
		"search site.example\n#nameserver 10.0.0.53\n":    {false, false},
		"nameserver\n; nameserver 10.0.0.53\n":            {false, false},
		"nameserver fe80::1%eth0\nnameserver 10.0.0.53\n": {true, true},
	} {
		s := sitetest.NewSite(t, "cp1")
		s.Hosts["cp1"].Stub(t, "systemctl", "exit 3") // systemd-resolved does not run
		s.Hosts["cp1"].Put(t, "/etc/resolv.conf", text)
		r := s.Run(t, nil)
		forwards, err := addon.HasNameserver(t.Context(), r.Hosts[0])
		if err != nil || forwards != want.forwards {
			t.Errorf("%q: CoreDNS forwards %v, %v", text, forwards, err)
		}
		if got, err := addon.HaveNameservers(t.Context(), r.Site); err != nil || got != want.any {
			t.Errorf("%q: the cache of the node forwards %v, %v", text, got, err)
		}
	}
	// Where systemd-resolved runs, its own file counts, and not the one with its address.
	s := sitetest.NewSite(t, "cp1")
	s.Hosts["cp1"].Put(t, "/etc/resolv.conf", "nameserver 127.0.0.53\n")
	if has, err := addon.HasNameserver(t.Context(), s.Run(t, nil).Hosts[0]); err != nil || has {
		t.Errorf("without the file: %v, %v", has, err)
	}
	s.Hosts["cp1"].Put(t, "/run/systemd/resolve/resolv.conf", "nameserver 10.0.0.53\n")
	if has, err := addon.HasNameserver(t.Context(), s.Run(t, nil).Hosts[0]); err != nil || !has {
		t.Errorf("with systemd-resolved: %v, %v", has, err)
	}
}
