package scalar

import (
	"fmt"

	"github.com/distribution/reference"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// ImageName makes an image reference fully qualified: nginx becomes docker.io/library/nginx:latest. A reference with a
// digest and no tag gets no tag.
func ImageName(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("%q is not an image reference: %w", document.Shorten(ref), err)
	}
	return reference.TagNameOnly(named).String(), nil
}
