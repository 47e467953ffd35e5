package published

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/cache"
)

// manyFiles returns a bundle of n small files.
func manyFiles(t *testing.T, n int) *bundle.Reader {
	t.Helper()
	c, err := cache.Open(t.TempDir(), bundle.LevelFast)
	if err != nil {
		t.Fatal(err)
	}
	x := bundle.Index{Name: "many", Version: "1"}
	for i := range n {
		w, _, err := c.Begin(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(rand.Text())); err != nil {
			t.Fatal(err)
		}
		d, err := w.Commit(t.Context(), -1, "")
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		d.MediaType = "application/octet-stream"
		x.Items = append(x.Items, bundle.Item{Kind: bundle.KindFile, Ref: fmt.Sprintf("local/%d", i), Descriptor: d})
	}
	path := filepath.Join(t.TempDir(), "many.kkb")
	if _, err := bundle.Create(t.Context(), path, c, x, bundle.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestPublishedInSeveralManifests(t *testing.T) {
	t.Parallel()
	r := manyFiles(t, 10)
	blobs := len(r.Blobs())
	doc, err := documents(r, []Signature{{Suffix: "sigstore.json", Data: []byte("{}")}}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if doc.MediaType != ocispec.MediaTypeImageIndex || len(doc.Manifests) != (blobs+3)/4 {
		t.Fatalf("%s with %d manifests for %d blobs", doc.MediaType, len(doc.Manifests), blobs)
	}
	served := map[digest.Digest][]byte{}
	for _, m := range doc.Manifests {
		served[digest.FromBytes(m)] = m
	}
	read := func(d ocispec.Descriptor) ([]byte, error) { return served[d.Digest], nil }
	p, err := Parse(doc.Root, read)
	if err != nil {
		t.Fatal(err)
	}
	if p.Index.Digest != r.Digest() || len(p.Blobs) != blobs || len(p.Signatures) != 1 || p.Encoder != r.Encoder() ||
		p.Level != r.Level().String() {
		t.Errorf("%+v", p)
	}

	for name, lie := range map[string]func(x *ocispec.Index){
		"a manifest of another bundle": func(x *ocispec.Index) {
			other, err := documents(manyFiles(t, 5), nil, 4)
			if err != nil {
				t.Fatal(err)
			}
			d := digest.FromBytes(other.Manifests[0])
			served[d] = other.Manifests[0]
			x.Manifests[1].Digest = d
		},
		"a whole bundle for a part": func(x *ocispec.Index) {
			data, err := Listing(r)
			if err != nil {
				t.Fatal(err)
			}
			served[digest.FromBytes(data)] = data
			x.Manifests[1].Digest = digest.FromBytes(data)
		},
		"no manifest": func(x *ocispec.Index) { x.Manifests = nil },
		"too many":    func(x *ocispec.Index) { x.Manifests = make([]ocispec.Descriptor, maxManifests+1) },
		"not ours":    func(x *ocispec.Index) { x.ArtifactType = "" },
	} {
		var x ocispec.Index
		if err := json.Unmarshal(doc.Root, &x); err != nil {
			t.Fatal(err)
		}
		lie(&x)
		data, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(data, read); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestPublishedManifestsAreBelowTheLimitOfRegistries(t *testing.T) {
	t.Parallel()
	m := ocispec.Manifest{ArtifactType: ArtifactTypeBlobs, Config: ocispec.Descriptor{
		MediaType: MediaTypeIndex,
		Digest:    digest.FromString("x"), Size: 1 << 30,
	}}
	for i := range manifestBlobs + maxSignatures {
		m.Layers = append(m.Layers, ocispec.Descriptor{
			MediaType: MediaTypeBlob,
			Digest:    digest.FromString(fmt.Sprint(i)), Size: 1 << 53,
		})
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > bundle.MaxManifest-(256<<10) {
		t.Errorf("a manifest can have %d bytes", len(data))
	}
}
