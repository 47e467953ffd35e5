//go:build linux

package begin

import (
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestIgnoredSettingsAreTold(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	s.Hosts["cp1"].Put(t, member.Path, string(member.File(s.Run(t, nil).Site).Data))
	for more, want := range map[string]string{
		"": "",
		"kubernetes: {version: v1.34.3, maxPods: 200, kubelet: {a: {b: secret}}}": "kubernetes.maxPods, kubernetes.kubelet; kkbundle upgrade",
	} {
		s.Options.Cluster, s.Events = tasktest.Cluster(t, more), nil
		if err := tellIgnored(t.Context(), s.Run(t, nil)); err != nil {
			t.Fatal(err)
		}
		warned := slices.IndexFunc(s.Events,
			func(e task.Event) bool { return e.State == task.Warned && strings.Contains(e.Message, want) })
		if (want != "") != (warned >= 0) {
			t.Errorf("%q: want a warning with %q, got %+v", more, want, s.Events)
		}
	}
}
