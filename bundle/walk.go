package bundle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle/format"
)

// MaxManifest is the most bytes of an index or manifest: the limit of registries.
const MaxManifest = 4 << 20

// Bounds on the graph below the items. They are far above any real bundle, and keep a hostile one from exhausting
// memory or time.
const (
	maxDepth = 8 // indexes in indexes
	// values in one manifest, some 100 bytes of memory each; 4 MiB of descriptors have half as many
	maxValues    = 1 << 18
	maxChildren  = 1 << 20 // references in all manifests together
	maxVisits    = 1 << 24 // references followed, counted once per item
	dockerList   = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerSchema = "application/vnd.docker.distribution.manifest.v2+json"
)

// A class is the role of a blob for its referrers; it decides the order in a bundle.
type class uint8

const (
	classIndex class = iota
	classManifest
	classConfig
	classContent
)

// classOf is the class of an item's root and of a child of an index.
func classOf(mediaType string) class {
	switch mediaType {
	case ocispec.MediaTypeImageIndex, dockerList:
		return classIndex
	case ocispec.MediaTypeImageManifest, dockerSchema:
		return classManifest
	default:
		return classContent
	}
}

// IsManifest reports whether a media type is that of the manifest of an image or artifact.
func IsManifest(mediaType string) bool { return classOf(mediaType) == classManifest }

// withdrawn reports whether a media type is that of a manifest whose references are not followed: no runtime and hardly
// a registry accepts these kinds.
func withdrawn(mediaType string) bool {
	switch mediaType {
	case "application/vnd.oci.artifact.manifest.v1+json",
		"application/vnd.docker.distribution.manifest.v1+json",
		"application/vnd.docker.distribution.manifest.v1+prettyjws":
		return true
	}
	return false
}

// A blobSource provides manifests to a walk; read checks the digest.
type blobSource interface {
	lookup(ctx context.Context, s format.Sum) (size int64, ok bool, err error)
	read(ctx context.Context, s format.Sum, max int64) ([]byte, error)
}

// A child is a reference inside an index or manifest.
type child struct {
	sum       format.Sum
	size      int64
	class     class
	platform  string // according to the index that refers to it, or ""
	withdrawn bool   // see withdrawn
}

// A document is an index or manifest, together with its class in the reference: it is read as that class only.
type document struct {
	sum   format.Sum
	class class
}

// A node is a blob reached by the walk.
type node struct {
	size     int64
	class    class
	missing  bool
	parsed   bool
	children []child
	seen     int   // the last item that reached it, counted from 1: an item visits a blob once
	seenAs   class // the class in that visit
}

// A walk finds every blob that items need. It passes problems to report, which ends the walk by returning an error.
type walk struct {
	src      blobSource
	report   func(blob format.Sum, item Item, err error) error
	visit    func(blob format.Sum, item Item) // may be nil; called once per item and blob
	known    map[document][]child             // may be nil; documents already read
	nodes    map[format.Sum]*node
	children int
	visits   int
}

// problems collect the first problem of each blob.
type problems struct {
	known map[format.Sum]bool
	all   []error
}

func (p *problems) report(s format.Sum, _ Item, err error) error {
	if !p.known[s] {
		p.all = append(p.all, err)
	}
	p.known[s] = true
	return nil
}

func (p *problems) err() error { return errors.Join(p.all...) }

// run walks all items.
func (w *walk) run(ctx context.Context, items []Item) error {
	w.nodes = make(map[format.Sum]*node)
	for i, it := range items {
		if err := w.item(ctx, it, i+1); err != nil {
			return err
		}
	}
	return nil
}

type step struct {
	child
	depth int
}

func (w *walk) item(ctx context.Context, it Item, number int) error {
	root, err := format.ParseDigest(it.Descriptor.Digest)
	if err != nil {
		return fmt.Errorf("%s: %w", it, err)
	}
	absent, err := absentSet(it)
	if err != nil {
		return err
	}
	of := it.Descriptor.MediaType
	stack := []step{{child: child{sum: root, size: it.Descriptor.Size, class: classOf(of), withdrawn: withdrawn(of)}}}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if w.visits++; w.visits > maxVisits {
			return errors.New("the items refer to more blobs than a bundle can hold")
		}
		n, err := w.reach(ctx, it, s, number)
		if err != nil {
			return err
		}
		if n == nil {
			continue
		}
		for _, c := range n.children {
			if _, ok := absent[c.sum]; ok && n.class == classIndex {
				absent[c.sum] = true
				continue
			}
			stack = append(stack, step{child: c, depth: s.depth + 1})
		}
	}
	for s, found := range absent {
		if !found {
			if err := w.report(s, it, fmt.Errorf("%s says that %s is absent, but none of its indexes refers to that",
				it, s.Digest())); err != nil {
				return err
			}
		}
	}
	return nil
}

func absentSet(it Item) (map[format.Sum]bool, error) {
	absent := make(map[format.Sum]bool, len(it.Absent))
	for _, d := range it.Absent {
		s, err := format.ParseDigest(d)
		if err != nil {
			return nil, fmt.Errorf("%s: absent: %w", it, err)
		}
		absent[s] = false
	}
	return absent, nil
}

