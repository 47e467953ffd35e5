package kubeadm

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// New members get the cluster file's quota from kubeadm, beside other arguments, in the form of its version.
func TestEtcdQuotaInConfiguration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"etcd: {quota: 8Gi}\nkubernetes: {version: v1.34.3}":                                                                          "[map[name:quota-backend-bytes value:8589934592]]",
		"etcd: {quota: 8Gi}\nkubernetes: {version: v1.30.14}":                                                                         "map[quota-backend-bytes:8589934592]",
		"etcd: {quota: 8Gi}\nkubernetes: {version: v1.34.3, kubeadm: {etcd: {local: {extraArgs: [{name: log-level, value: warn}]}}}}": "[map[name:log-level value:warn] map[name:quota-backend-bytes value:8589934592]]",
	} {
		c := tasktest.Cluster(t, text)
		r := &task.Site{Cluster: c}
		r.Hosts = []*task.Host{{
			Host: manifest.Host{Name: "cp1", Roles: []manifest.Role{manifest.RoleControlPlane}},
			IP:   netip.MustParseAddr("10.0.0.3"), Site: r,
		}}
		config, err := NewConfig(c, "10.0.0.3:6443", Parts(r, false)...)
		if err != nil {
			t.Fatal(err)
		}
		etcd, _ := config.ClusterConfiguration()["etcd"].(kube.Document)
		local, _ := etcd["local"].(kube.Document)
		if got := fmt.Sprint(local["extraArgs"]); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// Only the quota of a manifest changes, and a manifest of somebody else is refused.
func TestEtcdQuotaInManifest(t *testing.T) {
	t.Parallel()
	const own = "spec:\n  containers:\n  - command:\n    - etcd\n    - --name=etcd\n"
	for text, want := range map[string]string{
		own: "spec:\n  containers:\n  - command:\n    - etcd\n    - --quota-backend-bytes=5\n    - --name=etcd\n",
		own + "    - --quota-backend-bytes=4\n    - --z=1\n": own + "    - --quota-backend-bytes=5\n    - --z=1\n",
		own + "    - \"--quota-backend-bytes=4\"\n":          own + "    - \"--quota-backend-bytes=5\"\n",
		"spec:\n  containers:\n  - command: [etcd]\n":        "",
	} {
		got, _, err := withQuota(text, 5)
		if want == "" && err == nil || want != "" && (err != nil || got != want) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		if again, former, err := withQuota(want, 5); want != "" && (err != nil || again != want || former != 5) {
			t.Errorf("again: %q, %d, %v", again, former, err)
		}
	}
}
