//go:build linux

package begin

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// onLoopback gives each host of a site an address of this machine, counted from first, which another process of tests
// does not have. Addresses are not used twice: a program that another test starts has a closed listener open until it
// runs.
func onLoopback(r *engine.Run, first int) []precheck.Host {
	var hosts []precheck.Host
	for i, t := range r.Hosts {
		t.InternalIPv4 = netip.AddrFrom4([4]byte{127, byte(os.Getpid()>>8) | 128, byte(os.Getpid()), byte(first + i)})
		hosts = append(hosts, precheck.Host{Host: t.Host, Facts: &node.Facts{}})
	}
	return hosts
}

// Found lists links as "from>to:port/network what became of it", without those that are just fine.
func Found(links []precheck.Link) (list []string, fine int) {
	for _, l := range links {
		switch {
		case l.OK && l.Error == "" && l.Skipped == "" && !l.Service:
			fine++
		default:
			list = append(list, fmt.Sprintf("%s>%s:%d/%s ok=%v service=%v error=%q skipped=%v", l.From, l.To, l.Port,
				l.Network, l.OK, l.Service, l.Error, l.Skipped != ""))
		}
	}
	return sitetest.Sorted(list), fine
}

func TestLinks(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1", "node2")
	r := s.Run(t, nil)
	hosts := onLoopback(r, 1)
	tried := links(t.Context(), r, hosts, r.Hosts)
	if list, fine := Found(tried); len(list) > 0 || fine != 2+2+2+6 { // API server, kubelet, registry, flannel
		t.Errorf("%d are fine, and %q", fine, list)
	}

	// A service is there already; UDP does not tell who it is; a helper that fails holds nobody up.
	hosts = onLoopback(r, 11)
	kubelet, err := net.Listen("tcp", netip.AddrPortFrom(hosts[1].InternalIPv4, 10250).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kubelet.Close() }()
	vxlan, err := net.ListenPacket("udp", netip.AddrPortFrom(hosts[1].InternalIPv4, 8472).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = vxlan.Close() }()
	s.Hosts["node2"].Answer(host.HelperPath, func(_ context.Context, cmd host.Cmd) error {
		return &host.ExitError{Host: "node2", Args: cmd.Args, Code: 137, Stderr: "Killed"}
	})
	list, fine := Found(links(t.Context(), r, hosts, r.Hosts))
	want := []string{
		`cp1>node1:10250/tcp ok=true service=true error="" skipped=false`,
		`cp1>node1:8472/udp ok=false service=true error="" skipped=true`,
		`cp1>node2:10250/tcp ok=false service=false error="" skipped=true`,
		`cp1>node2:8472/udp ok=false service=false error="" skipped=true`,
		`node1>node2:8472/udp ok=false service=false error="" skipped=true`,
		`node2>cp1:5000/tcp ok=false service=false error="" skipped=true`,
		`node2>cp1:6443/tcp ok=false service=false error="" skipped=true`,
		`node2>cp1:8472/udp ok=false service=false error="" skipped=true`,
		`node2>node1:8472/udp ok=false service=true error="" skipped=true`,
	}
	if !slices.Equal(list, want) || fine != 3 {
		t.Errorf("%d are fine, and\n%s", fine, strings.Join(list, "\n"))
	}
}

// TestLinksWithTheWrongAddress: an address that the host does not have cannot be listened on.
func TestLinksWithTheWrongAddress(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	r := s.Run(t, nil)
	hosts := onLoopback(r, 21)
	hosts[1].InternalIPv4 = netip.MustParseAddr("192.0.2.1")
	for _, l := range links(t.Context(), r, hosts, r.Hosts) {
		if l.OK != (l.To == "cp1") || (l.Skipped == "") != l.OK {
			t.Errorf("%+v", l)
		}
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	names := []string{"cp1", "a", "b", "c", "d", "e", "f", "g"}
	shared := map[string]bool{"cp1": true}
	var got []string
	for _, g := range groups(names, shared, 4) {
		text := ""
		for _, name := range names {
			if g[name] {
				text += name
			}
		}
		got = append(got, text)
	}
	if want := []string{"cp1abcd", "cp1cdef", "cp1efg"}; !slices.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	if one := groups([]string{"cp1"}, shared, 4); len(one) != 1 || !one[0]["cp1"] {
		t.Errorf("one host: %v", one)
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	c := &engine.Claims{}
	if got := c.Claim([]netip.Addr{a}); len(got) != 1 {
		t.Errorf("the first: %v", got)
	}
	if got := c.Claim([]netip.Addr{a, b}); len(got) != 1 || got[0] != b {
		t.Errorf("the second: %v", got)
	}
}
