//go:build linux

package upgrade

import (
	"errors"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// An upgrade makes kubeadm write the member's manifest from the cluster file, so it is refused where that file's
// quota is below a database.
func TestUpgradeKeepsEtcdQuota(t *testing.T) {
	t.Parallel()
	const eight = "    - --quota-backend-bytes=8589934592\n"
	for text, refused := range map[string]bool{
		"":                       true,
		"etcd: {quota: 2560Mi}":  true,
		"etcd: {quota: 4Gi}":     false,
		"etcd: {type: external}": false,
	} {
		s, _, _, _ := sitetest.QuotaSite(t, "8Gi", eight)
		s.Options.Cluster = tasktest.Cluster(t, text)
		r := s.Run(t, nil)
		err := errors.Join(quotaHolds(t.Context(), r.Hosts[0])...)
		if refused != (err != nil) ||
			refused && !strings.Contains(err.Error(), "the database of https://10.0.0.3:2379 has 3.0 GiB") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
