package cache

import (
	"github.com/opencontainers/go-digest"
)

// Mend runs f. If copies of blobs in the cache are damaged, Mend drops them, calls dropped for each, and runs f
// again, which fetches them. A blob that is damaged a second time ends it: the disk is bad.
func Mend[T any](c *Cache, dropped func(*EntryError), f func() (T, error)) (T, error) {
	seen := map[digest.Digest]bool{}
	for {
		result, err := f()
		before := len(seen)
		for _, damaged := range EntryErrors(err) {
			if seen[damaged.Digest] {
				continue
			}
			seen[damaged.Digest] = true
			dropped(damaged)
			if err := c.DropDamaged(damaged); err != nil {
				return result, err
			}
		}
		if len(seen) == before {
			return result, err
		}
	}
}

// EntryErrors returns every EntryError in the tree of err. errors.As finds only the first.
func EntryErrors(err error) []*EntryError {
	if damaged, ok := err.(*EntryError); ok { //nolint:errorlint // the chain is walked here
		return []*EntryError{damaged}
	}
	var all []*EntryError
	switch e := err.(type) { //nolint:errorlint // the chain is walked here
	case interface{ Unwrap() error }:
		all = EntryErrors(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, EntryErrors(inner)...)
		}
	}
	return all
}
