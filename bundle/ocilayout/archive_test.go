package ocilayout_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/ocilayout"
)

func only(platform string) func(string) bool { return func(p string) bool { return p == platform } }

// An archive for one platform of an image is read by go-containerregistry as docker's and as an OCI layout, and by
// skopeo as both.
func TestDockerArchive(t *testing.T) {
	t.Parallel()
	r := bundletest.New(t).Reader
	index, _ := r.Find(bundle.KindImage, bundletest.MultiRef, "")
	it, err := r.ForPlatform(t.Context(), index, only("linux/arm64"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := ocilayout.DockerArchive(t.Context(), &b, r, it); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(bundletest.MultiRef)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	unpacked := unpack(t, path)
	l, err := layout.FromPath(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	idx, err := l.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	validateImages(t, idx)
	if m, err := partial.Manifests(idx); err != nil || len(m) != 1 {
		t.Errorf("%d manifests, %v", len(m), err)
	}
	skopeo(t, it.Descriptor.Digest.String(), "oci-archive:"+path)
	skopeo(t, "", "docker-archive:"+path)
}

func TestOCIArchive(t *testing.T) {
	t.Parallel()
	r := bundletest.New(t).Reader
	it, _ := r.Find(bundle.KindImage, bundletest.MultiRef, "")
	var b bytes.Buffer
	if err := ocilayout.Archive(t.Context(), &b, r, []bundle.Item{it}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := layout.FromPath(unpack(t, path))
	if err != nil {
		t.Fatal(err)
	}
	idx, err := l.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	validateImages(t, idx)
	skopeo(t, it.Descriptor.Digest.String(), "oci-archive:"+path)
}

// Who has some blobs gets the others, with an index that names all images: by tag, or by digest where there is no tag.
func TestWriteMissing(t *testing.T) {
	t.Parallel()
	r := bundletest.New(t).Reader
	it, _ := r.Find(bundle.KindImage, bundletest.MultiRef, "")
	pinned := it
	repository, _, _ := strings.Cut(it.Ref, ":")
	pinned.Ref = repository + "@" + it.Descriptor.Digest.String()
	write := func(has func(digest.Digest) bool) (names []string, blobs int) {
		var b bytes.Buffer
		if err := ocilayout.ArchiveMissing(t.Context(), &b, r, []bundle.Item{it, pinned}, has); err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(&b); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return names, blobs
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(h.Name, "blobs/") {
				blobs++
			}
			if h.Name == "index.json" {
				var index ocispec.Index
				if err := json.NewDecoder(tr).Decode(&index); err != nil {
					t.Fatal(err)
				}
				for _, m := range index.Manifests {
					names = append(names, m.Annotations["io.containerd.image.name"])
				}
			}
		}
	}
	names, all := write(func(digest.Digest) bool { return false })
	if !slices.Contains(names, it.Ref) || !slices.Contains(names, pinned.Ref) {
		t.Errorf("images are named %q", names)
	}
	if _, left := write(func(d digest.Digest) bool { return d == it.Descriptor.Digest }); left != all-1 {
		t.Errorf("%d blobs without the index, %d in all", left, all)
	}
}

func TestArchiveRefused(t *testing.T) {
	t.Parallel()
	r := bundletest.New(t).Reader
	var b bytes.Buffer
	multi, _ := r.Find(bundle.KindImage, bundletest.MultiRef, "")
	for _, tc := range []struct {
		want string
		err  error
	}{
		{"choose one with --platform: linux/amd64, linux/arm64", second(r.ForPlatform(t.Context(), multi, nil))},
		{
			"choose one with --platform: linux/amd64, linux/arm64",
			second(r.ForPlatform(t.Context(), multi, only("linux/s390x"))),
		},
		{"hold one platform", ocilayout.DockerArchive(t.Context(), &b, r, multi)},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%v, want %s", tc.err, tc.want)
		}
	}
	chart, _ := r.Find(bundle.KindChart, bundletest.ChartRef, "")
	if err := ocilayout.DockerArchive(t.Context(), &b, r, chart); err == nil ||
		!strings.Contains(err.Error(), "not a container image") {
		t.Errorf("a chart: %v", err)
	}
}

// validateImages reads every image below an index. (validate.Index wants configs to name platforms; random images do
// not.)
func validateImages(t *testing.T, idx v1.ImageIndex) {
	t.Helper()
	all, err := partial.Manifests(idx)
	if err != nil || len(all) == 0 {
		t.Errorf("%d manifests, %v", len(all), err)
	}
	for _, d := range all {
		switch d := d.(type) {
		case v1.Image:
			if err := validate.Image(d); err != nil {
				t.Error(err)
			}
		case v1.ImageIndex:
			validateImages(t, d)
		default:
			t.Errorf("a %T", d)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func unpack(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir, "-f", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// skopeo copies an image out of an archive, and compares its digest unless that is "".
func skopeo(t *testing.T, digest, source string) {
	t.Helper()
	program, err := exec.LookPath("skopeo")
	if err != nil {
		t.Log("no skopeo")
		return
	}
	if digest != "" {
		out, err := exec.CommandContext(t.Context(), program, "inspect", "--raw", source).CombinedOutput()
		if err != nil {
			t.Errorf("skopeo inspect %s: %v: %s", source, err, out)
		}
	}
	to := t.TempDir()
	out, err := exec.CommandContext(t.Context(), program, "--insecure-policy", "copy", "--all", source, "dir:"+
		to).CombinedOutput()
	if err != nil {
		t.Errorf("skopeo copy %s: %v: %s", source, err, out)
	}
}
