package tasktest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/manifest"
)

// Update makes Golden write the files.
var Update = flag.Bool("update", false, "write the golden files") //nolint:gochecknoglobals // a flag of the test program

// Golden compares text with a file in testdata.
func Golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *Update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("%s (-got +want; -update writes it):\n%s", name, diff)
	}
}

// Cluster parses a cluster file; more is added to its first lines.
func Cluster(t *testing.T, more string) *manifest.Cluster {
	t.Helper()
	text := "apiVersion: kkbundle.io/v1\nkind: Cluster\nmetadata: {name: site}\n"
	if !strings.Contains(more, "kubernetes:") {
		text += "kubernetes: {version: v1.34.3}\n"
	}
	c, err := manifest.ParseCluster("cluster.yaml", []byte(text+more))
	if err != nil {
		t.Fatal(err)
	}
	return c.WithDefaults()
}