// reach looks at one reference. It returns the node if the item meets it for the first time and it has children.
func (w *walk) reach(ctx context.Context, it Item, s step, number int) (*node, error) {
	n := w.nodes[s.sum]
	if n == nil {
		size, ok, err := w.src.lookup(ctx, s.sum)
		if err != nil {
			return nil, err
		}
		n = &node{size: size, class: s.class, missing: !ok}
		w.nodes[s.sum] = n
	}
	n.class = min(n.class, s.class)
	again := n.seen == number
	if again && n.seenAs <= s.class {
		return nil, nil
	}
	if !again && w.visit != nil {
		w.visit(s.sum, it)
	}
	n.seen, n.seenAs = number, s.class
	if n.missing {
		return nil, w.report(s.sum, it, &MissingError{Digest: s.sum.Digest(), Item: it.String()})
	}
	if n.size != s.size {
		return nil, w.report(s.sum, it, fmt.Errorf("blob %s has %d bytes; %s refers to it with %d", s.sum.Digest(),
			n.size, it, s.size))
	}
	if s.withdrawn {
		return nil, w.report(s.sum, it,
			fmt.Errorf("manifest %s of %s has a withdrawn media type, so that its blobs are not in the bundle",
				s.sum.Digest(), it))
	}
	if s.class > classManifest {
		return nil, nil
	}
	if n.parsed {
		return n, nil
	}
	n.parsed = true
	if s.depth > maxDepth {
		return nil, w.report(s.sum, it, fmt.Errorf("%s nests indexes more than %d deep", it, maxDepth))
	}
	children, err := w.refers(ctx, document{s.sum, s.class})
	if err != nil {
		return nil, w.report(s.sum, it, fmt.Errorf("manifest %s of %s: %w", s.sum.Digest(), it, err))
	}
	n.children = children
	return n, nil
}

// refers returns the references of a document.
func (w *walk) refers(ctx context.Context, d document) ([]child, error) {
	children, ok := w.known[d]
	if !ok {
		data, err := w.src.read(ctx, d.sum, MaxManifest)
		if err != nil {
			return nil, err
		}
		if children, err = parseChildren(data, d.class); err != nil {
			return nil, err
		}
	}
	if w.children += len(children); w.children > maxChildren {
		return nil, fmt.Errorf("the bundle's manifests have more than %d references", maxChildren)
	}
	return children, nil
}

// A reference holds the fields of a descriptor that a walk needs.
type reference struct {
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"`
	Platform  *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant"`
	} `json:"platform"`
}

// parseChildren returns the references of an index or a manifest. Documents that could be read as both are refused,
// since readers would disagree about their needs.
func parseChildren(data []byte, c class) ([]child, error) {
	var doc struct {
		Manifests []reference `json:"manifests"`
		Config    *reference  `json:"config"`
		Layers    []reference `json:"layers"`
	}
	if err := DecodeManifest(data, &doc); err != nil {
		return nil, err
	}
	if c == classIndex && (doc.Config != nil || doc.Layers != nil) {
		return nil, errors.New("an index with config or layers")
	}
	if c == classManifest && (doc.Manifests != nil || doc.Config == nil) {
		return nil, errors.New("a manifest with manifests, or without config")
	}
	children := make([]child, 0, len(doc.Manifests)+len(doc.Layers)+1)
	add := func(r reference, c class, follow bool) error {
		s, err := format.ParseDigest(r.Digest)
		if err != nil {
			return err
		}
		if r.Size < 0 || r.Size > format.MaxSize {
			return fmt.Errorf("size %d of %s is out of range", r.Size, r.Digest)
		}
		one := child{sum: s, size: r.Size, class: c, withdrawn: follow && withdrawn(r.MediaType)}
		if p := r.Platform; p != nil {
			one.platform = PlatformString(&ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant})
		}
		children = append(children, one)
		return nil
	}
	for _, r := range doc.Manifests {
		if err := add(r, classOf(r.MediaType), true); err != nil {
			return nil, err
		}
	}
	if doc.Config != nil {
		if err := add(*doc.Config, classConfig, false); err != nil {
			return nil, err
		}
	}
	for _, r := range doc.Layers {
		if err := add(r, classContent, false); err != nil {
			return nil, err
		}
	}
	return children, nil
}

// order returns the blobs reached, in bundle order: by class, then by digest.
func (w *walk) order() []format.Blob {
	blobs := make([]format.Blob, 0, len(w.nodes))
	for s, n := range w.nodes {
		blobs = append(blobs, format.Blob{Sum: s, Size: n.size})
	}
	slices.SortFunc(blobs, func(a, b format.Blob) int {
		if ca, cb := w.nodes[a.Sum].class, w.nodes[b.Sum].class; ca != cb {
			return int(ca) - int(cb)
		}
		return format.CompareSums(a.Sum, b.Sum)
	})
	return blobs
}
