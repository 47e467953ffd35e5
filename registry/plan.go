package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

// maxDepth bounds the nesting of indexes: published images have two levels at most.
const maxDepth = 8

// A job is one item of a push.
type job struct {
	item   bundle.Item
	dest   name.Reference // nil if the item is not pushed
	repo   *repo
	pinned bool // the item's reference contains the digest
	root   *node
	nodes  []*node              // root and all below it
	blobs  []ocispec.Descriptor // all blobs below root, each once
	wave   int                  // its manifests follow those of all lower waves
	twins  *twins               // jobs whose tags differ from this one's in case only; nil for none

	// The rest is guarded by tally.mu.
	pending int // blobs not yet at the destination
	sent    bool
	ended   bool
	err     error
	result  ItemResult
}

// A node is a manifest or index in the bundle.
type node struct {
	desc     ocispec.Descriptor
	children []*node
	absent   []ocispec.Descriptor // unselected children, which are not pushed
	blobs    []digest.Digest      // blobs of a manifest that the bundle has
	subject  digest.Digest        // the digest it is attached to, or ""
	listing  ocispec.Descriptor   // its entry in the list of its subject's referrers
	looked   bool                 // have is valid
	have     digest.Digest        // the digest at the registry, or ""
}

// A sharedBlob is a blob and all repositories that need it. The first one receives it from the bundle.
type sharedBlob struct {
	desc   ocispec.Descriptor
	places []*place
}

type place struct {
	repo *repo
	jobs []*job
	have bool  // present before the push
	err  error // the error of the query
}

// A planner turns the items of a bundle into jobs.
type planner struct {
	bundle    origin
	target    target
	choose    func(bundle.Item) bool
	platforms []string
	repo      func(name string) *repo

	jobs  []*job
	blobs []*sharedBlob
	items int   // jobs that are not skipped
	total int64 // bytes of all blobs
}

// plan reads the manifests of all items. Its error means that nothing can be sent; an item's own error is in its job.
func (p *planner) plan(ctx context.Context) error {
	for _, it := range p.bundle.Index().Items {
		j := p.newJob(it)
		p.jobs = append(p.jobs, j)
		if j.dest == nil || j.err != nil {
			continue
		}
		p.read(ctx, j)
		if ctx.Err() != nil {
			return fmt.Errorf("push to %s: %w", p.target, context.Cause(ctx))
		}
	}
	p.chooseReferrers()
	for _, j := range p.jobs {
		if j.result.State != StateSkipped {
			p.items++
		}
	}
	if err := collisions(p.jobs); err != nil {
		return err
	}
	findTwins(p.jobs)
	p.share()
	return nil
}

// read collects everything below an item. An image without a selected platform is not pushed.
func (p *planner) read(ctx context.Context, j *job) {
	w := walker{
		bundle: p.bundle, job: j, platforms: p.platforms, seen: map[digest.Digest]bool{},
		nodes: map[digest.Digest]*node{},
	}
	j.root, j.err = w.walk(ctx, j.item.Descriptor, 0)
	if j.err == nil && len(j.root.children) == 0 && len(j.root.absent) > 0 {
		j.skip()
	}
	j.pending = len(j.blobs)
}

func (j *job) skip() { j.dest, j.result.Destination, j.result.State = nil, "", StateSkipped }

func (p *planner) newJob(it bundle.Item) *job {
	j := &job{item: it, result: ItemResult{
		Kind: it.Kind, Ref: it.Ref,
		Platform: bundle.PlatformString(it.Descriptor.Platform),
	}}
	follows := it.Kind == bundle.KindReferrer // selected with its subject
	if !Pushable(it.Kind) || !follows && !p.choose(it) || !selected(p.platforms, it.Descriptor.Platform) {
		j.result.State = StateSkipped
		return j
	}
	if j.dest, j.err = p.target.destination(it); j.err != nil {
		return j
	}
	j.repo = p.repo(j.dest.Context().RepositoryStr())
	j.result.Destination = j.dest.Name()
	if it.Kind == bundle.KindImage {
		_, pin, pinned := strings.Cut(it.Ref, "@")
		if j.pinned = pinned; pinned && pin != it.Descriptor.Digest.String() {
			j.err = fmt.Errorf("the bundle holds %s under a reference that wants %s: build the bundle again",
				it.Descriptor.Digest, pin)
		}
	}
	return j
}

