// Package bundletest makes tiny real bundles for tests: images as registries hold them, a chart and a file, written by
// package bundle and opened again. The same calls give the same bytes.
package bundletest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os/exec"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// References of the items that New puts into a bundle.
const (
	ImageRef = "docker.io/library/app:1.0"                    // one manifest, 2 layers
	MultiRef = "registry.example:5000/team/multi:2.1"         // an index of linux/amd64 and linux/arm64
	FileRef  = "https://files.example/tool/v1/linux/amd64/it" // platform linux/amd64, mode 0755
	ChartRef = "https://charts.example/stable/demo:0.1.0"     // as Helm pushes charts
)

// FileContent is the content of the file at FileRef.
const FileContent = "#!/bin/sh\necho it\n"

// A Bundle is a bundle on disk, opened.
type Bundle struct {
	Path   string
	Reader *bundle.Reader // closed when the test ends
	Cache  *cache.Cache   // the source of its blobs
}

// New returns a bundle with one image, one image for two platforms, one file and one chart.
func New(t testing.TB) *Bundle {
	t.Helper()
	b := NewBuilder(t)
	b.Image(ImageRef, RandomImage(t, 1, 2, 3000))
	b.ImageIndex(MultiRef, MultiImage(t, 2))
	b.File(FileRef, "it", &ocispec.Platform{OS: "linux", Architecture: "amd64"}, []byte(FileContent))
	b.Chart(ChartRef, "demo", "0.1.0", ChartArchive(t, "demo", "0.1.0"))
	return b.Bundle()
}

// A Builder collects items. A problem ends the test.
type Builder struct {
	Cache *cache.Cache
	Index bundle.Index
	t     testing.TB
	blobs int // makes keys for the cache
}

// NewBuilder returns a builder with an empty cache of its own at the fast level.
func NewBuilder(t testing.TB) *Builder {
	t.Helper()
	c := OpenCache(t, t.TempDir())
	return &Builder{Cache: c, Index: bundle.Index{
		Name: "test", Version: "1.0.0",
		Platforms: []string{"linux/amd64", "linux/arm64"},
	}, t: t}
}

// Bundle writes the collected items and opens the bundle.
func (b *Builder) Bundle() *Bundle {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "test.kkb")
	if _, err := bundle.Create(b.t.Context(), path, b.Cache, b.Index, bundle.WriteOptions{}); err != nil {
		b.t.Fatal(err)
	}
	r, err := bundle.Open(path)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return &Bundle{Path: path, Reader: r, Cache: b.Cache}
}

// Blob puts content into the cache and returns its digest and size.
func (b *Builder) Blob(content io.Reader) ocispec.Descriptor {
	b.t.Helper()
	b.blobs++
	w, _, err := b.Cache.Begin(b.t.Context(), fmt.Sprintf("blob %d", b.blobs))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			b.t.Error(err)
		}
	}()
	if _, err := io.Copy(w, content); err != nil {
		b.t.Fatal(err)
	}
	d, err := w.Commit(b.t.Context(), -1, "")
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// Bytes is Blob for a slice.
func (b *Builder) Bytes(content []byte) ocispec.Descriptor {
	b.t.Helper()
	return b.Blob(bytes.NewReader(content))
}

// JSON is Blob for the JSON of v.
func (b *Builder) JSON(v any) ocispec.Descriptor {
	b.t.Helper()
	return b.Bytes(mustJSON(b.t, v))
}

// Item adds an item as it is.
func (b *Builder) Item(it bundle.Item) { b.Index.Items = append(b.Index.Items, it) }

// Image adds an image that has one manifest.
func (b *Builder) Image(ref string, img v1.Image) {
	b.t.Helper()
	b.Item(bundle.Item{Kind: bundle.KindImage, Ref: ref, Name: ref, Descriptor: b.image(img)})
}

