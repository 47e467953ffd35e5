package precheck_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// settle takes the hosts' entries, and with them what differs between them, from an inventory, and the cluster from a
// file with settings.
func settle(in *precheck.Input, inventory string, set ...string) error {
	cluster := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\nkubernetes: {version: v1.34.3}\nprecheck: {minMemory: {worker: 2Gi}}\n"
	c, err := manifest.ParseCluster("cluster.yaml", []byte(cluster), set...)
	if err != nil {
		return err
	}
	inv, err := manifest.ParseInventory("inventory.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Inventory\n"+
		inventory))
	if err != nil {
		return err
	}
	in.Cluster, in.Inventory = c.WithDefaults(), inv
	for i, h := range inv.Hosts() {
		in.Hosts[i].Host = h
	}
	return nil
}

// twoHosts has settings for all workers, and for the host w1.
func twoHosts(group, own string) string {
	return fmt.Sprintf(`hosts:
  cp1: {address: 10.0.0.3, internalIPv4: 10.0.0.3}
  w1: {address: 10.0.0.11, internalIPv4: 10.0.0.11, cluster: {%s}}
groups: {kube_control_plane: [cp1], kube_worker: [w1], image_registry: [cp1]}
groupVars: {kube_worker: {cluster: {%s}}}
`, own, group)
}

// TestHostsOwnSettings: file < group < host < --set, for the worker with 8 GiB of memory, and for nobody else.
func TestHostsOwnSettings(t *testing.T) {
	t.Parallel()
	const much, little = "precheck: {minMemory: {worker: 1024Gi, controlPlane: 1024Gi}}",
		"precheck: {minMemory: {worker: 1Gi, controlPlane: 1Gi}}"
	// Any per-host setting is something that this version cannot install, which "supported" says.
	for _, c := range []struct {
		name, group, host string
		set               []string
		want              []string
	}{
		{"the file", "", "", nil, nil},
		{"the group", much, "", nil, []string{"w1/memory"}},
		{"the host over the group", much, little, nil, nil},
		{"the host", little, much, nil, []string{"w1/memory"}},
		{"--set over the host", much, much, []string{
			"precheck.minMemory.worker=1Gi",
			"precheck.minMemory.controlPlane=1Gi",
		}, nil},
	} {
		in := good(t)
		if err := settle(&in, twoHosts(c.group, c.host), c.set...); err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(failed(precheck.Evaluate(in)), func(one string) bool { return one == "/supported" })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: failed %v, want %v", c.name, got, c.want)
		}
	}
}

// TestHostsOwnSettingsThatDoNotFit: a result for that host, and everything else is checked all the same.
func TestHostsOwnSettingsThatDoNotFit(t *testing.T) {
	t.Parallel()
	in := good(t)
	if err := settle(&in, twoHosts("", "kubernetes: {maxPods: 300}")); err != nil {
		t.Fatal(err)
	}
	in.Hosts[1].Facts.Swaps = []node.Swap{{Name: "/swap", Size: 1}}
	r := precheck.Evaluate(in)
	if diff := cmp.Diff([]string{"w1/host-settings", "w1/swap"}, failed(r)); diff != "" {
		t.Errorf("failed checks (-want +got):\n%s", diff)
	}
	i := slices.IndexFunc(r.Results, func(r precheck.Result) bool { return r.ID == "host-settings" })
	if got := r.Results[i].Found; !strings.HasPrefix(got, "inventory.yaml:5:") ||
		!strings.Contains(got, "kubernetes.maxPods: 300 is not between") {
		t.Errorf("found %q", got)
	}
}

// TestManyHostsOwnSettings: what 10,000 hosts have in common is worked out once, as is what an entry with a range says.
func TestManyHostsOwnSettings(t *testing.T) {
	t.Parallel()
	in := good(t)
	w := in.Hosts[1]
	for range 9998 {
		in.Hosts = append(in.Hosts, w)
	}
	err := settle(&in, `hosts:
  cp1: {address: 10.0.0.3, internalIPv4: 10.0.0.3}
  w[1:9999]: {cluster: {precheck: {minKernel: 6.1.0}}}
groups: {kube_control_plane: [cp1], kube_worker: ["w[1:9999]"], image_registry: [cp1]}
groupVars: {kube_worker: {cluster: {precheck: {minMemory: {worker: 1024Gi}}}}}
`)
	if err != nil {
		t.Fatal(err)
	}
	on := in.Cluster.ForHosts(in.Inventory)
	first, err := on(in.Hosts[1].Host)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range in.Hosts[1:] {
		if c, err := on(h.Host); c != first || err != nil {
			t.Fatalf("%s has a cluster of its own, %v", h.Name, err)
		}
	}
	if c, err := on(in.Hosts[0].Host); c == first || err != nil || c.Precheck.MinKernel == "6.1.0" {
		t.Errorf("the control plane has the workers' cluster, %v", err)
	}
	if first.Precheck.MinKernel != "6.1.0" || first.Kubernetes.MaxPods == 0 {
		t.Errorf("the workers' cluster: %+v", first)
	}
}

