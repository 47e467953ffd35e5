package precheck_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// What only matters to kubeadm does not keep k3s off a host that is fit for it, and what an earlier k3s left does.
func TestK3s(t *testing.T) {
	t.Parallel()
	in := good(t)
	in.Install = true
	c := *in.Cluster
	c.Kubernetes = manifest.Kubernetes{Distribution: "k3s", Version: "v1.31.14+k3s1"}
	in.Cluster = &c
	for i := range in.Hosts {
		programs := in.Hosts[i].Facts.Executables
		for _, name := range []string{"conntrack", "iptables", "socat", "nsenter"} { // k3s brings its own
			delete(programs, name)
		}
	}
	for _, one := range precheck.Evaluate(in).Results {
		if !one.OK && one.Level == precheck.Block {
			t.Errorf("%s blocks on %q: %s", one.ID, one.Host, one.Found)
		}
	}
	facts := in.Hosts[0].Facts
	for entries, want := range map[string]bool{"storage": false, "agent server storage": true} {
		path := facts.Path("/var/lib/rancher/k3s")
		path.Path, path.Type, path.Entries = "/var/lib/rancher/k3s", "dir", strings.Fields(entries)
		changed := *facts
		changed.Paths = append(slices.DeleteFunc(slices.Clone(facts.Paths),
			func(p node.Path) bool { return p.Path == path.Path }), path)
		in.Hosts[0].Facts = &changed
		if got := slices.ContainsFunc(failed(precheck.Evaluate(in)),
			func(id string) bool { return strings.Contains(id, "leftovers") }); got != want {
			t.Errorf("leftovers with %s: %v", entries, got)
		}
	}
}
