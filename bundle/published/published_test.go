package published_test

import (
	"encoding/json"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/published"
)

func FuzzParsePublished(f *testing.F) {
	b := bundletest.New(f)
	doc, err := published.Of(b.Reader, []published.Signature{{Suffix: "sigstore.json", Data: []byte("{}")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(doc.Root)
	f.Add([]byte(`{"mediaType":"application/vnd.oci.image.index.v1+json","artifactType":"application/vnd.kkbundle.bundle.v1","manifests":[{"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2}]}`))
	f.Add([]byte(`{"artifactType":"application/vnd.kkbundle.bundle.v1","config":{"mediaType":"application/vnd.kkbundle.index.v1+json"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := published.Parse(data, func(ocispec.Descriptor) ([]byte, error) { return data, nil })
		if err != nil {
			return
		}
		for _, d := range append([]ocispec.Descriptor{p.Index}, p.Blobs...) {
			if d.Size < 0 || d.Digest.Validate() != nil {
				t.Errorf("took %v", d)
			}
		}
	})
}

func TestPublishedIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	first, err := published.Of(b.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := published.Of(b.Reader, nil)
	if err != nil || string(first.Root) != string(second.Root) {
		t.Errorf("two manifests of one bundle, %v:\n%s\n%s", err, first.Root, second.Root)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(first.Root, &m); err != nil || m.Config.Digest != b.Reader.Digest() {
		t.Errorf("config %s, identity %s, %v", m.Config.Digest, b.Reader.Digest(), err)
	}
	p, err := published.Parse(first.Root, nil)
	if err != nil || p.Encoder != b.Reader.Encoder() || p.Level != b.Reader.Level().String() {
		t.Errorf("%+v, %v", p, err)
	}
}
