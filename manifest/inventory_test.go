package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInventoryHosts(t *testing.T) {
	inv := readInventory(t, "inventory.yaml")
	type row struct {
		Name, Address, Internal, User, Key, Sudo string
		Port                                     int
		Roles                                    []Role
	}
	var got []row
	for _, h := range inv.Hosts() {
		got = append(got, row{
			h.Name, h.Address, h.InternalIPv4.String(), h.SSH.User, h.SSH.Key,
			h.Sudo.PasswordEnv + h.Sudo.PasswordFile, h.SSH.Port, h.Roles,
		})
	}
	worker := []Role{RoleWorker, RoleCluster}
	want := []row{
		{
			"cp1", "192.168.0.3", "10.0.0.3", "ubuntu", "~/.ssh/id_ed25519", "SUDO_PASSWORD", 22,
			[]Role{RoleControlPlane, RoleEtcd, RoleRegistry, RoleCluster},
		},
		{"node1", "192.168.0.11", "192.168.0.11", "ubuntu", "~/.ssh/id_ed25519", "sudo.txt", 2222, worker},
		{"node2", "192.168.0.12", "192.168.0.12", "ubuntu", "~/.ssh/id_ed25519", "sudo.txt", 2222, worker},
		{"node3", "192.168.0.13", "192.168.0.13", "ubuntu", "~/.ssh/id_ed25519", "sudo.txt", 2222, worker},
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("hosts (-got +want):\n%s", diff)
	}

	hosts := readInventory(t, "inventory-dns.yaml").Hosts()
	if h := hosts[1]; h.Name != "w08.site.example" || h.Address != h.Name || h.InternalIPv4.IsValid() ||
		h.SSH.User != "root" || h.SSH.Port != 22 {
		t.Errorf("host by name: %+v", h)
	}
	if h := hosts[0]; !h.Is(RoleEtcd) {
		t.Errorf("without a group etcd the control plane has it: %v", h.Roles)
	}
	if n := len(hosts); n != 4 {
		t.Errorf("%d hosts, want 4", n)
	}
}

