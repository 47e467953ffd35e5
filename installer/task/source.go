package task

import (
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/bundle/groups"
)

// A Source holds the bundle, and the package repositories made from it for all hosts.
type Source struct {
	Bundle       *bundle.Reader // nil if the run needs none
	Items        []bundle.Item  // of the bundle, without those of groups that are off
	Repositories *PackageRepositories
	offered      *offered
}

// NewSource returns the Source for a bundle, which may be nil.
func NewSource(b *bundle.Reader, of groups.Set) Source {
	s := Source{Bundle: b, offered: &offered{names: map[digest.Digest]string{}}, Repositories: new(PackageRepositories)}
	if b != nil {
		s.Items = of.Items(b.Index().Items)
	}
	return s
}

// offered names the item of each content offered to hosts. It is safe for concurrent use.
type offered struct {
	mu    sync.Mutex
	names map[digest.Digest]string
}

// RecordItem records the item of a content for ItemOf.
func (s Source) RecordItem(content digest.Digest, item bundle.Item) {
	s.offered.mu.Lock()
	defer s.offered.mu.Unlock()
	s.offered.names[content] = item.Kind + " " + item.Ref
}

// ItemOf returns the kind and reference of the item recorded for a content.
func (s Source) ItemOf(content digest.Digest) string {
	s.offered.mu.Lock()
	defer s.offered.mu.Unlock()
	return s.offered.names[content]
}
