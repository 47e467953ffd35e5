package cli

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// failures collects the items of a build that failed at one step, while the others go on: whatever can be brought is there
// when the reason has been mended.
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

// without is the lock without the items that failed.
func (f *failures) without(l *manifest.Lock) *manifest.Lock {
	out := *l
	out.Items = slices.DeleteFunc(slices.Clone(l.Items), func(p manifest.Pin) bool {
		return slices.ContainsFunc(f.list, func(e *fetch.ItemError) bool {
			return e.Kind == p.Kind && e.Ref == p.Ref && e.Platform == p.Platform
		})
	})
	return &out
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

// announce says early what the run will end with.
func (f *failures) announce(g *globals) {
	if len(f.list) == 0 {
		return
	}
	refs := make([]string, len(f.list))
	for i, e := range f.list {
		refs[i] = printable(e.Ref)
	}
	g.note("cannot be had, as said at the end: %s; the rest is fetched all the same", strings.Join(refs, ", "))
}