// A host that names its own way to log in does not also get that of vars.
func TestInventoryLogin(t *testing.T) {
	vars := SSH{User: "ubuntu", Key: "key", Bastion: "b"}
	got := vars.with(SSH{PasswordEnv: "P"})
	if want := (SSH{User: "ubuntu", PasswordEnv: "P", Bastion: "b"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestInventoryCheck(t *testing.T) {
	cluster := func(more string) *Cluster {
		c, err := ParseCluster("c",
			[]byte("{apiVersion: kkbundle.io/v1, kind: Cluster, metadata: {name: a}, kubernetes: {version: v1.34.3"+
				more+"}"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, tc := range []struct{ inventory, cluster, want string }{
		{"inventory.yaml", "}", ""},
		{"inventory-dns.yaml", "}", ""}, // the registry is on the first control plane
		{
			"inventory-dns.yaml", "}, imageRegistry: {vip: 10.0.0.9}",
			"inventory-dns.yaml:8:1: groups.image_registry: imageRegistry.vip of the cluster file is for two hosts or more and here is 0; name two, or leave vip out and name one",
		},
		{"inventory-dns.yaml", "}, imageRegistry: {type: existing, address: h}", ""},
		{
			"inventory.yaml", "}, imageRegistry: {type: existing, address: h}",
			"inventory.yaml:10:3: groups.image_registry: the cluster uses the registry h, so none is installed; leave the group out",
		},
		{
			"inventory.yaml", ", podCIDR: 192.168.0.0/23}",
			"inventory.yaml:5:3: hosts: node1 has the address 192.168.0.11, which lies in a network of the cluster; change podCIDR or serviceCIDR\n" +
				"inventory.yaml:5:3: hosts: node2 has the address 192.168.0.12, which lies in a network of the cluster; change podCIDR or serviceCIDR\n" +
				"inventory.yaml:5:3: hosts: node3 has the address 192.168.0.13, which lies in a network of the cluster; change podCIDR or serviceCIDR\n" +
				"inventory.yaml:8:3: groups: 4 nodes do not fit into podCIDR 192.168.0.0/23: each takes a /24",
		},
	} {
		got := ""
		if err := readInventory(t, tc.inventory).Check(cluster(tc.cluster)); err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(got, tc.want); diff != "" {
			t.Errorf("%s with %s (-got +want):\n%s", tc.inventory, tc.cluster, diff)
		}
	}
	pair := "{apiVersion: kkbundle.io/v1, kind: Inventory, hosts: {a: {address: 10.0.0.1}, b: {address: 10.0.0.2}, c: {address: 10.0.0.3}}, groups: {kube_control_plane: [a], image_registry: ["
	for _, tc := range []struct{ hosts, registry, want string }{
		{"a", "registry", ""},
		{"a", "harbor", ""},
		{"b, c", "registry, vip: 10.0.0.9", ""},
		{"b, c", "harbor, vip: 10.0.0.9", ""},
		{"a, b, c", "registry, vip: 10.0.0.9", ""},
		{"b, c", "registry", "groups.image_registry: 2 hosts, and the cluster file has no imageRegistry.vip; several hosts need an address that they share, else name one host"},
		{
			"a", "registry, vip: 10.0.0.9",
			"groups.image_registry: imageRegistry.vip of the cluster file is for two hosts or more and here is 1; name two, or leave vip out and name one",
		},
		{
			"a, b, c", "harbor, vip: 10.0.0.9",
			"groups.image_registry: 3 hosts; Harbor is installed on two at most",
		},
		{
			"b, c", "registry, vip: 10.0.0.1",
			"hosts: a has the address 10.0.0.1, which imageRegistry.vip of the cluster file has, too; choose one that nobody has",
		},
		{"", "harbor", ""},
		{"a", "none", ""},
		{
			"a", "registry}, controlPlaneEndpoint: {type: kube-vip, address: 10.0.0.3",
			"hosts: c has the address 10.0.0.3, which controlPlaneEndpoint.address of the cluster file has, too, for kube-vip; choose one that nobody has",
		},
		{"a", "registry}, controlPlaneEndpoint: {type: external, address: 10.0.0.1", ""},
	} {
		inv, err := ParseInventory("i", []byte(pair+tc.hosts+"]}}"))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := inv.Check(cluster("}, imageRegistry: {type: " + tc.registry + "}")); err != nil {
			_, got, _ = strings.Cut(err.Error(), ": ")
		}
		if got != tc.want {
			t.Errorf("[%s] with %s: %s\nwant %s", tc.hosts, tc.registry, got, tc.want)
		}
	}
	inv, err := ParseInventory("i",
		[]byte("{apiVersion: kkbundle.io/v1, kind: Inventory, hosts: {a: , b: }, groups: {kube_control_plane: [a], image_registry: [a], etcd: [b]}}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := inv.Check(cluster("}")); err == nil {
		t.Error("internal etcd beside the control plane: accepted")
	}
}

// A registry that kkbundle installs is on the first control plane unless the inventory says otherwise.
func TestInventoryWithDefaults(t *testing.T) {
	const text = "{apiVersion: kkbundle.io/v1, kind: Inventory, hosts: {w: {address: 10.0.0.9}, \"cp[1:3]\": {address: \"10.0.0.[1:3]\"}}, " +
		"groups: {kube_control_plane: [cp3, \"cp[1:2]\"], kube_worker: [w]"
	for _, tc := range []struct{ group, registry, want string }{
		{"", "", "cp1"},
		{"", "type: harbor", "cp1"},
		{", image_registry: [w]", "", "w"},
		{"", "type: existing, address: h", ""},
		{"", "type: none", ""},
		{"", "vip: 10.0.0.8", ""},
	} {
		inv, err := ParseInventory("i", []byte(text+tc.group+"}}"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseCluster("c",
			[]byte("{apiVersion: kkbundle.io/v1, kind: Cluster, metadata: {name: a}, kubernetes: {version: v1.34.3}, imageRegistry: {"+tc.registry+"}}"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range inv.WithDefaults(c).Hosts() {
			if h.Is(RoleRegistry) {
				got = append(got, h.Name)
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("{%s}%s: the registry is on %v, want %s", tc.registry, tc.group, got, tc.want)
		}
		if len(inv.Groups.Registry) > 0 != (tc.group != "") {
			t.Error("the inventory itself was changed")
		}
	}
}

func readInventory(t *testing.T, name string) *Inventory {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "valid", name))
	if err != nil {
		t.Fatal(err)
	}
	inv, err := ParseInventory(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// TestNodesAreRegistrable: names and addresses that a kubelet or kubeadm refuses are found in the inventory.
func TestNodesAreRegistrable(t *testing.T) {
	long := strings.Repeat("rack17.", 9) // 63 characters with its last dot
	for text, want := range map[string]string{
		"n1: {internalIPv4: 169.254.152.255}":                           "hosts[n1].internalIPv4: other nodes do not reach 169.254.152.255",
		"n1: {address: 169.254.1.1}":                                    "other nodes do not reach 169.254.1.1",
		"n1: {internalIPv4: 255.255.255.255}":                           "other nodes do not reach 255.255.255.255",
		"n1: {internalIPv4: 127.0.0.1}":                                 "other nodes do not reach 127.0.0.1",
		"n1: {internalIPv4: 224.0.0.1}":                                 "other nodes do not reach 224.0.0.1",
		"n1: {internalIPv4: 0.0.0.0}":                                   "other nodes do not reach 0.0.0.0",
		"n1: {internalIPv4: 10.0.0.1, internalIPv6: 'fe80::1'}":         "other nodes do not reach fe80::1",
		"n1: {internalIPv4: 10.0.0.1, internalIPv6: 'fd00::1'}":         "",
		long[:62] + ": {address: 10.0.0.1}":                             "",
		long + "n: {address: 10.0.0.1}":                                 "has 64 characters; a node's name has at most 63",
		"n1: {address: 10.0.0.1}\n  " + long + "n: {address: 10.0.0.2}": "", // a registry
	} {
		name, _, _ := strings.Cut(text, ":")
		_, err := ParseInventory("i", []byte("apiVersion: kkbundle.io/v1\nkind: Inventory\nhosts:\n  "+text+
			"\ngroups: {kube_control_plane: ["+name+"], kube_worker: ["+name+"]}\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
