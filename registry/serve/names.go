package serve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/registry"
)

// An entry is an item of an open bundle.
type entry struct {
	book *book
	item *bundle.Item
}

// A repository holds the items with one name, from one or more bundles.
type repository struct {
	name    string
	entries []entry // of later bundles first
	tags    map[string]entry
	sorted  []string // tags, in the order of listing
}

// names are the repositories of all bundles, named like registry.Push's destinations.
type names struct {
	repositories map[string]*repository
	sorted       []string
	warnings     []string
}

// nameItems assigns items to names. If two bundles have a tag with different content, the later bundle on the command
// line wins; the other's content is available by digest.
func nameItems(books []*book) *names {
	n := &names{repositories: make(map[string]*repository)}
	for i := len(books) - 1; i >= 0; i-- {
		items := books[i].reader.Index().Items
		for j := range items {
			n.add(entry{books[i], &items[j]})
		}
	}
	for _, r := range n.repositories {
		r.sorted = slices.SortedFunc(maps.Keys(r.tags), compareTags)
	}
	n.sorted = slices.Sorted(maps.Keys(n.repositories))
	return n
}

// compareTags compares in the distribution specification's lexical order, ignoring case.
func compareTags(a, b string) int {
	return cmp.Or(cmp.Compare(strings.ToLower(a), strings.ToLower(b)), cmp.Compare(a, b))
}

func (n *names) add(e entry) {
	ref, ok, err := destination("registry.invalid", *e.item)
	if err != nil {
		n.warnings = append(n.warnings, fmt.Sprintf("%s has no name in a registry: %v", e.item, err))
	}
	if err != nil || !ok {
		return
	}
	path := ref.Context().RepositoryStr()
	r := n.repositories[path]
	if r == nil {
		r = &repository{name: path, tags: make(map[string]entry)}
		n.repositories[path] = r
	}
	r.entries = append(r.entries, e)
	tag, ok := ref.(name.Tag)
	if !ok {
		return
	}
	has, taken := r.tags[tag.TagStr()]
	if !taken {
		r.tags[tag.TagStr()] = e
		return
	}
	if has.item.Descriptor.Digest != e.item.Descriptor.Digest {
		n.warnings = append(n.warnings, fmt.Sprintf("%s:%s is %s of %s; %s of %s is available by digest only",
			path, tag.TagStr(), has.item.Descriptor.Digest, has.book.path, e.item.Descriptor.Digest, e.book.path))
	}
}

// destination is registry.Destination for all items that have one, and for referrers.
func destination(host string, it bundle.Item) (name.Reference, bool, error) {
	switch it.Kind {
	case bundle.KindReferrer:
		it.Kind = bundle.KindImage
	case bundle.KindImage, bundle.KindChart, bundle.KindFile:
	default:
		return nil, false, nil
	}
	ref, err := registry.Destination(host, it)
	return ref, err == nil, err
}

// hosts returns the names under which a bundle may have the content of an upstream host: Docker Hub has several.
func hosts(ns string) []string {
	switch ns = strings.ToLower(ns); ns {
	case "":
		return nil
	case "registry-1.docker.io", "index.docker.io":
		return []string{ns, "docker.io"}
	}
	return []string{ns}
}

// repository finds a repository by its name, or by its path at the upstream host ns.
func (n *names) repository(path, ns string) *repository {
	for _, host := range hosts(ns) {
		if r := n.repositories[registry.UpstreamPath(host)+"/"+path]; r != nil {
			return r
		}
	}
	return n.repositories[path]
}
