package builder

import (
	"errors"
	"fmt"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
)

// placeImages adds the place in the manifest to the errors of images that it lists.
func (p *Project) placeImages(err error) {
	failed, ok := errors.AsType[*fetch.Errors](err)
	if !ok || p.text != nil { // nobody sees the lines of a manifest in memory
		return
	}
	for _, item := range failed.Failed {
		for i, image := range p.Manifest.Images {
			ref, refErr := image.Ref()
			if item.Kind != manifest.ItemImage || refErr != nil || ref != item.Ref && image.Name != item.Ref {
				continue
			}
			found, ok := errors.AsType[document.Problems](p.Manifest.Problem(fmt.Sprintf("images[%d]", i), ""))
			if ok && found[0].Line > 0 {
				item.Place = fmt.Sprintf("%s:%d", found[0].File, found[0].Line)
			}
			break
		}
	}
}
