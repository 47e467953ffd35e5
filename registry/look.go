package registry

import (
	"context"
	"errors"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// look finds existing manifests before any blob is requested. A registry accepts a manifest only after its blobs, so an
// existing manifest implies them (the CNCF distribution and Harbor guarantee that; Recheck checks anyway). An index
// does not imply its children, since registries may accept it without them. Errors here are ignored: later requests
// report them better.
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
		_, answered := asRegistryError(err)
		_, out := errors.AsType[*outageError](err)
		if (!answered || out) && ctx.Err() == nil {
			if err = p.session.explain(j.repo.name, err); isFatal(err) {
				p.tally.abort(err)
			}
		}
		return
	}
	n.looked, n.have = true, have
	if have == n.desc.Digest && !p.options.Recheck {
		j.repo.hold(n.blobs)
	}
}

// hold records that blobs are in the repository.
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

// holds reports whether a blob is known to be in the repository.
func (r *repo) holds(d digest.Digest) bool {
	r.holding.Lock()
	defer r.holding.Unlock()
	return r.held[d]
}
