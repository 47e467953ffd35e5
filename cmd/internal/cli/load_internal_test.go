package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/manifest"
)

// A cluster file of KubeKey goes into the bundle as one of kkbundle's, so that its passwords do not.
func TestLoadForeignCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"manifest.yaml": "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: a, version: 1.0.0}\nplatforms: [linux/amd64]\ncluster: kk.yaml\n",
		"kk.yaml": `apiVersion: kubekey.kubesphere.io/v1alpha2
kind: Cluster
metadata: {name: sample}
spec:
  hosts: [{name: a, address: 172.16.0.2, password: hunter2}]
  roleGroups: {control-plane: [a]}
  kubernetes: {version: v1.34.3, containerManager: containerd, proxyMode: iptables, nodelocaldns: false}
  etcd: {type: kubeadm}
  network: {plugin: flannel}
  registry:
    privateRegistry: harbor.site.example
    auths: {harbor.site.example: {username: admin, password: hunter2}}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := loadProject(filepath.Join(dir, "manifest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(p.extras, func(d document) bool { return d.ref == documentCluster })
	if i < 0 {
		t.Fatal("the bundle would carry no cluster file")
	}
	data := p.extras[i].data
	c, err := manifest.ParseCluster(documentCluster, data)
	if err != nil || strings.Contains(string(data), "hunter2") {
		t.Fatalf("%v\n%s", err, data)
	}
	if c.Metadata.Name != "sample" || c.ImageRegistry.Address != "harbor.site.example" || len(p.notes) == 0 {
		t.Errorf("%+v, notes %v", c, p.notes)
	}
}
