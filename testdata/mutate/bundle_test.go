//go:build linux

package mutate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/diff"
	"github.com/kkbundle/kkbundle/bundle/extract"
	"github.com/kkbundle/kkbundle/bundle/format"
	"github.com/kkbundle/kkbundle/bundle/groups"
	"github.com/kkbundle/kkbundle/bundle/ocilayout"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/bundle/transfer"
	"github.com/kkbundle/kkbundle/fetch/packages/packagestest"
	"github.com/kkbundle/kkbundle/proof/closure"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// goldenBundle is the bundle of the first format version that every version must read.
const goldenBundle = "../bundles/v1.kkb"

// A bundleFile is a bundle with its bytes and, for changes with digests that fit, its content.
type bundleFile struct {
	path string
	data []byte
	own  content
}

func prepareBundle(t *testing.T) func(context.Context, *rand.Rand, func()) string {
	generated := generatedBundle(t)
	files := []bundleFile{
		openBundle(t, goldenBundle), openBundle(t, generated),
		openBundle(t, storedBundle(t, generated)),
	}
	return func(ctx context.Context, r *rand.Rand, ready func()) string {
		from := pick(r, files...)
		name, data := from.mutate(r)
		dir, err := os.MkdirTemp("", "bundle") //nolint:usetesting // removed after each mutation
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "site.kkb")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		ready()
		return name + ", " + use(ctx, r, dir, path, from.path)
	}
}

// storedBundle is a bundle as another writer may write it, with all frames stored.
func storedBundle(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	stored := filepath.Join(t.TempDir(), "stored.kkb")
	if err := os.WriteFile(stored, bundletest.Stored(t, data, func(int) bool { return true }), 0o600); err != nil {
		t.Fatal(err)
	}
	return stored
}

// generatedBundle has every kind of item: images, a file, charts, operating system packages, documents, a bill of
// materials.
func generatedBundle(t *testing.T) string {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Image(bundletest.ImageRef, bundletest.RandomImage(t, 1, 2, 3000))
	b.Image("docker.io/library/large:1", bundletest.RandomImage(t, 2, 1, 200_000)) // has frames of its own
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2))
	b.File(bundletest.FileRef, "it", &ocispec.Platform{OS: "linux", Architecture: "amd64"},
		[]byte(bundletest.FileContent))
	b.Chart(bundletest.ChartRef, "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	deb := packagestest.Deb{
		Name: "kk-app", Version: "1.0", Arch: "amd64",
		Files: map[string]string{"usr/bin/kk-app": "#!/bin/sh\n"},
	}
	b.File("packages/debian/12/"+deb.File(), deb.File(), &ocispec.Platform{OS: "linux", Architecture: "amd64"},
		deb.Bytes(t))
	b.Item(bundle.Item{
		Kind: bundle.KindReferrer, Ref: bundletest.ImageRef + "@referrer", Name: "referrer",
		Descriptor: referrer(t, b),
	})
	for _, d := range []bundle.Document{
		{
			Kind: bundle.KindManifest, Ref: bundle.DocumentManifest,
			Data: []byte("apiVersion: kkbundle.io/v1\nkind: Bundle\nmetadata: {name: test, version: 1.0.0}\nimages: [" +
				bundletest.ImageRef + "]\n"),
		},
		{
			Kind: bundle.KindManifest, Ref: bundle.DocumentCluster,
			Data: []byte("apiVersion: kkbundle.io/v1\nkind: Cluster\nkubernetes: {version: v1.34.3}\n"),
		},
		{
			Kind: bundle.KindLock, Ref: bundle.DocumentLock,
			Data: []byte("apiVersion: kkbundle.io/v1\nkind: Lock\nitems: []\n"),
		},
		{Kind: bundle.KindClosure, Ref: bundle.DocumentClosure, Data: []byte(`{"version":1,"needs":[]}`)},
	} {
		it, err := d.Put(t.Context(), b.Cache)
		if err != nil {
			t.Fatal(err)
		}
		b.Item(it)
	}
	return b.Bundle().Path
}

// referrer returns a signature attached to the first image.
func referrer(t *testing.T, b *bundletest.Builder) ocispec.Descriptor {
	t.Helper()
	config := b.Bytes([]byte("{}"))
	config.MediaType = bundle.MediaTypeEmpty
	layer := b.Bytes([]byte("signature"))
	layer.MediaType = published.MediaTypeSignature
	subject := b.Index.Items[0].Descriptor
	m := ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: published.MediaTypeSignature,
		Config: config, Layers: []ocispec.Descriptor{layer}, Subject: &subject,
	}
	m.SchemaVersion = 2
	d := b.JSON(m)
	d.MediaType, d.ArtifactType = m.MediaType, m.ArtifactType
	return d
}

