package builder_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/builder"
)

// TestReads wants every file that a project is made of, and no other: an output there would destroy it.
func TestReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	for name, text := range map[string]string{
		"site/manifest.yaml": "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: a, version: 1.0.0}\nplatforms: [linux/amd64]\n" +
			"include: [base.yaml]\ncluster: sub/cluster.yaml\nfiles: [{name: notes, path: ../notes.txt}]\ncharts: [{path: chart, imagesListed: true}]\n",
		"site/manifest.lock.yaml": "",
		"site/base.yaml":          "apiVersion: kkbundle.io/v1\nkind: Bundle\nmanifests: ['apps/*.yaml']\n",
		"site/sub/cluster.yaml":   "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: a}\nkubernetes: {version: v1.34.3}\ncni: {values: [cni.yaml]}\n",
		"site/sub/cni.yaml":       "{}",
		"site/chart/Chart.yaml":   "apiVersion: v2\nname: chart\nversion: 1.0.0\n",
		"site/chart/x/y.yaml":     "",
		"site/apps/job.yaml":      "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
		"site/apps/README":        "",
		"site/other.yaml":         "",
		"notes.txt":               "",
	} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := builder.Load(at("site/manifest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"site/manifest.yaml": true, "site/manifest.lock.yaml": true, "site/base.yaml": true, "site/sub/cluster.yaml": true,
		"site/sub/cni.yaml": true, "site/chart/Chart.yaml": true, "site/chart/x/y.yaml": true, "site/apps/job.yaml": true,
		"notes.txt": true, "site/apps/README": false, "site/other.yaml": false, "site/chart/new.kkb": false,
	} {
		if got := p.Reads(at(name)); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
