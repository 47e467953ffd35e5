package task

import (
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
)

// A Source is the bundle that everything comes from, and what was made of it once for all hosts.
type Source struct {
	// Bundle is nil where the run needs none.
	Bundle *bundle.Reader
	// items are the bundle's.
	Items []bundle.Item
	// offered names the items whose content hosts were offered.
	offered *offered
	// repositories are what hosts get packages from.
	Repositories *PackageRepositories
}

// NewSource returns the source for a bundle, which may be nil.
func NewSource(b *bundle.Reader) Source {
	s := Source{Bundle: b, offered: &offered{names: map[digest.Digest]string{}}, Repositories: new(PackageRepositories)}
	if b != nil {
		s.Items = b.Index().Items
	}
	return s
}

// offered remembers which item has a content. It is safe for concurrent use.
type offered struct {
	mu    sync.Mutex
	names map[digest.Digest]string
}

// Remember keeps which item has a content.
func (s Source) RecordItem(content digest.Digest, item bundle.Item) {
	s.offered.mu.Lock()
	defer s.offered.mu.Unlock()
	s.offered.names[content] = item.Kind + " " + item.Ref
}

// ItemOf returns the kind and reference of the item with a content.
func (s Source) ItemOf(content digest.Digest) string {
	s.offered.mu.Lock()
	defer s.offered.mu.Unlock()
	return s.offered.names[content]
}