func openBundle(t *testing.T, path string) bundleFile {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f := bundleFile{path: path, data: data, own: content{index: r.Index(), blobs: map[digest.Digest]blob{}}}
	for _, d := range r.Blobs() {
		if f.own.blobs[d.Digest], err = readBlob(t.Context(), r, d); err != nil {
			t.Fatal(err)
		}
	}
	f.own.classify()
	enc, err := format.NewEncoder(r.Level(), 1)
	if err != nil {
		t.Fatal(err)
	}
	f.own.encoder = enc
	if again, err := f.own.assemble(nil); err != nil || verify(t.Context(), again) != nil {
		t.Fatalf("%s, taken apart and put together: %v, %v", path, err, verify(t.Context(), again))
	}
	return f
}

func readBlob(ctx context.Context, r *bundle.Reader, d ocispec.Descriptor) (blob, error) {
	data, err := r.ReadBlob(ctx, d.Digest, d.Size)
	return blob{data: data, class: classContent}, err
}

func verify(ctx context.Context, data []byte) error {
	r, err := bundle.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	_, err = r.Verify(ctx, bundle.VerifyOptions{Jobs: 1})
	return err
}

// The classes of blobs in the order of the tar, see bundle's specification.
const (
	classIndex = iota
	classManifest
	classConfig
	classContent
)

type blob struct {
	data  []byte
	class int
}

// A content is a bundle taken apart, which an attacker puts together again with digests that fit.
type content struct {
	index   bundle.Index
	blobs   map[digest.Digest]blob
	encoder *format.Encoder
	// stored reports whether a frame is stored, whatever the encoder would do; nil for none.
	stored func(frame int) bool
}

// classify follows the descriptors from the index.
func (c *content) classify() {
	for _, it := range c.index.Items {
		c.classifyAs(it.Descriptor)
	}
}

func (c *content) classifyAs(d ocispec.Descriptor) {
	b, ok := c.blobs[d.Digest]
	var m struct {
		Config    *ocispec.Descriptor
		Manifests []ocispec.Descriptor
	}
	switch {
	case !ok || json.Unmarshal(b.data, &m) != nil:
		return
	case strings.Contains(d.MediaType, "index") || strings.Contains(d.MediaType, "manifest.list"):
		b.class = classIndex
	case strings.Contains(d.MediaType, "manifest"):
		b.class = classManifest
	}
	c.blobs[d.Digest] = b
	for _, child := range m.Manifests {
		c.classifyAs(child)
	}
	if m.Config != nil {
		if config, ok := c.blobs[m.Config.Digest]; ok {
			config.class = min(config.class, classConfig)
			c.blobs[m.Config.Digest] = config
		}
	}
}

func (c *content) clone() *content {
	copied := *c
	copied.index.Items = slices.Clone(c.index.Items)
	copied.blobs = map[digest.Digest]blob{}
	for d, b := range c.blobs {
		copied.blobs[d] = b
	}
	return &copied
}

// put adds a blob and returns its digest.
func (c *content) put(data []byte, class int) digest.Digest {
	d := digest.FromBytes(data)
	c.blobs[d] = blob{data, class}
	return d
}

// replace changes a blob, and everything that refers to it, up to the index.
func (c *content) replace(old digest.Digest, data []byte) {
	b := c.blobs[old]
	fresh := c.put(data, b.class)
	if fresh == old {
		return
	}
	delete(c.blobs, old)
	for i := range c.index.Items {
		if d := &c.index.Items[i].Descriptor; d.Digest == old {
			d.Digest, d.Size = fresh, int64(len(data))
		}
	}
	for _, at := range slices.Sorted(maps.Keys(c.blobs)) { // in one order: a seed makes the same bundle each time
		parent, left := c.blobs[at]
		if !left || parent.class > classManifest || !bytes.Contains(parent.data, []byte(old)) {
			continue
		}
		tree, err := parse(parent.data)
		if err != nil {
			continue
		}
		for n := range tree.all() {
			n.point(old, fresh, len(data))
		}
		c.replace(at, tree.append(nil))
	}
}

