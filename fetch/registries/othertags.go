package registries

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/plain"
)

const (
	tagsWait  = 10 * time.Second // of a list of tags for a message
	tagsShown = 5
)

// WithTags adds the nearest tags of the repository to the error of a tag that it lacks. The list is a help: without
// it, err is returned.
func (r *Repository) WithTags(ctx context.Context, tag string, err error) error {
	if tag == "" || !upstream.Lacking(err, http.StatusNotFound) {
		return err
	}
	listCtx, cancel := context.WithTimeout(ctx, tagsWait)
	defer cancel()
	all, listErr := r.Tags(listCtx)
	if listErr != nil || len(all) == 0 {
		return err
	}
	near := nearestTags(tag, all)
	more := ""
	if n := len(all) - len(near); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w; its tags are %s%s", err, plain.Line(strings.Join(near, ", ")), more)
}

// nearestTags returns at most tagsShown tags, the nearest first: those that differ in the fewest letters, of these
// the last of the list.
func nearestTags(tag string, all []string) []string {
	type candidate struct {
		tag      string
		distance int
	}
	list := make([]candidate, 0, len(all))
	for _, other := range all {
		if len(other) <= maxTag {
			list = append(list, candidate{other, plain.Distance(tag, other, maxTag)})
		}
	}
	slices.Reverse(list)
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(a.distance, b.distance) })
	var near []string
	for _, c := range list[:min(len(list), tagsShown)] {
		near = append(near, c.tag)
	}
	return near
}

// maxTag is the length of the longest tag (OCI distribution specification 1.1, "Pulling manifests").
const maxTag = 128
