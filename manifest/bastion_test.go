package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest/scalar"
)

func parseInventory(t *testing.T, text string) *Inventory {
	t.Helper()
	inv, err := ParseInventory("i", []byte("apiVersion: kkbundle.io/v1\nkind: Inventory\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// way writes the hops to a host as user@address:port.
func way(h Host) string {
	var hops []string
	for _, hop := range h.Hops {
		hops = append(hops, fmt.Sprintf("%s@%s:%d", hop.SSH.User, hop.Address, hop.SSH.Port))
	}
	return strings.Join(hops, " ")
}

func TestHops(t *testing.T) {
	inv := parseInventory(t, `
vars: {ssh: {user: ubuntu, port: 2222, key: all, bastion: "j1,bob@j2.example:2022"}}
groupVars: {kube_worker: {ssh: {bastion: deep}}}
hosts:
  j1: {address: 10.0.0.1, ssh: {user: jump, key: j1}}
  deep: {address: 10.0.0.2, ssh: {bastion: "j1, root@[fd00::5]"}}
  plain: {address: 10.0.0.3}
  direct: {address: 10.0.0.4, ssh: {bastion: none}}
  local: {local: true}
  worker: {address: 10.0.0.5}
groups: {kube_control_plane: [plain], kube_worker: [worker]}
`)
	got := map[string]string{}
	for _, h := range inv.Hosts() {
		got[h.Name] = way(h)
		if h.SSH.Bastion != "" {
			t.Errorf("%s still has bastion %q", h.Name, h.SSH.Bastion)
		}
	}
	j1, deep := "jump@10.0.0.1:2222", "ubuntu@10.0.0.2:2222"
	want := map[string]string{
		"j1":     "", // what holds for all holds for the hops up to themselves
		"deep":   j1 + " root@fd00::5:22",
		"plain":  j1 + " bob@j2.example:2022",
		"direct": "",
		"local":  "",
		"worker": j1 + " root@fd00::5:22 " + deep,
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	hops := inv.Hosts()[2].Hops
	if hops[0].Name != "j1" || hops[0].SSH.Key != "j1" || hops[1].Name != "j2.example" || hops[1].SSH.Key != "all" {
		t.Errorf("login of hops: %+v", hops)
	}
}

// An inventory that says everything host by host has the same hosts.
func TestResolved(t *testing.T) {
	each(t, "valid", func(t *testing.T, name string, _ []byte) {
		if !strings.HasPrefix(name, "inventory") {
			return
		}
		inv := readInventory(t, name)
		show := func(inv *Inventory) (rows []string) {
			for _, h := range inv.Hosts() {
				for i := range h.Hops { // a hop that is a host here is named; its login is that host's
					h.Hops[i].SSH.Bastion = ""
				}
				rows = append(rows, fmt.Sprint(h.Name, h.Address, h.InternalIPv4, h.InternalIPv6, h.Local, h.SSH,
					h.Hops, h.Sudo, h.Roles, h.Labels, h.Annotations, h.Taints, len(h.settings)))
			}
			return rows
		}
		if diff := cmp.Diff(show(inv.Resolved()), show(inv)); diff != "" {
			t.Errorf("(-resolved +written):\n%s", diff)
		}
	})
}

// The largest inventory there can be, each host with an entry of its own behind two bastions.
func TestInventoryLargest(t *testing.T) {
	var b strings.Builder
	b.WriteString("vars: {ssh: {bastion: \"jump.example,h1\"}, labels: {a: b}}\nhosts:\n")
	for i := range scalar.MaxHosts {
		fmt.Fprintf(&b, "  h%d: {address: 10.%d.%d.%d, cluster: {kubernetes: {maxPods: 50}}}\n", i, i>>16, i>>8&255,
			i&255)
	}
	b.WriteString("groups: {kube_control_plane: [h0], kube_worker: [\"h[1:9999]\"]}\n")
	inv := parseInventory(t, b.String())
	hosts := inv.Hosts()
	if len(hosts) != scalar.MaxHosts || len(hosts[scalar.MaxHosts-1].Hops) != 2 {
		t.Fatalf("%d hosts, the last %+v", len(hosts), hosts[len(hosts)-1])
	}
	c, err := ParseCluster("c",
		[]byte("{apiVersion: kkbundle.io/v1, kind: Cluster, metadata: {name: a}, kubernetes: {version: v1.34.3}}"))
	if err != nil {
		t.Fatal(err)
	}
	last, err := c.ForHost(inv, hosts[scalar.MaxHosts-1])
	if err != nil || last.Kubernetes.MaxPods != 50 {
		t.Errorf("%+v, %v", last, err)
	}
	if _, err := inv.Host("H17"); err == nil || !strings.Contains(err.Error(), "did you mean h17?") {
		t.Errorf("a host that is not there: %v", err)
	}
}