// ImageIndex adds an image index with those children that choose accepts (none given: all); the others are absent.
func (b *Builder) ImageIndex(ref string, idx v1.ImageIndex, choose ...func(v1.Descriptor) bool) {
	b.t.Helper()
	m, err := idx.IndexManifest()
	if err != nil {
		b.t.Fatal(err)
	}
	it := bundle.Item{Kind: bundle.KindImage, Ref: ref, Name: ref}
	for _, child := range m.Manifests {
		if len(choose) > 0 && !choose[0](child) {
			it.Absent = append(it.Absent, digest.Digest(child.Digest.String()))
			continue
		}
		img, err := idx.Image(child.Digest)
		if err != nil {
			b.t.Fatal(err)
		}
		b.image(img)
	}
	raw, err := idx.RawManifest()
	if err != nil {
		b.t.Fatal(err)
	}
	it.Descriptor = b.Bytes(raw)
	it.Descriptor.MediaType = string(m.MediaType)
	b.Item(it)
}

func (b *Builder) image(img v1.Image) ocispec.Descriptor {
	b.t.Helper()
	layers, err := img.Layers()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, l := range layers {
		rc, err := l.Compressed()
		if err != nil {
			b.t.Fatal(err)
		}
		b.Blob(rc)
		if err := rc.Close(); err != nil {
			b.t.Fatal(err)
		}
	}
	config, err := img.RawConfigFile()
	if err != nil {
		b.t.Fatal(err)
	}
	b.Bytes(config)
	raw, err := img.RawManifest()
	if err != nil {
		b.t.Fatal(err)
	}
	mediaType, err := img.MediaType()
	if err != nil {
		b.t.Fatal(err)
	}
	d := b.Bytes(raw)
	d.MediaType = string(mediaType)
	return d
}

// File adds a file with mode 0755.
func (b *Builder) File(ref, name string, p *ocispec.Platform, content []byte) {
	b.t.Helper()
	layer := b.Bytes(content)
	layer.MediaType = bundle.MediaTypeFileContent
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: name, bundle.AnnotationMode: "0755"}
	config := b.Bytes([]byte("{}"))
	config.MediaType = bundle.MediaTypeEmpty
	it := bundle.Item{Kind: bundle.KindFile, Ref: ref, Name: name}
	it.Descriptor = b.manifest(ocispec.Manifest{
		ArtifactType: bundle.ArtifactTypeFile, Config: config,
		Layers: []ocispec.Descriptor{layer},
	})
	it.Descriptor.Platform = p
	b.Item(it)
}

// Chart adds a chart archive.
func (b *Builder) Chart(ref, name, version string, archive []byte) {
	b.t.Helper()
	layer := b.Bytes(archive)
	layer.MediaType = bundle.MediaTypeChartContent
	config := b.JSON(map[string]string{"apiVersion": "v2", "name": name, "version": version})
	config.MediaType = bundle.MediaTypeChartConfig
	b.Item(bundle.Item{
		Kind: bundle.KindChart, Ref: ref, Name: name, Version: version,
		Descriptor: b.manifest(ocispec.Manifest{Config: config, Layers: []ocispec.Descriptor{layer}}),
	})
}

// Git adds a Git repository.
func (b *Builder) Git(ref, name string, pack, index, document []byte) {
	b.t.Helper()
	typed := func(content []byte, mediaType string) ocispec.Descriptor {
		d := b.Bytes(content)
		d.MediaType = mediaType
		return d
	}
	d := b.manifest(ocispec.Manifest{
		ArtifactType: bundle.ArtifactTypeGit, Config: typed(document, bundle.MediaTypeGitDocument),
		Layers: []ocispec.Descriptor{typed(pack, bundle.MediaTypeGitPack), typed(index, bundle.MediaTypeGitIndex)},
	})
	b.Item(bundle.Item{Kind: bundle.KindGit, Ref: ref, Name: name, Descriptor: d})
}

