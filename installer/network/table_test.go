package network

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// TestAll: the table has the networks that a cluster file may name, in the order of its schema, and the catalog has
// their components.
func TestAll(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]Table{
		"Type": All(),
		"With": slices.DeleteFunc(All(), func(n Network) bool { return n.Adds || n.Name == manifest.NetworkNone }),
	} {
		f, _ := reflect.TypeFor[manifest.CNI]().FieldByName(field)
		if got := f.Tag.Get("enum"); got != strings.Join(want.Names(), ",") {
			t.Errorf("cni.%s may be %s; the table has %v", strings.ToLower(field), got, want.Names())
		}
	}
	for _, n := range All() {
		if n.Name == manifest.NetworkNone {
			continue
		}
		c := tasktest.Cluster(t, "cni: {type: multus, with: flannel}")
		for _, image := range n.Images {
			if _, err := catalog.ImagesOf(c, image); err != nil {
				t.Errorf("%s: %v", n.Name, err)
			}
		}
		if (n.Chart == nil) == (n.Manifest == nil) || n.Title == "" || len(n.Configs) == 0 {
			t.Errorf("%s: it is not installed in one way, or has no title or configuration", n.Name)
		}
		if n.Chart != nil {
			if _, err := catalog.Refs(c, manifest.Need{Kind: manifest.ItemChart, Name: string(n.Name)},
				""); err != nil {
				t.Errorf("%s: %v", n.Name, err)
			}
		}
	}
}

// TestInterfaces: one list of each network's interfaces says what NetworkManager leaves alone, what a firewall trusts
// and what reset removes.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	type lists struct{ Links, Carrying, Staying string }
	got := map[manifest.NetworkType]lists{}
	for _, n := range All() {
		got[n.Name] = lists{
			strings.Join(n.Links(), " "), strings.Join(n.Carrying(), " "),
			strings.Join(n.Staying(), " "),
		}
	}
	want := map[manifest.NetworkType]lists{
		"flannel": {"cni0 flannel* veth*", "cni0 flannel.1 flannel-v6.1", "cni0 flannel.1 flannel-v6.1"},
		"calico": {
			"cali* tunl* vxlan.calico vxlan-v6.calico wireguard.cali wg-v6.cali", "cali* vxlan.calico vxlan-v6.calico",
			"vxlan.calico vxlan-v6.calico wireguard.cali wg-v6.cali",
		},
		"cilium": {
			"cilium* lxc*", "lxc* cilium_host cilium_net cilium_vxlan",
			"cilium_host cilium_vxlan cilium_geneve cilium_wg0",
		},
		"hybridnet": {"*.vxlan* hybr* h_*", "hybr*", ""},
		"kube-ovn": {
			"ovn0 ovs-system br-int genev_sys_* vxlan_sys_* mirror0 *_h", "ovn0 genev_sys_6081",
			"ovn0 ovs-system br-int genev_sys_6081 vxlan_sys_4789 mirror0",
		},
		"multus": {}, "none": {},
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	for link, want := range map[string]bool{
		"cni0": true, "flannel.1": true, "flannel.4096": true, "flannel-v6.1": true, "cali12345": true,
		"vxlan.calico": true, "wireguard.cali": true,
		"cilium_host": true, "lxc_health": true, "ovn0": true,
		"hybr0123456789a": true, "veth1": false, "tunl0": false, "lxcbr0": false, "ovs-system": false, "br-int": false, "eth0": false,
		"docker0": false,
	} {
		if got := All().IsTelling(link); got != want {
			t.Errorf("%s tells of a pod network: %v", link, got)
		}
	}
}

// TestOf: a cluster has one network, or two with one that adds interfaces. Of one that nobody knows there are no facts.
func TestOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cni     manifest.CNI
		names   []string
		primary manifest.NetworkType
	}{
		{manifest.CNI{Type: "cilium"}, []string{"cilium"}, "cilium"},
		{manifest.CNI{Type: "multus", With: "calico"}, []string{"multus", "calico"}, "calico"},
		{manifest.CNI{Type: "none"}, []string{"none"}, "none"},
		{manifest.CNI{Type: "weave"}, []string{"weave"}, "weave"},
	} {
		c := &manifest.Cluster{CNI: tc.cni}
		if diff := cmp.Diff(All().Of(c).Names(), tc.names); diff != "" {
			t.Errorf("%v (-got +want):\n%s", tc.cni, diff)
		}
		if got := All().Primary(c); got.Name != tc.primary {
			t.Errorf("%v: the primary network is %s", tc.cni, got.Name)
		}
	}
	if All().Has("weave") || len(All().Find("weave").Ports) > 0 {
		t.Error("a network that nobody has described has facts")
	}
}
