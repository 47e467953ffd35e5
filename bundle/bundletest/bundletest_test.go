package bundletest_test

import (
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
)

func TestNew(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	var got []string
	for _, it := range b.Reader.Index().Items {
		got = append(got, it.String())
		rc, err := b.Reader.Blob(t.Context(), it.Descriptor.Digest, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, rc); err != nil || n != it.Descriptor.Size {
			t.Errorf("%s: read %d bytes of %d: %v", it, n, it.Descriptor.Size, err)
		}
		if err := rc.Close(); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"chart " + bundletest.ChartRef, "file " + bundletest.FileRef + " (linux/amd64)",
		"image " + bundletest.ImageRef, "image " + bundletest.MultiRef,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("items (-want +got):\n%s", d)
	}
	if _, ok := b.Reader.Find(bundle.KindFile, bundletest.FileRef, "linux/arm64"); ok {
		t.Error("found the file for a platform it is not for")
	}
}

func TestNewTwiceIsTheSame(t *testing.T) {
	t.Parallel()
	var files [2][]byte
	for i := range files {
		data, err := os.ReadFile(bundletest.New(t).Path)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = data
	}
	if string(files[0]) != string(files[1]) {
		t.Error("two bundles of the same items differ")
	}
}
