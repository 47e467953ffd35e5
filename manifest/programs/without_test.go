package programs_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest/programs"
)

// TestWithout drops what kkbundle sets itself, in both forms of kubeadm's API, and keeps the rest and the original.
func TestWithout(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	for name, c := range map[string]struct {
		section    programs.Section
		have, want m
	}{
		"kubeadm v1beta4": {
			programs.Kubeadm,
			m{"clusterName": "a", "networking": m{"podSubnet": "10.0.0.0/8"}, "apiServer": m{
				"extraArgs": []any{m{"name": "etcd-servers", "value": "x"}, m{"name": "event-ttl", "value": "2h"}},
			}},
			m{"apiServer": m{"extraArgs": []any{m{"name": "event-ttl", "value": "2h"}}}},
		},
		"kubeadm v1beta3": {
			programs.Kubeadm,
			m{"apiServer": m{"extraArgs": m{"etcd-servers": "x"}}, "scheduler": m{"extraArgs": m{"v": "4"}}},
			m{"scheduler": m{"extraArgs": m{"v": "4"}}},
		},
		"a harmless value stays": {
			programs.Kubeadm,
			m{"apiServer": m{"extraArgs": m{"bind-address": "0.0.0.0", "secure-port": "8443"}}},
			m{"apiServer": m{"extraArgs": m{"bind-address": "0.0.0.0"}}},
		},
		"kubelet":    {programs.Kubelet, m{"maxPods": int64(60), "podPidsLimit": int64(9)}, m{"podPidsLimit": int64(9)}},
		"kube-proxy": {programs.KubeProxy, m{"clientConnection": m{"kubeconfig": "/a"}, "mode": "ipvs"}, m{}},
		"nothing":    {programs.Kubelet, nil, m{}},
	} {
		got, _ := programs.Without(c.section, c.have)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	have := m{"networking": m{"podSubnet": "10.0.0.0/8", "other": "x"}}
	programs.Without(programs.Kubeadm, have)
	if below, _ := have["networking"].(m); len(below) != 2 {
		t.Errorf("the original was changed: %v", have)
	}
}

// TestDropped: what goes is told, with its value; what is harmless is not.
func TestDropped(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	_, got := programs.Without(programs.Kubeadm, m{"clusterName": "a", "apiServer": m{"extraArgs": []any{
		m{"name": "anonymous-auth", "value": "false"},
		m{"name": "bind-address", "value": "0.0.0.0"},
		m{"name": "authorization-mode", "value": "RBAC"},
		m{"name": "event-ttl", "value": "2h"},
	}}})
	var told []string
	for _, one := range got {
		if one.Instead == "" {
			t.Errorf("%s has no remedy", one.Path)
		}
		told = append(told, fmt.Sprint(one.Path, "=", one.Value))
	}
	want := []string{"clusterName=a", "apiServer.extraArgs.anonymous-auth=false", "apiServer.extraArgs.authorization-mode=RBAC"}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
