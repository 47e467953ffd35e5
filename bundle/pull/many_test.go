package pull_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/bundle/published"
	"github.com/kkbundle/kkbundle/bundle/pull"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// split publishes a bundle again as an index, as publish does above 20,000 blobs, with two blobs in each manifest.
func split(t *testing.T, s *registrytest.Server, b *bundletest.Bundle, change func(*ocispec.Index)) {
	t.Helper()
	data, err := published.Listing(b.Reader)
	check(t, err)
	var m ocispec.Manifest
	check(t, json.Unmarshal(data, &m))
	x := ocispec.Index{
		Versioned: m.Versioned, MediaType: ocispec.MediaTypeImageIndex,
		ArtifactType: published.ArtifactTypeBundle, Annotations: m.Annotations,
	}
	layers := m.Layers
	m.ArtifactType, m.Annotations = published.ArtifactTypeBlobs, nil
	for i := 0; i < len(layers); i += 2 {
		m.Layers = layers[i:min(i+2, len(layers))]
		data, err := json.Marshal(m)
		check(t, err)
		d := ocispec.Descriptor{
			MediaType: m.MediaType, ArtifactType: m.ArtifactType, Digest: digest.FromBytes(data),
			Size: int64(len(data)),
		}
		put(t, s, d.Digest.String(), m.MediaType, data)
		x.Manifests = append(x.Manifests, d)
	}
	change(&x)
	data, err = json.Marshal(x)
	check(t, err)
	put(t, s, "1", x.MediaType, data)
}

func TestPullJoinsTheManifestsOfAnIndex(t *testing.T) {
	t.Parallel()
	b := bundletest.New(t)
	s := registrytest.Start(t, registrytest.Options{})
	publish(t, s, b)
	split(t, s, b, func(*ocispec.Index) {})
	o, _ := options(t, s)
	pulled(t, o, b)

	split(t, s, b, func(x *ocispec.Index) { x.Manifests = x.Manifests[1:] })
	o, _ = options(t, s)
	if _, err := pull.Pull(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("without one of the manifests: %v", err)
	}
}

// TestManyBlobs publishes and pulls a bundle whose blobs one manifest cannot list. It takes minutes.
func TestManyBlobs(t *testing.T) {
	if os.Getenv("KKBUNDLE_BIG") != "1" {
		t.Skip("KKBUNDLE_BIG=1 runs it")
	}
	t.Parallel()
	const files = 30_000
	b := bundletest.NewBuilder(t)
	for i := range files {
		b.File(fmt.Sprintf("https://files.example/%d", i), fmt.Sprint(i), nil, fmt.Append(nil, "content ", i))
	}
	many := b.Bundle()
	s := registrytest.Start(t, registrytest.Options{})
	start := time.Now()
	sum := publish(t, s, many)
	t.Logf("published %d blobs in %s", sum.BlobsSent, time.Since(start))
	o, _ := options(t, s)
	start = time.Now()
	r := pulled(t, o, many)
	t.Logf("pulled %d blobs in %s", r.Blobs, time.Since(start))
	if got := s.Count("PUT", "/manifests/sha256:"); got < 2 {
		t.Errorf("%d manifests beside the index", got)
	}
}