// point makes a descriptor of one blob that of another.
func (n *node) point(old, fresh digest.Digest, size int) {
	if !slices.ContainsFunc(n.object,
		func(m member) bool { return m.key == "digest" && m.value.raw == quote(string(old)) }) {
		return
	}
	for i := range n.object {
		switch m := &n.object[i]; m.key {
		case "digest":
			m.value.raw = quote(string(fresh))
		case "size":
			m.value.raw = fmt.Sprint(size)
		}
	}
}

// assemble writes the bundle. If index is nil, index.json is that of the content.
func (c *content) assemble(index []byte) ([]byte, error) {
	if index == nil {
		var err error
		if index, err = c.index.Marshal(); err != nil {
			return nil, err
		}
	}
	l := format.Layout{FrameSize: c.encoder.FrameSize, IndexSize: int64(len(index))}
	for d, b := range c.blobs {
		sum, err := format.ParseDigest(d)
		if err != nil {
			return nil, err
		}
		l.Blobs = append(l.Blobs, format.Blob{Sum: sum, Size: int64(len(b.data))})
	}
	slices.SortFunc(l.Blobs, func(a, b format.Blob) int {
		if byClass := c.blobs[a.Sum.Digest()].class - c.blobs[b.Sum.Digest()].class; byClass != 0 {
			return byClass
		}
		return format.CompareSums(a.Sum, b.Sum)
	})
	l.Put()
	sorted := slices.SortedFunc(slices.Values(l.Blobs),
		func(a, b format.Blob) int { return format.CompareSums(a.Sum, b.Sum) })
	directory, err := (&format.Directory{Encoder: c.encoder.ID, FrameSize: l.FrameSize, Blobs: sorted}).Marshal()
	if err != nil {
		return nil, err
	}
	l.DirectorySize = int64(len(directory))
	w := frames{encoder: c.encoder, stored: c.stored}
	for s := range l.Segments() {
		switch s.Kind {
		case format.SegmentIndex:
			w.add(index)
		case format.SegmentDirectory:
			w.add(directory)
		case format.SegmentBlob:
			for piece := range slices.Chunk(c.blobs[l.Blobs[s.Blob].Sum.Digest()].data, l.FrameSize) {
				w.add(piece)
			}
		case format.SegmentGlue:
			glue, err := c.glue(&l, s)
			if err != nil {
				return nil, err
			}
			w.add(glue)
		}
	}
	return format.AppendSeekTable(w.data, w.entries), nil
}

func (c *content) glue(l *format.Layout, s format.Segment) ([]byte, error) {
	var glue []byte
	for _, u := range s.Units {
		h, err := l.Header(u)
		if err != nil {
			return nil, err
		}
		glue = append(glue, h...)
		if u.Kind == format.UnitBlob && l.Blobs[u.Blob].Small() {
			glue = append(glue, c.blobs[l.Blobs[u.Blob].Sum.Digest()].data...)
		}
		glue = append(glue, make([]byte, u.At+u.Size-len(glue))...)
	}
	return glue, nil
}

type frames struct {
	encoder       *format.Encoder
	stored        func(frame int) bool
	data, entries []byte
}

func (w *frames) add(content []byte) {
	appendFrame := w.encoder.AppendFrame
	if w.stored != nil && w.stored(len(w.entries)/format.SeekEntry) {
		appendFrame = format.AppendStored
	}
	f := appendFrame(nil, content)
	w.entries = format.AppendEntry(w.entries, format.FrameInfo{
		Len: uint32(len(f)), Size: uint32(len(content)),
		Checksum: binary.LittleEndian.Uint32(f[len(f)-4:]),
	})
	w.data = append(w.data, f...)
}

// mutate returns a mutated bundle. Half of them have right digests and checksums.
func (f bundleFile) mutate(r *rand.Rand) (name string, data []byte) {
	c := f.own.clone()
	c.stored = pick(r, nil, func(int) bool { return true }, func(frame int) bool { return frame%2 == 0 })
	var index []byte
	switch r.IntN(8) {
	case 0, 1:
		name, data = mutateBytes(r, f.data)
		return "bytes " + name, data
	case 2: // the tail has the seek table and kkbundle.json
		tail := min(len(f.data), 4096)
		name, data = mutateBytes(r, f.data[len(f.data)-tail:])
		return "tail " + name, append(bytes.Clone(f.data[:len(f.data)-tail]), data...)
	case 3:
		raw, err := c.index.Marshal()
		if err != nil {
			return "index.json " + err.Error(), f.data
		}
		name, index = mutateJSON(r, raw)
		name = "index.json " + name
	case 4:
		name = "item " + c.mutateItem(r)
	case 5:
		name = c.nest(r)
	default:
		name = c.mutateBlob(r)
	}
	data, err := c.assemble(index)
	if err != nil { // an index that cannot be written
		_, data = mutateBytes(r, f.data)
	}
	return name, data
}

