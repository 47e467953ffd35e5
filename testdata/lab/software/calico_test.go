package software

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The files of an image that somebody has given are its layer, without directories; files that are not there are
// named.
func TestGivenFiles(t *testing.T) {
	t.Setenv("KKBUNDLE_LAB", t.TempDir())
	s := &imageSet{work: t.TempDir(), made: map[string]*layer{}}
	ref := CalicoReleases()[Calico332].ref("node")
	url := filesOf(ref)
	if _, err := s.givenFiles(ref); err == nil || !strings.Contains(err.Error(), url) {
		t.Errorf("files that nobody has given: %v", err)
	}
	file, _, err := Given(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := archive(file, []entry{
		{Name: "bin/"},
		{Name: "bin/calico-node", Text: "program"},
		{Name: "bin/link", Link: "calico-node"},
	}); err != nil {
		t.Fatal(err)
	}
	l, err := s.givenFiles(ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := namesIn(t, l.path); !slices.Equal(got, []string{"bin/calico-node", "bin/link"}) {
		t.Errorf("the layer has %q", got)
	}
}

func namesIn(t *testing.T, layer string) (names []string) {
	t.Helper()
	f, err := os.Open(layer)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for members := tar.NewReader(unzipped); ; {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}