// selected reports whether p was requested. Items without a platform are always selected.
func selected(platforms []string, p *ocispec.Platform) bool {
	has := bundle.PlatformString(p)
	if len(platforms) == 0 || has == "" {
		return true
	}
	return slices.ContainsFunc(platforms, func(want string) bool {
		return has == want || strings.HasPrefix(has, want+"/") || strings.HasPrefix(want, has+"/")
	})
}

// Pushable reports whether items of a kind go to a registry.
func Pushable(kind string) bool {
	return kind == bundle.KindImage || kind == bundle.KindChart || kind == bundle.KindFile ||
		kind == bundle.KindReferrer
}

// collisions fails if two items with different content have the same destination. An image whose digest is pinned
// gives way: whoever uses it asks for its digest, so it is pushed by digest, and the other image keeps the tag.
func collisions(jobs []*job) error {
	var errs []error
	first := map[string]*job{}
	for _, j := range jobs {
		if j.dest == nil {
			continue
		}
		other := first[j.dest.Name()]
		switch {
		case other == nil:
			first[j.dest.Name()] = j
		case other.item.Descriptor.Digest == j.item.Descriptor.Digest:
		case j.pinned:
			j.byDigest()
		case other.pinned:
			first[j.dest.Name()] = j
			other.byDigest()
		default:
			errs = append(errs, fmt.Errorf(
				"%s and %s would both be %s: push them under different prefixes, or leave one out", other.item, j.item,
				j.dest.Name()))
		}
	}
	return nothingPushed(errs)
}

// Twins are items of one repository whose tags differ in case only. Some registries take these for one tag, as Gitea.
type twins struct {
	mu     sync.Mutex
	tagged []*job
}

// findTwins finds all twins.
func findTwins(jobs []*job) {
	first, twin := map[string]*job{}, map[string]*twins{}
	for _, j := range jobs {
		if j.dest == nil || j.err != nil {
			continue
		}
		key := strings.ToLower(j.dest.Name())
		switch other := first[key]; {
		case other == nil:
			first[key] = j
			continue
		case twin[key] == nil && other.dest.Name() != j.dest.Name():
			twin[key] = &twins{}
			other.twins = twin[key]
		}
		j.twins = twin[key]
	}
}

// byDigest makes an item's digest its destination, without a tag.
func (j *job) byDigest() {
	j.dest = j.dest.Context().Digest(j.item.Descriptor.Digest.String())
	j.result.Destination = j.dest.Name()
}

func nothingPushed(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was pushed: %w", errors.Join(errs...))
}

// share assigns blobs to repositories in the order of the items, so that items are completed one by one.
func (p *planner) share() {
	index, places := map[digest.Digest]*sharedBlob{}, map[spot]*place{}
	for _, j := range p.jobs {
		if j.dest == nil || j.err != nil {
			continue
		}
		for _, d := range j.blobs {
			b := index[d.Digest]
			if b == nil {
				b = &sharedBlob{desc: d}
				index[d.Digest] = b
				p.blobs = append(p.blobs, b)
			}
			at := spot{j.repo, d.Digest}
			pl := places[at]
			if pl == nil {
				pl = b.need(j.repo)
				places[at] = pl
				p.total += d.Size
			}
			pl.jobs = append(pl.jobs, j)
		}
	}
}

// need adds a repository, which may mount the blob from the first one.
func (b *sharedBlob) need(r *repo) *place {
	if len(b.places) > 0 && len(r.mountFrom) < maxScopes && !slices.Contains(r.mountFrom, b.places[0].repo.name) {
		r.mountFrom = append(r.mountFrom, b.places[0].repo.name)
	}
	pl := &place{repo: r}
	b.places = append(b.places, pl)
	return pl
}

// A walker collects everything below one item. Every manifest is visited once, however often indexes name it.
type walker struct {
	bundle    origin
	job       *job
	platforms []string               // selects an index's children; empty means all
	seen      map[digest.Digest]bool // blobs
	nodes     map[digest.Digest]*node
}