// mutateBlob changes one blob. Manifests and indexes have better chances.
func (c *content) mutateBlob(r *rand.Rand) string {
	list := slices.DeleteFunc(slices.Sorted(maps.Keys(c.blobs)), func(d digest.Digest) bool {
		return c.blobs[d].class > classConfig && r.IntN(2) != 0
	})
	at := list[r.IntN(len(list))]
	b := c.blobs[at]
	name, data := "", []byte(nil)
	switch {
	case b.class == classContent && r.IntN(4) == 0:
		name, data = bomb(r)
	case b.class == classContent && len(b.data) > 2 && b.data[0] != '{':
		name, data = mutateBytes(r, b.data)
	default:
		name, data = mutateJSON(r, b.data)
	}
	c.replace(at, data)
	return []string{"index ", "manifest ", "config ", "content "}[b.class] + name
}

// bomb returns a little content that unpacks to much.
func bomb(r *rand.Rand) (string, []byte) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for range 1 << (4 + r.IntN(5)) { // 16 to 256 MiB
		_, _ = z.Write(make([]byte, mib))
	}
	_ = z.Close()
	return "gzip bomb", b.Bytes()
}

// mutateItem changes entries of the index, which stays canonical.
func (c *content) mutateItem(r *rand.Rand) string {
	i := r.IntN(len(c.index.Items))
	it := &c.index.Items[i]
	text := pick(r, "../../../etc/passwd", "/", "..", "", "a b", "\x1b[2J", strings.Repeat("x/", 5000), "-rf",
		"docker.io/library/app:1.0@sha256:0", "packages/debian/12/../../x.deb", "%2e%2e/x", "oci://x",
		strings.Repeat("a", 60000))
	switch r.IntN(9) {
	case 0:
		it.Ref = text
		return "ref"
	case 1:
		it.Name = text
		return "name"
	case 2:
		it.Version = text
		return "version"
	case 3:
		it.Kind = pick(r, bundle.KindChart, bundle.KindClosure, bundle.KindFile, bundle.KindImage, bundle.KindLock,
			bundle.KindManifest, bundle.KindReferrer, bundle.KindSBOM, bundle.KindTool, "other")
		return "kind"
	case 4:
		it.Descriptor.Platform = &ocispec.Platform{
			OS: pick(r, "linux", text), Architecture: pick(r, "arm64", text),
			Variant: pick(r, "", text),
		}
		return "platform"
	case 5:
		it.Descriptor.Size = pick(r, 0, 1, -1, 1<<40, 1<<53, it.Descriptor.Size+1)
		return "size"
	case 6:
		it.Descriptor.MediaType = pick(r, ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest,
			"application/vnd.docker.distribution.manifest.list.v2+json", text)
		return "media type"
	case 7:
		other := c.index.Items[r.IntN(len(c.index.Items))].Descriptor
		it.Descriptor.Digest, it.Descriptor.Size, it.Descriptor.MediaType = other.Digest, other.Size, other.MediaType
		return "another root"
	}
	one := *it
	for n := range 1 << r.IntN(14) {
		again := one
		again.Ref += fmt.Sprint(n)
		c.index.Items = append(c.index.Items, again)
	}
	return "repeated"
}

// nest puts an image's index below others, each of which names the one below it many times: few bytes, and many ways.
func (c *content) nest(r *rand.Rand) string {
	for i := range c.index.Items {
		it := &c.index.Items[i]
		if it.Kind != bundle.KindImage || it.Ref != bundletest.MultiRef && r.IntN(3) > 0 {
			continue
		}
		depth, width := pick(r, 2, 3, 7, 8, 9, 20, 200), pick(r, 1, 2, 10, 100)
		for range depth {
			child := it.Descriptor
			child.Annotations = nil
			list := slices.Repeat([]ocispec.Descriptor{child}, width)
			if r.IntN(4) == 0 {
				for j := range list {
					list[j].Platform = &ocispec.Platform{OS: "linux", Architecture: pick(r, "amd64", "arm64")}
				}
			}
			x := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: list}
			x.SchemaVersion = 2
			data, err := json.Marshal(x)
			if err != nil {
				return err.Error()
			}
			it.Descriptor.Digest, it.Descriptor.Size, it.Descriptor.MediaType = c.put(data, classIndex),
				int64(len(data)), x.MediaType
		}
		return fmt.Sprintf("index %d deep, %d wide", depth, width)
	}
	return "nothing"
}

