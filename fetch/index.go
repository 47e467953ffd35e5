package fetch

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/kkbundle/kkbundle/fetch/registries"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// A pinnedIndex is an image whose reference has the digest of an index of more platforms than were asked for.
type pinnedIndex struct {
	selected, whole int64 // bytes with the platforms that were asked for, and with all; 0 is not known
	lost            error // why not all platforms can be had
}

// completed returns an image with all platforms of its index, and true, if the policy wants that and upstream allows
// it; else found. Reading the other platforms' manifests costs a few requests, so it is only for images that the
// policy or the report is about.
func (i *images) completed(ctx context.Context, repo *registries.Repository, found registries.Image, ref string,
	policy manifest.IndexPolicy,
) (registries.Image, bool, error) {
	pinned := strings.Contains(ref, "@")
	if !registries.IsIndex(found.Root.MediaType) || len(found.Absent) == 0 ||
		!pinned && policy != manifest.IndexesComplete {
		return found, false, nil
	}
	whole, err := repo.Whole(ctx, found.Root, found.Platforms)
	lost := err != nil && (errors.Is(err, registries.ErrForeign) || upstream.Lacking(err, http.StatusNotFound))
	switch {
	case policy == manifest.IndexesSelected: // the other platforms are only weighed
		i.record(ref, pinnedIndex{selected: found.Size(), whole: whole.Size()})
		return found, false, ctx.Err()
	case err != nil && (!lost || policy == manifest.IndexesComplete):
		return found, false, err
	case pinned:
		i.record(ref, pinnedIndex{selected: found.Size(), whole: whole.Size(), lost: err})
	}
	if lost {
		return found, false, nil
	}
	return whole, true, nil
}

// tellIndex says, once in a run, what becomes of an image that is pinned by the digest of an index: registries that
// check indexes take it with all platforms only, and a reduced index has another digest.
func (i *images) tellIndex(ctx context.Context, pin manifest.Pin) {
	i.mu.Lock()
	x, sized := i.indexes[pin.Ref]
	i.mu.Unlock()
	if !sized || !i.hosts.First(pin.Ref) {
		return
	}
	about := []any{
		"item", pin.Ref, "by", cmp.Or(strings.Join(pin.WantedBy, ", "), "the manifest"), "selected",
		plain.Size(x.selected),
	}
	if x.whole > 0 {
		about = append(about, "all", plain.Size(x.whole))
	}
	switch {
	case x.lost != nil:
		i.log.WarnContext(ctx, "an image is pinned by the digest of its index, and not all its platforms can be had: registries that check indexes (docker-registry 2.8, Harbor) refuse it",
			append(about, "error", oneLine(x.lost))...)
	case pin.Complete:
		i.log.Log(ctx, LevelNote,
			"an image is pinned by the digest of its index, and goes with all its platforms: registries that check indexes refuse less (indexes: selected leaves them out)", about...)
	default:
		i.log.WarnContext(ctx, "an image is pinned by the digest of its index, and goes without some of its platforms: registries that check indexes (docker-registry 2.8, Harbor) refuse it (indexes: pinned takes all platforms of such images)",
			about...)
	}
}

// sparse records a pinned index of a lock that goes without some platforms.
func (i *images) sparse(pin manifest.Pin, img registries.Image) {
	if pin.Complete || len(img.Absent) == 0 || !strings.Contains(pin.Ref, "@") {
		return
	}
	i.record(pin.Ref, pinnedIndex{selected: img.Size()})
}

func (i *images) record(ref string, x pinnedIndex) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.indexes[ref] = x
}
