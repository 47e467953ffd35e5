package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/bundle"
)

// cosignTag is the tag of cosign's attachments to a digest: sha256-<hex>.sig, .att or .sbom.
var cosignTag = regexp.MustCompile(`^sha256-([0-9a-f]{64})\.[a-z]+$`)

// A spot is a manifest or blob in a repository.
type spot struct {
	repo   *repo
	digest digest.Digest
}

// chooseReferrers selects the referrers of each selected image, to be pushed after it. Select decides about referrers
// whose subject is not in the bundle.
func (p *planner) chooseReferrers() {
	waves := map[spot]int{}
	hold := func(j *job) {
		for _, n := range j.nodes {
			at := spot{j.repo, n.desc.Digest}
			waves[at] = max(waves[at], j.wave)
		}
	}
	var open []*job
	for _, j := range p.jobs {
		switch {
		case j.dest == nil || j.err != nil:
		case j.item.Kind == bundle.KindReferrer:
			open = append(open, j)
		default:
			hold(j)
		}
	}
	for range maxDepth { // an image's attestation may itself be signed
		var later []*job
		for _, j := range open {
			wave, ok := waves[spot{j.repo, subjectOf(j)}]
			if !ok {
				later = append(later, j)
				continue
			}
			j.wave = wave + 1
			hold(j)
		}
		if len(later) == len(open) {
			break
		}
		open = later
	}
	for _, j := range open {
		if _, held := p.bundle.Stat(subjectOf(j)); held || !p.choose(j.item) {
			j.skip()
		}
	}
}

// subjectOf returns the digest that a referrer is attached to.
func subjectOf(j *job) digest.Digest {
	if m := cosignTag.FindStringSubmatch(j.dest.Identifier()); m != nil {
		return digest.NewDigestFromEncoded(digest.SHA256, m[1])
	}
	return j.root.subject
}

// subjectLost returns an error if an item's subject should have been pushed to the same repository and failed.
func (p *pusher) subjectLost(j *job) error {
	subject := subjectOf(j)
	p.tally.mu.Lock()
	defer p.tally.mu.Unlock()
	var lost error
	for _, other := range p.holders(spot{j.repo, subject}) {
		switch {
		case other == j:
		case other.ended && other.err == nil:
			return nil
		default:
			lost = fmt.Errorf("its subject %s is missing", other.item)
		}
	}
	return lost
}

// holders returns the jobs that push a manifest to a repository. tally.mu is held.
func (p *pusher) holders(at spot) []*job {
	if p.jobsAt == nil {
		p.jobsAt = map[spot][]*job{}
		for _, j := range p.jobs {
			if j.dest == nil {
				continue
			}
			for _, n := range j.nodes {
				at := spot{j.repo, n.desc.Digest}
				p.jobsAt[at] = append(p.jobsAt[at], j)
			}
		}
	}
	return p.jobsAt[at]
}

// listing returns a manifest's entry in the list of its subject's referrers, by the distribution specification.
func listing(d ocispec.Descriptor, doc document) ocispec.Descriptor {
	l := ocispec.Descriptor{
		MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, ArtifactType: doc.ArtifactType,
		Annotations: doc.Annotations,
	}
	if l.ArtifactType == "" && doc.Config != nil {
		l.ArtifactType = doc.Config.MediaType
	}
	return l
}

// A referrersAPI is the known state of a registry's referrers API.
type referrersAPI struct {
	mu    sync.Mutex
	has   bool
	asks  bool                   // the registry was queried
	lists map[string]*sync.Mutex // serializes changes of a list, by its address
}

// list returns the lock of a list.
func (api *referrersAPI) list(address string) *sync.Mutex {
	api.mu.Lock()
	defer api.mu.Unlock()
	if api.lists == nil {
		api.lists = map[string]*sync.Mutex{}
	}
	if api.lists[address] == nil {
		api.lists[address] = &sync.Mutex{}
	}
	return api.lists[address]
}

