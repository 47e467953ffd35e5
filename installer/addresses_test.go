//go:build linux

package installer

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/machine"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

const bothFamilies = "kubernetes: {version: v1.34.3, podCIDR: '10.233.64.0/18,fd00:233:64::/56', serviceCIDR: '10.233.0.0/18,fd00:233::/112'}"

func TestAddressesOfFamilies(t *testing.T) {
	t.Parallel()
	four, six := netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("fd00::4")
	one := node.Interface{Name: "eth0", Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.0.0.4/24"),
		netip.MustParsePrefix("fe80::1/64"), netip.MustParsePrefix("fd00::4/64"),
	}}
	bridge := node.Interface{
		Name: "br0", Kind: "bridge",
		Addresses: []netip.Prefix{netip.MustParsePrefix("fd00:9::1/64")},
	}
	second := node.Interface{Name: "eth1", Addresses: []netip.Prefix{netip.MustParsePrefix("fd00:7::1/64")}}
	routes := []node.DefaultRoute{{Interface: "eth0", Gateway: netip.MustParseAddr("10.0.0.1")}}
	onlySix := "kubernetes: {version: v1.34.3, podCIDR: 'fd00:233:64::/56', serviceCIDR: 'fd00:233::/112'}"
	for name, c := range map[string]struct {
		cluster string
		host    manifest.Host
		facts   []node.Interface
		want    []netip.Addr
	}{
		"IPv4": {"", manifest.Host{}, []node.Interface{one}, []netip.Addr{four}},
		"both, found": {
			bothFamilies,
			manifest.Host{},
			[]node.Interface{one, bridge},
			[]netip.Addr{four, six},
		},
		"both, given": {
			bothFamilies,
			manifest.Host{InternalIPv4: four, InternalIPv6: six},
			nil,
			[]netip.Addr{four, six},
		},
		"both, several": {bothFamilies, manifest.Host{}, []node.Interface{one, second}, nil},
		"both, one of several": {
			bothFamilies,
			manifest.Host{InternalIPv6: six},
			[]node.Interface{one, second},
			[]netip.Addr{four, six},
		},
		"IPv6 beside IPv4": {
			onlySix,
			manifest.Host{InternalIPv4: four},
			[]node.Interface{one},
			[]netip.Addr{six},
		},
		"IPv6, several, no other": {onlySix, manifest.Host{}, []node.Interface{one, second}, nil},
	} {
		c.host.Roles = []manifest.Role{manifest.RoleCluster}
		r := &task.Site{Cluster: tasktest.Cluster(t, c.cluster)}
		target := r.NewHost(c.host)
		if !target.HasAddresses() {
			engine.FindAddresses(target, &node.Facts{Interfaces: c.facts, Routes: routes})
		}
		if target.HasAddresses() != (c.want != nil) {
			t.Errorf("%s: addressed %v", name, target.HasAddresses())
		}
		if c.want != nil {
			if diff := cmp.Diff(kubeadm.JoinAddresses(target.Addresses()), kubeadm.JoinAddresses(c.want)); diff != "" {
				t.Errorf("%s (-got +want):\n%s", name, diff)
			}
		}
	}
	if e := (&task.AddressError{Host: "a", Six: true}); !strings.Contains(e.Error(), "IPv6") ||
		!strings.Contains(e.Hint(), "internalIPv6") {
		t.Errorf("%v; %s", e, e.Hint())
	}
}

// A node without a default route has routes to services, and with Calico to the gateway of pods.
func TestRoutesWithoutDefault(t *testing.T) {
	t.Parallel()
	const gateway = "ExecStart=/sbin/ip -4 route replace 169.254.1.1/32 dev lo scope link src 10.0.0.3\n"
	for cni, want := range map[string]bool{"calico": true, "flannel": false} {
		s := sitetest.NewSite(t, "cp1")
		s.Options.Cluster = tasktest.Cluster(t, "cni: {type: "+cni+"}")
		h := s.Hosts["cp1"]
		h.Answer("ip", func(context.Context, host.Cmd) error { return nil })
		if err := s.Run(t, nil).Phases(t.Context(), []task.Phase{
			{Name: "init", Tasks: []task.Task{machine.RouteTask(s.Options.Cluster)}},
		}); err != nil {
			t.Fatal(err)
		}
		unit := h.Content("/etc/systemd/system/" + machine.RouteUnit)
		if !strings.Contains(unit, "ExecStart=/sbin/ip -4 route replace 10.233.0.0/18 dev lo") ||
			strings.Contains(unit, gateway) != want {
			t.Errorf("%s: unit\n%s", cni, unit)
		}
	}
}

// A node of both families has a line in hosts files, an address for the kubelet and a route to services for each.
func TestHostPreparationOfBothFamilies(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Options.Cluster = tasktest.Cluster(t, bothFamilies)
	h := s.Hosts["cp1"]
	h.Answer("ip", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == task.Family4 { // only IPv4 has a default route
			_, err := cmd.Stdout.Write([]byte("default via 10.0.0.1 dev eth0\n"))
			return err
		}
		return nil
	})
	var set []string
	h.Answer("sysctl", func(_ context.Context, cmd host.Cmd) error {
		if cmd.Args[1] == "--write" {
			set = append(set, cmd.Args[2])
		}
		if strings.HasPrefix(cmd.Args[len(cmd.Args)-1], "net.ipv6.conf.default.forwarding=") {
			return errors.New("stop here")
		}
		return nil
	})
	r := s.Run(t, nil)
	r.Hosts[0].IP6 = netip.MustParseAddr("fd00::3")
	if err := r.Phases(t.Context(),
		[]task.Phase{{Name: "init", Tasks: []task.Task{
			machine.HostsTask(),
			machine.RouteTask(s.Options.Cluster),
		}}}); err != nil {
		t.Fatal(err)
	}
	if got := h.Content("/etc/hosts"); !strings.Contains(got, "10.0.0.3 cp1\nfd00::3 cp1\n") {
		t.Errorf("hosts file\n%s", got)
	}
	unit := h.Content("/etc/systemd/system/" + machine.RouteUnit)
	if !strings.Contains(unit, "ExecStart=/sbin/ip -6 route replace fd00:233::/112 dev lo src fd00::3\n") ||
		strings.Contains(unit, "ip -4") {
		t.Errorf("unit\n%s", unit)
	}
	if err := r.Phases(t.Context(),
		[]task.Phase{{Name: "init", Tasks: []task.Task{machine.KernelTask(s.Options.Cluster)}}}); err == nil {
		t.Error("a required parameter that cannot be set is passed over")
	}
	for _, want := range []string{"net.ipv6.conf.all.forwarding=1", "net.bridge.bridge-nf-call-ip6tables=1"} {
		if !strings.Contains(strings.Join(set, "\n"), want) {
			t.Errorf("%s is not set: %v", want, set)
		}
	}
	j, err := kubeadm.NodeOf(t.Context(), r.Hosts[0])
	if err != nil || kubeadm.JoinAddresses(j.IPs) != "10.0.0.3,fd00::3" {
		t.Errorf("the kubelet is given %v, %v", j.IPs, err)
	}
	if part := kubeadm.NetworkPart(r.Site); len(part.Names) != 1 || part.Names[0] != "fd00::3" {
		t.Errorf("names in the certificate: %v", part.Names)
	}
}
