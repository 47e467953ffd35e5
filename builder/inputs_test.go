package builder_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/manifest"
)

// TestCheckFilesOfAManifestWithACluster checks the files of a manifest, YAML among them, before its cluster files are
// read.
func TestCheckFilesOfAManifestWithACluster(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"m.yaml":       "apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: site, version: \"1\"}\nplatforms: [linux/amd64]\ncluster: cluster.yaml\nmanifests: [\"*.yaml\"]\n",
		"cluster.yaml": "apiVersion: kkbundle.io/v1\nkind: Cluster\nkubernetes: {version: v1.34.3}\ncatalog: [own.yaml]\n",
		"own.yaml":     "a: b\n",
		"pod.yaml":     "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "m.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := manifest.ParseBundle(file, data)
	if err != nil {
		t.Fatal(err)
	}
	if err := builder.CheckFiles(file, b); err != nil {
		t.Error(err)
	}
}
