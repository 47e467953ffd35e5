package builder

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/fetch"
)

// failures collects the items of a build that failed at one step, while the others go on: whatever can be brought is
// there when the reason has been mended.
type failures struct {
	list  []*fetch.ItemError
	items int // of how many
}

// set keeps the failures in err and returns nil if it has nothing else.
func (f *failures) set(err error) error {
	var failed *fetch.Errors
	if err == nil || !errors.As(err, &failed) {
		return err
	}
	if only, ok := err.(*fetch.Errors); ok { //nolint:errorlint // what is joined with it ends the build
		f.list = append(f.list, only.Failed...)
		f.items = max(f.items, only.Items)
		return nil
	}
	return err
}

// err is everything that failed; nil if nothing did.
func (f *failures) err() error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortFunc(f.list, func(a, b *fetch.ItemError) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Ref, b.Ref), cmp.Compare(a.Platform, b.Platform))
	})
	return &fetch.Errors{Failed: f.list, Items: f.items}
}

// announce reports early the failures that the run will end with.
func (f *failures) announce(s *session, more []*fetch.ItemError) {
	all := slices.Concat(f.list, more)
	if len(all) == 0 {
		return
	}
	const most = 5
	var refs []string
	for _, e := range all[:min(len(all), most)] {
		refs = append(refs, e.Ref)
	}
	if more := len(all) - most; more > 0 {
		refs = append(refs, fmt.Sprintf("and %d more", more))
	}
	s.note("not available: %s; the other items are fetched", strings.Join(refs, ", "))
}
