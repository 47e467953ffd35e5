package manifest

import (
	"strings"
	"testing"
)

// A quota is refused where kkbundle does not run etcd, and where it is a number of bytes that somebody took for
// another unit.
func TestEtcdQuota(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{quota: 8Gi}":                 "",
		"{type: external, quota: 3Gi}": "",
		"{quota: 8}":                   "etcd.quota: 8 is too small for a cluster; write at least 256Mi",
		"{quota: 0}":                   "too small",
		"{quota: many}":                "want a number of bytes",
		"{type: provided, endpoints: ['https://10.0.0.1:2379'], ca: a, cert: b, key: c, quota: 8Gi}":                                     "belongs to an etcd that kkbundle installs",
		"{quota: 8Gi}\nkubernetes: {version: v1.34.3, kubeadm: {etcd: {local: {extraArgs: [{name: quota-backend-bytes, value: '1'}]}}}}": "it has a place of its own in the cluster file: write etcd.quota",
		"{quota: 8Gi}\nkubernetes: {version: v1.30.14, kubeadm: {etcd: {local: {extraArgs: {quota-backend-bytes: '1'}}}}}":               "it has a place of its own in the cluster file: write etcd.quota",
	} {
		if !strings.Contains(text, "kubernetes:") {
			text += "\nkubernetes: {version: v1.34.3}"
		}
		c, err := ParseCluster("cluster.yaml",
			[]byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\netcd: "+text+"\n"))
		if want == "" && (err != nil || c.Etcd.Quota.Bytes() < 3<<30) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}
