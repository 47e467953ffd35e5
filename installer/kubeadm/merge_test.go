package kubeadm

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/kube"
)

func TestLaid(t *testing.T) {
	t.Parallel()
	flag := func(name, value string) any { return kube.Document{"name": name, "value": value} }
	base := kube.Document{"apiServer": kube.Document{
		"extraArgs": []any{flag("a", "1"), flag("b", "2"), flag("c", "3")},
		"certSANs":  []any{"x", "y"},
		"extraVolumes": []any{
			kube.Document{"name": "v", "hostPath": "/v"}, kube.Document{"name": "w", "hostPath": "/w"},
		},
	}}
	over := map[string]any{"apiServer": map[string]any{
		"extraArgs":    map[string]any{"b": int64(20), "c": nil, "d": true},
		"certSANs":     []any{"y", "z"},
		"extraVolumes": []any{map[string]any{"name": "w", "hostPath": "/mine"}},
	}}
	want := kube.Document{"apiServer": kube.Document{
		"extraArgs": []any{flag("a", "1"), flag("b", "20"), flag("d", "true")},
		"certSANs":  []any{"x", "y", "z"},
		"extraVolumes": []any{
			kube.Document{"name": "v", "hostPath": "/v"},
			kube.Document{"name": "w", "hostPath": "/mine"},
		},
	}}
	if diff := cmp.Diff(Config{beta4: true}.mergeCluster(base, over), want); diff != "" {
		t.Errorf("v1beta4 (-got +want):\n%s", diff)
	}
	want["apiServer"].(kube.Document)["extraArgs"] = kube.Document{"a": "1", "b": "20", "d": "true"}
	if diff := cmp.Diff(Config{}.mergeCluster(base, over), want); diff != "" {
		t.Errorf("v1beta3 (-got +want):\n%s", diff)
	}
	twice := map[string]any{"extraArgs": []any{
		map[string]any{"name": "service-account-issuer", "value": "a"},
		map[string]any{"name": "service-account-issuer", "value": "b"},
	}}
	got := Config{beta4: true}.mergeCluster(kube.Document{"extraArgs": kube.Document{"service-account-issuer": "old"}},
		twice)
	if diff := cmp.Diff(got, kube.Document{"extraArgs": []any{
		flag("service-account-issuer", "a"),
		flag("service-account-issuer", "b"),
	}}); diff != "" {
		t.Errorf("an argument that is there twice (-got +want):\n%s", diff)
	}
}
