package programs

import (
	"strings"
	"testing"
)

// TestReservedSettingsExist: each reserved key of ClusterConfiguration is one that kubeadm knows.
func TestReservedSettingsExist(t *testing.T) {
	t.Parallel()
	for _, r := range reservedSettings() {
		if len(r.names) == 0 || r.instead == "" {
			t.Errorf("%+v", r)
		}
		if r.section != Kubeadm {
			continue
		}
		at := clusterConfiguration(true)
		for _, name := range strings.FieldsFunc(r.below, func(c rune) bool { return c == '.' }) {
			below, ok := at[name]
			if at = below; !ok {
				t.Errorf("kubeadm has no %s", r.below)
			}
		}
		for _, name := range r.names {
			if _, known := at[name]; !known && !strings.HasSuffix(r.below, "extraArgs") {
				t.Errorf("kubeadm has no %s.%s", r.below, name)
			}
		}
	}
}
