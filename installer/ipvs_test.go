package installer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The kernels of test machines have no IPVS: this is what ipvsadm(8) and ip(8) print, by their documentation.
func TestVirtualServers(t *testing.T) {
	t.Parallel()
	saved := `-A -t 10.233.0.1:443 -s rr
-a -t 10.233.0.1:443 -r 10.0.0.3:6443 -m -w 1
-A -u 10.233.0.10:53 -s rr
-A -t [fd00:233::1]:443 -s rr
-A -t 192.168.0.9:80 -s wlc
-A -t 10.0.0.3:31234 -s rr
-A -f 7 -s rr
`
	addresses := `7: kube-ipvs0    inet 10.233.0.1/32 scope global kube-ipvs0\       valid_lft forever preferred_lft forever
7: kube-ipvs0    inet 10.233.0.10/32 scope global kube-ipvs0\       valid_lft forever preferred_lft forever
7: kube-ipvs0    inet6 fd00:233::1/128 scope global \       valid_lft forever preferred_lft forever
`
	want := [][]string{{"-t", "10.233.0.1:443"}, {"-u", "10.233.0.10:53"}, {"-t", "[fd00:233::1]:443"}, {"-t", "10.0.0.3:31234"}}
	if diff := cmp.Diff(virtualServers(saved, addresses), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
