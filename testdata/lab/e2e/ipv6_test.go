package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestIPv6 installs an IPv6-only cluster with kube-proxy in nftables mode. The host is reached for the installation
// by IPv4. TestHardened has both families.
func TestIPv6(t *testing.T) {
	th := start(t, scenario{
		hosts:  1,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}, "image_registry": {1}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "  kubelet: {failCgroupV1: false}\n", `  kubelet: {failCgroupV1: false}
  podCIDR: fd00:233:64::/56
  serviceCIDR: fd00:233::/112
  proxyMode: nftables
`)
		},
	})
	th.makeBundle(t)
	rewrite(t, th.inventory, "  host1: {", "  host1: {internalIPv6: \"fd00:250::11\", ")
	r := run(t, th.site(t, "install")).must(t, 0)
	t.Logf("install: %s\n%s", r.took, r.stderr)
	got := th.kubectl(t, "get pods --all-namespaces --output=jsonpath='{.items[*].status.podIPs[*].ip}'")
	for address := range strings.FieldsSeq(got) {
		if !strings.HasPrefix(address, "fd00:") {
			t.Errorf("a pod has the address %s", address)
		}
	}
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stdout+r.stderr, "0 changed") {
		t.Errorf("a rerun changes something:\n%s", r.stderr)
	}
}
