package fetch

import (
	"cmp"
	"context"
	"net/http"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/manifest"
)

// A kept holds the pins of an earlier lock. What it pins is not looked up again.
type kept struct {
	pins   map[keptItem]manifest.Pin
	charts []manifest.Pin
}

type keptItem struct{ kind, ref, platform string }

func newKept(l *manifest.Lock) kept {
	k := kept{pins: map[keptItem]manifest.Pin{}}
	if l == nil {
		return k
	}
	for _, pin := range l.Items {
		k.pins[keptItem{pin.Kind, pin.Ref, pin.Platform}] = pin
		if pin.Kind == manifest.ItemChart {
			k.charts = append(k.charts, pin)
		}
	}
	return k
}

// lookedUp reports whether upstream was asked for the pin's digest. Digests that the manifest or a signature vouched
// for follow from settings that may have changed.
func lookedUp(pin manifest.Pin) bool {
	return pin.Verified == manifest.VerifiedUpstream || pin.Verified == manifest.VerifiedMirror ||
		pin.Verified == manifest.VerifiedFirstUse
}

// image returns the manifest that an image's tag was pinned to, if it can still be had.
func (k kept) image(ctx context.Context, repo *registries.Repository,
	ref string,
) (root ocispec.Descriptor, pin manifest.Pin, ok bool, err error) {
	pin, ok = k.pins[keptItem{kind: manifest.ItemImage, ref: ref}]
	if !ok {
		return root, pin, false, nil
	}
	root, _, err = repo.Manifest(ctx, ocispec.Descriptor{Digest: pin.Digest, Size: -1})
	if upstream.Lacking(err, http.StatusNotFound, http.StatusGone) {
		return root, pin, false, nil // upstream has removed it; the tag leads to its successor
	}
	return root, pin, err == nil, err
}

// file returns the pin of a file whose digest the manifest does not name. The same checksum file must have named it.
func (k kept) file(want manifest.Pin, site *webFiles) (manifest.Pin, bool) {
	pin, ok := k.pins[keptItem{want.Kind, want.Ref, want.Platform}]
	if !ok || !lookedUp(pin) || pin.Package != "" || !site.hasSource(pin.Ref, pin.From) ||
		pin.Checksums != want.Checksums {
		return want, false
	}
	pin.Name, pin.Version, pin.Mode = want.Name, want.Version, want.Mode
	return pin, true
}

// chart returns the pin with the newest version that fits a chart of a repository or an address.
func (k kept) chart(c manifest.Chart, site *webFiles) (manifest.Pin, bool) {
	var fitting []manifest.Pin
	for _, pin := range k.charts {
		sameSource := registries.IsManifest(pin.MediaType) || isRegistryAddress(pin.URL) ||
			site.hasSource(cmp.Or(pin.URL, pin.Ref), pin.From)
		if c.Path == "" && c.Fits(pin) && (lookedUp(pin) || c.Verify != nil) && sameSource {
			fitting = append(fitting, pin)
		}
	}
	if len(fitting) == 0 {
		return manifest.Pin{}, false
	}
	if c.URL != "" {
		return fitting[0], c.Name == "" || c.Name == fitting[0].Name
	}
	pin, err := pickVersion(fitting, c.Version, func(pin manifest.Pin) string { return pin.Version })
	return pin, err == nil
}

// hasSource reports whether the bytes of an address still come from the override that a pin records, "" for none.
func (w *webFiles) hasSource(address, from string) bool {
	asked, replaced := w.override(address)
	return replaced == (from != "") && (!replaced || asked == from)
}
