package software

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A given program, and one in a given archive, is named with its module; what is no program in Go is not.
func TestGivenSources(t *testing.T) {
	t.Setenv("KKBUNDLE_LAB", t.TempDir())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	chart := entry{Name: "tool/Chart.yaml", Text: "name: tool\n"}
	for url, content := range map[string][]entry{
		"ghcr.io/lab/tool:v1":    nil,
		"lab.test/tool-1.tgz":    {chart, {Name: "tool/tool", From: self}},
		"lab.test/chart-1.tgz":   {chart},
		"lab.test/tool-1.sha":    nil,
		"lab.test/broken.tar.gz": nil,
	} {
		file, _, err := Given(url)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		switch {
		case content != nil:
			err = archive(file, content)
		case strings.HasPrefix(url, "ghcr.io/"):
			err = os.Link(self, file)
			if err != nil {
				err = os.Symlink(self, file)
			}
		default:
			err = os.WriteFile(file, []byte("no program"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const module = "github.com/kkbundle/kkbundle/testdata/lab at "
	for url, want := range map[string][]string{
		"ghcr.io/lab/tool:v1":  {"tool:v1 from " + module},
		"lab.test/tool-1.tgz":  {"tool-1.tgz from " + module},
		"lab.test/chart-1.tgz": nil,
		"lab.test/tool-1.sha":  nil,
	} {
		got, err := GivenSources(url)
		if err != nil || !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: %q, %v; want %q", url, got, err, want)
		}
	}
	for _, url := range []string{"lab.test/broken.tar.gz", "lab.test/absent.tgz"} {
		if got, err := GivenSources(url); err == nil {
			t.Errorf("%s: %q", url, got)
		}
	}
}
