package plan

import (
	"cmp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest"
)

// TestPulls has what kubeadm's constants (cmd/kubeadm/app/constants/constants.go of v1.34.3) make of a configuration
// that says nothing, and how the configuration changes it.
func TestPulls(t *testing.T) {
	t.Parallel()
	const list = `
registry.k8s.io/coredns/coredns:v1.12.1
registry.k8s.io/etcd:3.6.5-0
registry.k8s.io/kube-apiserver:v1.34.3
registry.k8s.io/kube-controller-manager:v1.34.3
registry.k8s.io/kube-proxy:v1.34.3
registry.k8s.io/kube-scheduler:v1.34.3
registry.k8s.io/pause:3.10.1`
	replaced := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(list) }
	for name, tc := range map[string]struct {
		kubeadm    manifest.Config
		components map[string]manifest.Component
		want       string
		sandbox    string
	}{
		"default": {want: list},
		"kubeadm is told of other versions": {
			components: map[string]manifest.Component{"coredns": {Version: "v1.13.1"}, "etcd": {Version: "3.5.32-0"}},
			want:       replaced("v1.12.1", "v1.13.1", "3.6.5-0", "3.5.32-0"),
		},
		"its own pause image": {
			components: map[string]manifest.Component{"pause": {Version: "3.10"}}, want: list,
			sandbox: "registry.k8s.io/pause:3.10",
		},
		"another repository": {
			kubeadm: manifest.Config{"imageRepository": "k8s.site/mirror"},
			want:    replaced("registry.k8s.io/coredns", "k8s.site/mirror", "registry.k8s.io", "k8s.site/mirror"),
		},
		"other etcd and DNS": {
			kubeadm: manifest.Config{
				"etcd": map[string]any{"local": map[string]any{
					"imageRepository": "quay.io/coreos",
					"imageTag":        "3.6.0",
				}},
				"dns": map[string]any{"imageTag": "v1.12.4"},
			},
			want: replaced("registry.k8s.io/etcd:3.6.5-0", "quay.io/coreos/etcd:3.6.0", "v1.12.1", "v1.12.4"),
		},
		"without DNS, proxy and etcd": {
			kubeadm: manifest.Config{
				"dns": map[string]any{"disabled": true}, "proxy": map[string]any{"disabled": true},
				"etcd": map[string]any{"external": map[string]any{"endpoints": []any{"https://10.0.0.1:2379"}}},
			},
			want: replaced("\nregistry.k8s.io/coredns/coredns:v1.12.1", "", "\nregistry.k8s.io/etcd:3.6.5-0", "",
				"\nregistry.k8s.io/kube-proxy:v1.34.3", ""),
		},
	} {
		c := &manifest.Cluster{
			Kubernetes: manifest.Kubernetes{Version: "v1.34.3", Kubeadm: tc.kubeadm},
			Components: tc.components,
		}
		pulls, err := Pulls(c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := map[string]bool{}
		for _, p := range pulls[1:] { // the first is containerd's
			got[p.Ref] = true
		}
		want := map[string]bool{}
		for ref := range strings.FieldsSeq(tc.want) {
			want[ref] = true
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
		if pulls[0].Ref != cmp.Or(tc.sandbox, "registry.k8s.io/pause:3.10.1") {
			t.Errorf("%s: containerd's sandbox is %s", name, pulls[0].Ref)
		}
	}
}