func (b *Builder) manifest(m ocispec.Manifest) ocispec.Descriptor {
	b.t.Helper()
	m.SchemaVersion, m.MediaType = 2, ocispec.MediaTypeImageManifest
	d := b.JSON(m)
	d.MediaType, d.ArtifactType = m.MediaType, m.ArtifactType
	return d
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// RandomImage returns an OCI image with that many layers of that many bytes of random content, the same for each seed.
func RandomImage(t testing.TB, seed, layers, size int64) v1.Image {
	t.Helper()
	source := random.WithSource(rand.NewSource(seed))
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for range layers {
		layer, err := random.Layer(size, types.OCILayer, source)
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// MultiImage returns an index of one small image each for linux/amd64 and linux/arm64.
func MultiImage(t testing.TB, seed int64) v1.ImageIndex {
	t.Helper()
	idx := v1.ImageIndex(empty.Index)
	for i, arch := range []string{"amd64", "arm64"} {
		img := RandomImage(t, seed+int64(i)*1000, 1, 2000)
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return idx
}

// ChartArchive returns a chart's .tgz with one template, a config map.
func ChartArchive(t testing.TB, name, version string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	for _, f := range [][2]string{
		{"Chart.yaml", fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n", name, version)},
		{"values.yaml", "text: hello\n"},
		{
			"templates/configmap.yaml",
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\ndata:\n  text: {{ .Values.text | quote }}\n",
		},
	} {
		if err := tw.WriteHeader(&tar.Header{
			Name: name + "/" + f[0], Mode: 0o644,
			Size: int64(len(f[1])),
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// OpenCache opens a cache at the fast level.
func OpenCache(t testing.TB, dir string) *cache.Cache {
	t.Helper()
	c, err := cache.Open(dir, bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Put puts a blob into a cache.
func Put(ctx context.Context, c *cache.Cache, data []byte) error {
	d := digest.FromBytes(data)
	w, _, err := c.Begin(ctx, d.String())
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return errors.Join(err, w.Close())
	}
	_, err = w.Commit(ctx, int64(len(data)), d)
	return errors.Join(err, w.Close())
}

// Random returns n bytes that do not compress.
func Random(seed int64, n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return b
}

// Text returns n bytes that compress.
func Text(seed int64, n int) []byte {
	r := rand.New(rand.NewSource(seed))
	words := []string{"alpha", "beta", "gamma", "delta", "kubelet", "etcd", "registry", "\n", "0x1f", "containerd"}
	var b bytes.Buffer
	for b.Len() < min(n, 32<<10) {
		b.WriteString(words[r.Intn(len(words))])
		b.WriteByte(' ')
	}
	page := bytes.Clone(b.Bytes())
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "page %d\n%s", i, page)
	}
	return b.Bytes()[:n]
}

// CheckLayout checks that a directory is an image layout of the index, as another tool reads it.
func CheckLayout(t testing.TB, dir string, x bundle.Index) {
	t.Helper()
	p, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	idx, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != len(x.Items) {
		t.Errorf("go-containerregistry sees %d items instead of %d", len(m.Manifests), len(x.Items))
	}
	for _, it := range x.Items {
		h, err := v1.NewHash(string(it.Descriptor.Digest))
		if err != nil {
			t.Fatal(err)
		}
		if it.Descriptor.MediaType == ocispec.MediaTypeImageIndex {
			_, err = idx.ImageIndex(h)
		} else {
			_, err = idx.Image(h)
		}
		if err != nil {
			t.Errorf("go-containerregistry: %s: %v", it, err)
		}
	}
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Log("skopeo is not installed: not tried")
		return
	}
	for _, it := range x.Items {
		if it.Kind != bundle.KindImage {
			continue
		}
		out, err := exec.CommandContext(t.Context(), "skopeo", "inspect", "--raw", "oci:"+dir+":"+
			it.Ref).CombinedOutput()
		if err != nil || digest.FromBytes(out) != it.Descriptor.Digest {
			t.Errorf("skopeo inspect %s: %v: %.300s", it, err, out)
		}
	}
}
