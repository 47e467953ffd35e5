package builder

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/document"
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
	p, err := Load(filepath.Join(dir, "manifest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(p.extras, func(d bundle.Document) bool { return d.Ref == bundle.DocumentCluster })
	if i < 0 {
		t.Fatal("the bundle would carry no cluster file")
	}
	data := p.extras[i].Data
	c, err := manifest.ParseCluster(bundle.DocumentCluster, data)
	if err != nil || strings.Contains(string(data), "hunter2") {
		t.Fatalf("%v\n%s", err, data)
	}
	if c.Metadata.Name != "sample" || c.ImageRegistry.Address != "harbor.site.example" || len(p.Notes) == 0 {
		t.Errorf("%+v, notes %v", c, p.Notes)
	}
}

// loadText loads a manifest with these lines at its end, and two clusters that need different packages.
func loadText(t *testing.T, more string) (*Project, error) {
	t.Helper()
	const cluster = "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"manifest.yaml": "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: a, version: 1.0.0}\nplatforms: [linux/amd64]\n" + more,
		"one.yaml":      cluster + "}\n",
		"two.yaml":      cluster + ", proxyMode: ipvs}\nstorage: {nfs: true}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(filepath.Join(dir, "manifest.yaml"))
}

// Packages are those that the tasks of all clusters need, where the manifest wants that.
func TestLoadPackages(t *testing.T) {
	t.Parallel()
	p, err := loadText(t, `cluster: one.yaml
clusters: [two.yaml]
packages:
  - {distribution: debian/12, install: [vim, socat], roles: true}
  - {distribution: rocky/9}
  - {distribution: debian/13, install: [vim]}
  - {distribution: kylin/v10, iso: os.iso}
  - {distribution: beos/5, install: [vim]}
`)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"chrony conntrack ebtables ethtool iproute2 ipset iptables ipvsadm nfs-common nfs-kernel-server socat vim",
		"chrony conntrack-tools container-selinux ebtables ethtool iproute ipset iptables ipvsadm nfs-utils socat",
		"vim", "", "vim",
	} {
		if got := strings.Join(p.Manifest.Packages[i].Install, " "); got != want {
			t.Errorf("packages[%d]: %s, want %s", i, got, want)
		}
	}
}

func TestLoadPackagesUnknown(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, "cluster: one.yaml\npackages: [{distribution: beos/5, roles: true}, {distribution: debian/12, roles: true}]\n")
	want := `manifest.yaml:6:12: packages[0]: what the cluster's tasks need on beos/5 is not known: one.yaml: distribution "beos" is not known; known: debian, ubuntu, `
	var problems document.Problems // exit code 10
	if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &problems) {
		t.Errorf("got %v, want problems with %s", err, want)
	}
}

// The catalog has names for packages of every distribution whose repositories are known.
func TestDistributions(t *testing.T) {
	t.Parallel()
	for _, name := range packages.Distributions() {
		if !catalog.KnowsDistribution(name) {
			t.Errorf("the catalog does not know %s", name)
		}
	}
}
