package registry

import (
	"context"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// look asks which manifests are there, before any blob is asked for. A registry takes a manifest only after its blobs, so a
// manifest that is there stands for them (the CNCF distribution and Harbor hold to that; Recheck is for those who doubt it). An
// index does not stand for its children: registries may take it without. What can't be found out here is found out later,
// with a better reason.
func (p *pusher) look(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(p.options.Jobs)
	for _, j := range p.jobs {
		if j.dest == nil || j.err != nil {
			continue
		}
		for _, n := range j.nodes {
			g.Go(func() error { p.lookAt(ctx, j, n); return nil })
		}
	}
	_ = g.Wait() // there are none
}

func (p *pusher) lookAt(ctx context.Context, j *job, n *node) {
	if ctx.Err() != nil {
		return
	}
	reference := n.desc.Digest.String()
	if n == j.root {
		reference = j.dest.Identifier()
	}
	have, err := j.repo.manifest(ctx, reference, n.desc.MediaType)
	if err != nil {
		if _, answered := asRegistryError(err); !answered && ctx.Err() == nil {
			if err = p.session.explain(j.repo.name, err); isFatal(err) {
				p.abort(err)
			}
		}
		return
	}
	n.looked, n.have = true, have
	if have == n.desc.Digest && !p.options.Recheck {
		j.repo.hold(n.blobs)
	}
}

// hold notes that blobs are in the repository.
func (r *repo) hold(blobs []digest.Digest) {
	r.holding.Lock()
	defer r.holding.Unlock()
	if r.held == nil {
		r.held = map[digest.Digest]bool{}
	}
	for _, d := range blobs {
		r.held[d] = true
	}
}

// holds says whether a blob is known to be in the repository.
func (r *repo) holds(d digest.Digest) bool {
	r.holding.Lock()
	defer r.holding.Unlock()
	return r.held[d]
}