// list makes sure that clients find n by its subject.
func (m manifestPusher) list(ctx context.Context, n *node, kept bool) error {
	if n.subject == "" || kept {
		return nil
	}
	if n.subject.Validate() != nil {
		return fmt.Errorf("manifest %s is attached to %q, which is not a digest", n.desc.Digest,
			clean(n.subject.String()))
	}
	return m.job.repo.listReferrer(ctx, n.subject, n.listing,
		func(tag string, before digest.Digest, index []byte) error {
			d := ocispec.Descriptor{
				MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(index),
				Size: int64(len(index)),
			}
			_, err := m.send(ctx, tag, before, d, index)
			return err
		})
}

// putList puts a list of referrers under a tag, in place of the list with the digest before.
type putList func(tag string, before digest.Digest, index []byte) error

// listReferrer makes sure that clients find a manifest by its subject. A registry with the referrers API reports so
// when it accepts the manifest. For others the list is an index under a tag derived from the subject's digest, to
// which an entry for the manifest is added; put stores it.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#unavailable-referrers-api
func (r *repo) listReferrer(ctx context.Context, subject digest.Digest, entry ocispec.Descriptor, put putList) error {
	has, err := r.hasReferrers(ctx, subject)
	if err != nil || has {
		return err
	}
	list := r.referrers.list(r.name + "@" + subject.String())
	list.Lock()
	defer list.Unlock()
	tag := strings.ReplaceAll(subject.String(), ":", "-")
	index, before, err := r.withReferrer(ctx, tag, entry)
	if err == nil && index != nil {
		err = put(tag, before, index)
	}
	if err != nil {
		return fmt.Errorf("list of referrers of %s: %w", subject, r.explain(r.name, err))
	}
	return nil
}

// hasReferrers reports whether the registry has the referrers API. It is asked once.
func (r *repo) hasReferrers(ctx context.Context, subject digest.Digest) (bool, error) {
	api := &r.referrers
	api.mu.Lock()
	defer api.mu.Unlock()
	if !api.asks {
		a, err := r.ask(ctx, request{
			method: http.MethodGet, url: r.path("/referrers/%s", subject),
			want: []int{http.StatusOK}, stay: true,
		})
		if _, answered := asRegistryError(err); err != nil && !answered {
			return false, err
		}
		api.asks, api.has = true, err == nil && strings.HasPrefix(a.header.Get("Content-Type"),
			ocispec.MediaTypeImageIndex)
	}
	return api.has, nil
}

// withReferrer returns the index under a tag with one more entry, nil if it has the entry, and the digest of the
// index without it, "" for none.
func (r *repo) withReferrer(ctx context.Context, tag string,
	entry ocispec.Descriptor,
) (index []byte, before digest.Digest, err error) {
	q := request{
		method: http.MethodGet, url: r.path("/manifests/%s", tag), want: []int{http.StatusOK},
		header: http.Header{"Accept": {ocispec.MediaTypeImageIndex}},
	}
	a, err := r.ask(ctx, q)
	if te, ok := asRegistryError(err); ok && te.StatusCode == http.StatusNotFound {
		a, err = answer{}, nil
	}
	if err != nil {
		return nil, "", err
	}
	if len(a.body) > 0 {
		before = digest.FromBytes(a.body)
	}
	index, err = merged(a.body, entry)
	return index, before, err
}

// merged returns an index with one more manifest, nil if it already has it. The rest of the index is unchanged.
func merged(index []byte, d ocispec.Descriptor) ([]byte, error) {
	if len(index) == 0 {
		return json.Marshal(ocispec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{d},
		})
	}
	var fields map[string]json.RawMessage
	var manifests []json.RawMessage
	if err := json.Unmarshal(index, &fields); err != nil {
		return nil, fmt.Errorf("the tag of the referrers list holds something other than an index: %w", err)
	}
	if raw, ok := fields["manifests"]; !ok || json.Unmarshal(raw, &manifests) != nil {
		return nil, errors.New("the tag of the referrers list holds something other than an index")
	}
	for _, raw := range manifests {
		var there ocispec.Descriptor
		if err := json.Unmarshal(raw, &there); err != nil {
			return nil, fmt.Errorf("the tag of the referrers list holds a broken index: %w", err)
		}
		if there.Digest == d.Digest {
			return nil, nil
		}
	}
	entry, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("entry of %s: %w", d.Digest, err)
	}
	if fields["manifests"], err = json.Marshal(append(manifests, entry)); err != nil {
		return nil, fmt.Errorf("list of referrers: %w", err)
	}
	return json.Marshal(fields)
}