// use opens a bundle and does with it, by turns, what commands do. Errors are the right answer.
func use(ctx context.Context, r *rand.Rand, dir, path, before string) (what string) {
	b, err := bundle.Open(path)
	if err != nil {
		return "not opened"
	}
	defer b.Close()
	items := b.Index().Items
	amd64 := func(platform string) bool { return platform == "linux/amd64" }
	switch r.IntN(9) {
	case 0:
		_, _ = b.Verify(ctx, bundle.VerifyOptions{})
		return "verify"
	case 1:
		if f, err := os.Open(path); err == nil {
			defer f.Close()
			_, _ = bundle.VerifyStream(ctx, f, bundle.VerifyOptions{})
		}
		return "verify of a pipe"
	case 2:
		_, _ = b.Survey(ctx)
		_, _ = b.Referrers(ctx, items)
		_, _ = builder.BundleQuestion(ctx, b)
		return "inspect"
	case 3:
		_, _ = closure.Contents(ctx, items, b.ReadBlob)
		_, _ = builder.CheckClosure(ctx, path, &b.Catalog)
		return "closure"
	case 4:
		for _, it := range items[:min(len(items), 50)] {
			_, _ = b.ForPlatform(ctx, it, amd64)
			_, _, _ = b.Narrow(ctx, it, amd64)
			_ = ocilayout.DockerArchive(ctx, io.Discard, b, it)
		}
		return "extract of an item"
	case 5:
		wanted, err := transfer.ParsePlatforms([]string{"linux/amd64"})
		if err != nil {
			return err.Error()
		}
		if some, err := extract.Select(ctx, b, groups.Set{}, nil, pick(r, nil, wanted)); err == nil {
			_ = extract.Tree(ctx, b, filepath.Join(dir, "tree"), some[:min(len(some), 100)])
		}
		return "extract"
	case 6:
		return copyBundle(ctx, r, dir, path, b)
	case 7:
		return compare(ctx, b, before)
	}
	return browse(ctx, path)
}

func copyBundle(ctx context.Context, r *rand.Rand, dir, path string, b *bundle.Reader) string {
	wanted, err := transfer.ParsePlatforms([]string{"linux/arm64"})
	if err != nil {
		return err.Error()
	}
	o := transfer.CopyOptions{
		Output:    filepath.Join(dir, "copy.kkb"),
		Selection: transfer.Selection{Platforms: pick(r, nil, wanted)},
	}
	_, _ = transfer.Copy(ctx, []bundle.From{{Name: path, Reader: b}}, o)
	return "copy"
}

func compare(ctx context.Context, b *bundle.Reader, before string) string {
	old, err := bundle.Open(before)
	if err != nil {
		return err.Error()
	}
	defer old.Close()
	var sides [2]*diff.Listing
	for i, r := range []*bundle.Reader{old, b} {
		contents, err := r.Survey(ctx)
		if err != nil {
			return "diff"
		}
		sides[i] = diff.OfBundle(&r.Catalog, contents, r, func() error { return nil })
	}
	_, _ = diff.Compare(ctx, sides[0], sides[1])
	return "diff"
}

// browse serves a bundle and asks for every area's list.
func browse(ctx context.Context, path string) string {
	s, err := serve.New(ctx, serve.Options{Bundles: []string{path}})
	if err != nil {
		return "serve"
	}
	defer s.Close()
	for _, path := range []string{
		"/", "/?q=app", "/v2/_catalog", "/v2/library/app/tags/list",
		"/v2/library/app/manifests/1.0", "/charts/index.yaml", "/helm/index.yaml", "/files/", "/packages/",
		"/packages/debian/12/", "/packages/debian/12/Packages", "/packages/debian/12/repodata/repomd.xml", "/metrics",
	} {
		s.ServeHTTP(devNull{http.Header{}}, httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody))
	}
	return "serve"
}

// devNull is a client that reads and forgets.
type devNull struct{ header http.Header }

func (w devNull) Header() http.Header         { return w.header }
func (w devNull) Write(p []byte) (int, error) { return len(p), nil }
func (w devNull) WriteHeader(int)             {}
