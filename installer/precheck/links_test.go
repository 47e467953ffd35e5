package precheck_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

func linked(roles map[string][]manifest.Role, names ...string) []precheck.Host {
	var list []precheck.Host
	for i, name := range names {
		h := host(name, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&0xff, i&0xff), roles[name]...)
		h.Facts = &node.Facts{}
		list = append(list, h)
	}
	return list
}

// TestLinksOfRoles: each role is reached where it will listen, by those who need it.
func TestLinksOfRoles(t *testing.T) {
	t.Parallel()
	hosts := linked(map[string][]manifest.Role{
		"cp": {manifest.RoleControlPlane, manifest.RoleRegistry}, "etcd": {manifest.RoleEtcd},
		"w": {manifest.RoleWorker}, "nfs": {manifest.RoleNFS},
	}, "cp", "etcd", "w", "nfs")
	for _, i := range []int{1, 3} { // no nodes
		hosts[i].Roles = slices.DeleteFunc(hosts[i].Roles,
			func(r manifest.Role) bool { return r == manifest.RoleCluster })
	}
	c := &manifest.Cluster{}
	c.Etcd.Type, c.Storage.NFS, c.CNI.Type = "external", true, "calico"
	var got []string
	for _, l := range precheck.Links(c, hosts) {
		got = append(got, fmt.Sprintf("%s>%s:%d/%s", l.From, l.To, l.Port, l.Network))
		if l.Maybe != (l.Port == 179) {
			t.Errorf("whether it is certain that %d is needed: %v", l.Port, !l.Maybe)
		}
	}
	want := []string{
		"w>cp:6443/tcp", "cp>w:10250/tcp", "cp>etcd:2379/tcp", "w>cp:5000/tcp", "cp>nfs:2049/tcp", "w>nfs:2049/tcp",
		"w>cp:4789/udp", "cp>w:4789/udp", "w>cp:179/tcp", "cp>w:179/tcp",
	}
	if !slices.Equal(got, want) {
		t.Errorf("links\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLinksGrowWithHosts: ten times the hosts have ten times the links, and each host is somebody's peer.
func TestLinksGrowWithHosts(t *testing.T) {
	t.Parallel()
	count := func(n int) int {
		roles := map[string][]manifest.Role{"h0": {manifest.RoleControlPlane}}
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("h%d", i))
		}
		links := precheck.Links(&manifest.Cluster{}, linked(roles, names...))
		to, seen := map[string]int{}, map[string]bool{}
		for _, l := range links {
			key := fmt.Sprint(l.From, l.To, l.Network, l.Port)
			if l.From == l.To || seen[key] {
				t.Fatalf("to itself, or twice: %+v", l)
			}
			seen[key] = true
			if l.Network == "udp" {
				to[l.To]++
			}
		}
		for _, name := range names {
			if to[name] < min(4, n-1) {
				t.Fatalf("%d others dial %s", to[name], name)
			}
		}
		return len(links)
	}
	count(2)
	count(7)
	small, large := count(1000), count(10000)
	if large > 11*small {
		t.Errorf("%d links of 1000 hosts, %d of 10000", small, large)
	}
}
