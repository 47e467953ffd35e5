package fetch

import (
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/registries"
)

// TestCoveredNestedIndexes looks at each index once, however often others name it.
func TestCoveredNestedIndexes(t *testing.T) {
	t.Parallel()
	img := registries.Image{Children: map[digest.Digest][]digest.Digest{}}
	level := func(n int) digest.Digest { return digest.FromString(fmt.Sprint(n)) }
	for n := range 4 {
		for range 1000 {
			img.Children[level(n)] = append(img.Children[level(n)], level(n+1))
		}
	}
	img.Root = ocispec.Descriptor{Digest: level(0)}
	c := signatureCheck{image: img}
	// A walk of every path has 10^12 steps and reaches the test's own time limit.
	if _, err := c.covered(t.Context(), level(0)); err != nil || len(c.missing) != 5 {
		t.Errorf("%d manifests without a signature, %v", len(c.missing), err)
	}
}