// TestSpare: costly questions are asked only for checks that are wanted.
func TestSpare(t *testing.T) {
	t.Parallel()
	in := rich(t)
	for _, c := range []struct {
		precheck.Selection
		sync, vacant, links bool
	}{
		{precheck.Selection{}, true, true, true},
		{precheck.Selection{Only: []string{"etcd"}}, true, false, false},
		{precheck.Selection{Only: []string{"vip-free", "path-mtu"}}, false, true, true},
		{precheck.Selection{Skip: []string{"etcd-latency", "links"}}, false, true, true},
		{precheck.Selection{Only: []string{"network"}, Skip: []string{"links", "path-mtu"}}, false, false, false},
	} {
		p := precheck.ProbeFor(in.Cluster, in.Hosts[0])
		c.Spare(&p)
		if p.Sync != "" != c.sync || len(p.Vacant) > 0 != c.vacant || c.TriesLinks() != c.links {
			t.Errorf("%+v: sync %q, vacant %v, links %v", c.Selection, p.Sync, p.Vacant, c.TriesLinks())
		}
	}
}

// TestNeededPackages: what the roles need and the host has need not be in the bundle.
func TestNeededPackages(t *testing.T) {
	t.Parallel()
	in := rich(t)
	in.Hosts[3].Facts.OS.VersionID = "11"
	for _, c := range []struct {
		has         map[string]string
		err         error
		found, fine string
	}{
		{has: nil, found: "the bundle has"},
		{has: map[string]string{"socat": "1.7"}, found: "not installed: conntrack"},
		{has: map[string]string{"socat": "1.7", "conntrack": "1.4"}, fine: "all that are needed are installed"},
		{
			has: map[string]string{"socat": "1.7", "conntrack": "1.4"}, err: fmt.Errorf("who is that?"),
			found: "the bundle has",
		},
	} {
		in.Hosts[3].Facts.Packages = c.has
		in.PackagesOf = func(roles []manifest.Role, distribution string) ([]string, error) {
			if !slices.Contains(roles, manifest.RoleWorker) || !strings.HasSuffix(distribution, "/11") {
				t.Errorf("asked for %v on %s", roles, distribution)
			}
			return []string{"conntrack", "socat"}, c.err
		}
		r := precheck.Evaluate(in)
		i := slices.IndexFunc(r.Results, func(r precheck.Result) bool { return r.ID == "packages" && r.Host == "w1" })
		if got := r.Results[i]; got.OK != (c.fine != "") || !strings.Contains(got.Found, c.found+c.fine) {
			t.Errorf("with %v: %+v", c.has, got)
		}
	}
}

// TestLostRegistryHost: a run that goes on without one of two registry hosts does not take the pair for one host.
func TestLostRegistryHost(t *testing.T) {
	t.Parallel()
	in := good(t)
	const hosts = `hosts:
  cp1: {address: 10.0.0.3, internalIPv4: 10.0.0.3}
  w1: {address: 10.0.0.11, internalIPv4: 10.0.0.11}
  reg: {address: 10.0.0.12}
groups: {kube_control_plane: [cp1], kube_worker: [w1], image_registry: [cp1, %s]}
`
	for other, want := range map[string]bool{"reg": false, "w1": false, "cp2": true} {
		text := strings.Replace(fmt.Sprintf(hosts, other), "[cp1, cp2]", "[cp1]", 1)
		inv, err := manifest.ParseInventory("inventory.yaml", []byte("apiVersion: kkbundle.io/v1\nkind: Inventory\n"+
			text))
		if err != nil {
			t.Fatal(err)
		}
		in.Inventory, in.Cluster.ImageRegistry.VIP = inv, "10.0.0.200"
		if got := slices.Contains(failed(precheck.Evaluate(in)), "/registry-group"); got != want {
			t.Errorf("cp1 and %s: registry-group fails: %t", other, got)
		}
	}
}
