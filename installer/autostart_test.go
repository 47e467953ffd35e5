//go:build linux

package installer

import (
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// unitStates is systemctl on a host: it prints the states of the units that it is asked for.
func unitStates(states map[string]string) string {
	script := `[ "$1" = show ] || exit 0
shift
for u; do case $u in -*) continue;; esac
case $u in
`
	for unit, state := range states {
		load, active, file := strings.Split(state, " ")[0], strings.Split(state, " ")[1], strings.Split(state, " ")[2]
		script += unit + ") printf 'Id=%s\nLoadState=" + load + "\nActiveState=" + active + "\nUnitFileState=" + file +
			"\n\n' $u;;\n"
	}
	return script + `*) printf 'Id=%s\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n\n' $u;;
esac; done`
}

// TestStatusFindsWhatDoesNotStartAtBoot holds that a running service of a node that nothing starts at boot is a
// warning.
func TestStatusFindsWhatDoesNotStartAtBoot(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		states map[string]string
		want   string
	}{
		"all are": {map[string]string{
			"kubelet.service":    "loaded active enabled",
			"containerd.service": "loaded active enabled", "chrony.service": "loaded active enabled",
		}, ""},
		"the kubelet is not": {
			map[string]string{
				"kubelet.service":    "loaded active disabled",
				"containerd.service": "loaded active enabled",
			}, "kubelet.service",
		},
		"the runtime and the time service are not": {
			map[string]string{
				"kubelet.service": "loaded active enabled", "containerd.service": "loaded active masked",
				"chronyd.service": "loaded active disabled",
			},
			"containerd.service, chronyd.service",
		},
		"containerd is Docker's": {
			map[string]string{
				"kubelet.service": "loaded active enabled", "docker.service": "loaded active enabled",
				"containerd.service": "loaded active disabled",
			}, "",
		},
		"something that does not run": {map[string]string{
			"kubelet.service": "loaded active enabled",
			"crio.service":    "loaded inactive disabled",
		}, ""},
		"an alias": {map[string]string{
			"kubelet.service": "loaded active enabled",
			"chronyd.service": "loaded active alias",
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sitetest.NewSite(t, "cp1", "node1")
			s.Join(t, "node1")
			s.Hosts["node1"].Stub(t, "systemctl", unitStates(one.states))
			survey, err := health.NewSurvey(t.Context(), s.Run(t, nil).Site, nil)
			if err != nil {
				t.Fatal(err)
			}
			var found, fix string
			for _, f := range survey.Findings() {
				if f.ID == "autostart" && f.Host == "node1" && f.State != "ok" {
					found, fix = f.Found, f.Fix
				}
			}
			if got := strings.TrimPrefix(found, "running, but not started at boot: "); got != one.want {
				t.Errorf("got %q, want %q", got, one.want)
			}
			if one.want != "" && !strings.Contains(fix, "systemctl enable") {
				t.Errorf("no remedy: %q", fix)
			}
		})
	}
}
