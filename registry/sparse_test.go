package registry_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

const sparseRef = "a.example/multi:1"

// sparse returns a bundle with the children of an index for some architectures, and the index's digest.
func sparse(t *testing.T, ref string, archs ...string) (*bundletest.Bundle, string) {
	t.Helper()
	b, idx := bundletest.NewBuilder(t), bundletest.MultiImage(t, 21)
	b.ImageIndex(ref, idx, func(d v1.Descriptor) bool { return slices.Contains(archs, d.Platform.Architecture) })
	d, err := idx.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return b.Bundle(), d.String()
}

func architectures(t *testing.T, s *registrytest.Server, ref string) (archs []string) {
	t.Helper()
	idx, err := get(t, s, ref).ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range m.Manifests {
		archs = append(archs, c.Platform.Architecture)
		img, err := idx.Image(c.Digest)
		if err == nil {
			checkLayers(t, img)
		}
	}
	return archs
}

func TestPushSparseAccepted(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{Children: registrytest.ChildrenNone})
	b, want := sparse(t, sparseRef, "amd64")
	sum := push(t, b, options(s))
	if got := get(t, s, sum.Items[0].Destination).Digest.String(); got != want || len(sum.Warnings) != 0 ||
		sum.Items[0].Reduced {
		t.Errorf("digest %s, want %s; %+v", got, want, sum)
	}
}

func TestPushSparseRefused(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	b, upstream := sparse(t, sparseRef, "amd64")
	sum := push(t, b, options(s))
	got := get(t, s, sum.Items[0].Destination).Digest.String()
	if got == upstream || got != sum.Items[0].Digest.String() || !sum.Items[0].Reduced {
		t.Errorf("digest %s in %+v", got, sum.Items[0])
	}
	if archs := architectures(t, s, sum.Items[0].Destination); !slices.Equal(archs, []string{"amd64"}) {
		t.Errorf("platforms %v", archs)
	}
	if len(sum.Warnings) != 1 {
		t.Fatalf("warnings %q", sum.Warnings)
	}
	for _, w := range []string{sparseRef, upstream, got} {
		if !strings.Contains(sum.Warnings[0], w) {
			t.Errorf("warning %q lacks %s", sum.Warnings[0], w)
		}
	}
	dry := options(s)
	dry.DryRun = true
	if item := push(t, b, dry).Items[0]; item.Digest.String() != got || !item.Reduced {
		t.Errorf("a dry run knows %s, reduced %v", item.Digest, item.Reduced)
	}
	s.ForgetRequests()
	again := push(t, b, options(s))
	if n := s.Count(http.MethodPut, "") + s.Count(http.MethodPost, ""); n != 0 || len(again.Warnings) != 1 ||
		again.ItemsPresent != 1 {
		t.Errorf("%d requests to write in the second run; %+v", n, again)
	}
}

// TestPushSparseOneAfterTheOther: bundles for one platform each add up; the second finds the first's children and the
// upstream index is complete.
func TestPushSparseOneAfterTheOther(t *testing.T) {
	t.Parallel()
	s := registrytest.Start(t, registrytest.Options{})
	amd, upstream := sparse(t, sparseRef, "amd64")
	arm, _ := sparse(t, sparseRef, "arm64")
	push(t, amd, options(s))
	for _, b := range []*bundletest.Bundle{arm, amd} {
		sum := push(t, b, options(s))
		if got := get(t, s, sum.Items[0].Destination).Digest.String(); got != upstream || len(sum.Warnings) != 0 {
			t.Errorf("digest %s, want %s; warnings %q", got, upstream, sum.Warnings)
		}
	}
}

func TestPushSparsePinned(t *testing.T) {
	t.Parallel()
	_, upstream := sparse(t, sparseRef, "amd64")
	for _, ref := range []string{"a.example/multi@" + upstream, sparseRef + "@" + upstream} {
		s := registrytest.Start(t, registrytest.Options{})
		b, _ := sparse(t, ref, "amd64")
		_, err := registry.Push(t.Context(), b.Reader, options(s))
		if err == nil || !strings.Contains(err.Error(), "pinned") ||
			!strings.Contains(err.Error(), "build the bundle with every platform") {
			t.Errorf("%s: got %v", ref, err)
		}
		if errors.Is(err, registry.ErrUnreachable) || strings.Contains(err.Error(), "connection") {
			t.Errorf("%s: a refused index is no lost connection: %v", ref, err)
		}
		s = registrytest.Start(t, registrytest.Options{Children: registrytest.ChildrenNone})
		if sum := push(t, b, options(s)); sum.Items[0].Digest.String() != upstream {
			t.Errorf("%s: %+v", ref, sum.Items[0])
		}
	}
}

// TestPushSparseNested: a reduced index inside an index changes the outer one too, and the second run knows both.
func TestPushSparseNested(t *testing.T) {
	t.Parallel()
	s, b := registrytest.Start(t, registrytest.Options{}), bundletest.NewBuilder(t)
	inner := bundletest.MultiImage(t, 31)
	b.ImageIndex("x", inner, func(d v1.Descriptor) bool { return d.Platform.Architecture == "arm64" })
	it := b.Index.Items[0]
	outer := b.JSON(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{it.Descriptor, it.Descriptor}, Annotations: map[string]string{"kept": "yes"},
	})
	outer.MediaType = ocispec.MediaTypeImageIndex
	upstream := it.Descriptor.Digest
	it.Ref, it.Descriptor = sparseRef, outer
	b.Index.Items[0] = it
	bun := b.Bundle()
	sum := push(t, bun, options(s))
	d := get(t, s, sum.Items[0].Destination)
	if !strings.Contains(string(d.Manifest), `"kept":"yes"`) ||
		strings.Contains(string(d.Manifest), upstream.String()) || !sum.Items[0].Reduced {
		t.Errorf("outer index %s", d.Manifest)
	}
	if len(sum.Warnings) != 2 {
		t.Errorf("warnings %q, want one for each index", sum.Warnings)
	}
	s.ForgetRequests()
	again := push(t, bun, options(s))
	if n := s.Count(http.MethodPut, "") + s.Count(http.MethodPost, ""); n != 0 || again.ItemsPresent != 1 {
		t.Errorf("%d requests to write in the second run; %+v", n, again)
	}
}

func readAll(rc io.ReadCloser) (int64, error) {
	n, err := io.Copy(io.Discard, rc)
	if err != nil {
		return n, err
	}
	return n, rc.Close()
}