// A document holds the common fields of manifests and indexes of all kinds.
type document struct {
	ArtifactType string               `json:"artifactType"`
	Config       *ocispec.Descriptor  `json:"config"`
	Layers       []ocispec.Descriptor `json:"layers"`
	Manifests    []ocispec.Descriptor `json:"manifests"`
	Subject      *ocispec.Descriptor  `json:"subject"`
	Annotations  map[string]string    `json:"annotations"`
}

func (w *walker) walk(ctx context.Context, d ocispec.Descriptor, depth int) (*node, error) {
	if n := w.nodes[d.Digest]; n != nil {
		return n, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("index %s is nested more than %d levels deep", d.Digest, maxDepth)
	}
	content, err := w.bundle.ReadBlob(ctx, d.Digest, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	var doc document
	if err := bundle.DecodeManifest(content, &doc); err != nil {
		return nil, fmt.Errorf("manifest %s is not valid JSON: %w", d.Digest, err)
	}
	n := &node{desc: d}
	w.nodes[d.Digest] = n
	w.job.nodes = append(w.job.nodes, n)
	if doc.Subject != nil {
		n.subject, n.listing = doc.Subject.Digest, listing(d, doc)
	}
	if isIndex(d.MediaType) {
		return n, w.children(ctx, n, doc, depth)
	}
	if doc.Config != nil {
		doc.Layers = append(doc.Layers, *doc.Config)
	}
	return n, w.contents(n, doc.Layers)
}

func (w *walker) children(ctx context.Context, n *node, doc document, depth int) error {
	named := map[digest.Digest]bool{}
	wanted := w.wanted(doc.Manifests)
	for _, c := range doc.Manifests {
		if named[c.Digest] {
			continue
		}
		named[c.Digest] = true
		_, ok := w.bundle.Stat(c.Digest)
		switch {
		case !ok && !slices.Contains(w.job.item.Absent, c.Digest):
			return fmt.Errorf("the bundle lacks %s, which index %s names: run kkbundle verify on the bundle", c.Digest,
				n.desc.Digest)
		case !ok || !wanted[c.Digest]:
			n.absent = append(n.absent, c)
			continue
		}
		child, err := w.walk(ctx, c, depth+1)
		if err != nil {
			return err
		}
		n.children = append(n.children, child)
	}
	return nil
}

// BuildKit's attestations beside an image's platforms, and the annotation that assigns them to a platform.
const (
	attestationSubject  = "vnd.docker.reference.digest"
	attestationPlatform = "unknown/unknown"
)

// wanted returns the selected children of an index: those for the platforms, and their attestations.
func (w *walker) wanted(children []ocispec.Descriptor) map[digest.Digest]bool {
	wanted := map[digest.Digest]bool{}
	attestation := func(c ocispec.Descriptor) bool {
		return c.Annotations[attestationSubject] != "" && bundle.PlatformString(c.Platform) == attestationPlatform
	}
	for _, c := range children {
		if !attestation(c) && selected(w.platforms, c.Platform) {
			wanted[c.Digest] = true
		}
	}
	for _, c := range children {
		if attestation(c) && (len(w.platforms) == 0 || wanted[digest.Digest(c.Annotations[attestationSubject])]) {
			wanted[c.Digest] = true
		}
	}
	return wanted
}

func (w *walker) contents(n *node, blobs []ocispec.Descriptor) error {
	for _, d := range blobs {
		size, ok := w.bundle.Stat(d.Digest)
		switch {
		case !ok && len(d.URLs) > 0: // layers with a licence against redistribution come from elsewhere
			continue
		case !ok:
			return fmt.Errorf("the bundle lacks blob %s, which manifest %s names: run kkbundle verify on the bundle",
				d.Digest, n.desc.Digest)
		case size != d.Size:
			return fmt.Errorf("blob %s has %d bytes, and manifest %s says %d", d.Digest, size, n.desc.Digest, d.Size)
		}
		n.blobs = append(n.blobs, d.Digest)
		if !w.seen[d.Digest] {
			w.seen[d.Digest] = true
			w.job.blobs = append(w.job.blobs, ocispec.Descriptor{
				MediaType: d.MediaType, Digest: d.Digest,
				Size: d.Size,
			})
		}
	}
	return nil
}
