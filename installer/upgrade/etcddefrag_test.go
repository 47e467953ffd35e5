//go:build linux

package upgrade

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// An upgrade over a member with an alarm is refused, also of external etcd, whose API servers are ready in spite of it.
func TestUpgradeRefusesAlarms(t *testing.T) {
	t.Parallel()
	s, _ := upgradeSite(t, "v1.33.6", "cp1", "node1")
	s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.4}\netcd: {type: external}")
	u := upgradeWith(s, t, nil)
	e := &sitetest.SizedEtcd{}
	for _, one := range u.WithRole("etcd") {
		s.Hosts[one.Name].Answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return e.Control(cmd) })
	}
	for alarm, want := range map[string]string{
		"": "", "memberID:1 alarm:NOSPACE ": "kkbundle etcd defrag",
		"memberID:1 alarm:CORRUPT ": "alarm:CORRUPT",
	} {
		e.Members = []etcd.Database{{Endpoint: "https://10.0.0.3:2379", Member: 1, Leader: 1}}
		if alarm != "" {
			e.Members[0].Faults = []string{alarm}
		}
		errs := errors.Join(u.etcdHealthy(t.Context(), u.Hosts[0], Plan{})...)
		if want == "" && errs != nil || want != "" && (errs == nil || !strings.Contains(errs.Error(), want)) {
			t.Errorf("%q: %v, want %q", alarm, errs, want)
		}
	}
}
