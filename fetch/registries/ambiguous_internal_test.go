package registries

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestAmbiguousManifest wants documents that a bundle refuses to be refused before anything of them is downloaded.
func TestAmbiguousManifest(t *testing.T) {
	t.Parallel()
	const config = `"config": {"digest": "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "size": 1}`
	for _, c := range []struct {
		mediaType, text string
		ambiguous       bool
	}{
		{ocispec.MediaTypeImageManifest, `{` + config + `, "layers": []}`, false},
		{ocispec.MediaTypeImageManifest, `{` + config + `, "layers": null, "manifests": null}`, false},
		{ocispec.MediaTypeImageManifest, `{` + config + `, "layers": [], "manifests": []}`, true},
		{ocispec.MediaTypeImageIndex, `{"manifests": []}`, false},
		{ocispec.MediaTypeImageIndex, `{"manifests": [], "layers": []}`, true},
		{ocispec.MediaTypeImageIndex, `{"manifests": [], ` + config + `}`, true},
	} {
		desc := ocispec.Descriptor{MediaType: c.mediaType, Digest: digest.FromString(c.text)}
		_, err := ParseManifest(desc, []byte(c.text))
		if c.ambiguous != (err != nil && strings.Contains(err.Error(), "an index and an image at once")) || !c.ambiguous && err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
	}
}
