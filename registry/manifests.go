package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A manifestPusher pushes an item's manifests, children first, and the root under its tag (or its digest if it has
// none).
type manifestPusher struct {
	bundle  origin
	session *session
	logger  *slog.Logger
	tally   *tally
	job     *job
	there   map[*node]ocispec.Descriptor // results of put
}

func (p *pusher) manifestsOf(j *job) manifestPusher {
	return manifestPusher{p.bundle, p.session, p.options.Logger, p.tally, j, map[*node]ocispec.Descriptor{}}
}

// put makes sure, once, that the registry has n under reference, and returns its descriptor, as queried. The result
// differs from n.desc only for an index that the registry refused because of missing children.
func (m manifestPusher) put(ctx context.Context, n *node, reference string) (ocispec.Descriptor, error) {
	d, ok := m.there[n]
	if ok {
		return d, nil
	}
	d, err := m.putNew(ctx, n, reference)
	if err == nil {
		m.there[n] = d
	}
	return d, err
}

func (m manifestPusher) putNew(ctx context.Context, n *node, reference string) (ocispec.Descriptor, error) {
	replaced := map[digest.Digest]ocispec.Descriptor{}
	for _, c := range n.children {
		d, err := m.put(ctx, c, c.desc.Digest.String())
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		if d.Digest != c.desc.Digest {
			replaced[c.desc.Digest] = d
		}
	}
	if len(replaced) > 0 { // the index names a child with a replaced digest
		return m.putReduced(ctx, n, reference, replaced)
	}
	if !n.looked {
		have, err := m.job.repo.manifest(ctx, reference, n.desc.MediaType)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		n.looked, n.have = true, have
	}
	if n.have == n.desc.Digest {
		return n.desc, m.list(ctx, n, false)
	}
	if len(n.absent) > 0 {
		if d, ok, err := m.alreadyReduced(ctx, n, n.have); err != nil || ok {
			return d, err
		}
	}
	content, err := m.bundle.ReadBlob(ctx, n.desc.Digest, maxManifest)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	listed, err := m.send(ctx, reference, n.have, n.desc, content)
	if blobsLost(err) && !isIndex(n.desc.MediaType) {
		if err = m.sendAgain(ctx, n, err); err == nil {
			listed, err = m.send(ctx, reference, n.have, n.desc, content)
		}
	}
	if err == nil {
		return n.desc, m.list(ctx, n, listed)
	}
	if len(n.absent) == 0 || !refused(err) {
		return ocispec.Descriptor{}, fmt.Errorf("manifest %s: %w", n.desc.Digest,
			m.session.explain(m.job.repo.name, err))
	}
	m.logger.InfoContext(ctx, "registry refuses an index without all children", "item", m.job.item.String(), "error",
		m.session.explain(m.job.repo.name, err))
	return m.putReduced(ctx, n, reference, nil)
}

// send puts a manifest in place of before, "" for nothing. A tag is queried afterwards: another client may write to
// it, or the registry may change content.
func (m manifestPusher) send(ctx context.Context, reference string, before digest.Digest, d ocispec.Descriptor,
	content []byte,
) (listed bool, err error) {
	repo := m.job.repo
	if listed, err = repo.putManifest(ctx, reference, d.MediaType, content); err != nil {
		return false, err
	}
	m.tally.count(func(c *PushSummary) { c.ManifestsSent++; c.BytesSent += int64(len(content)); m.job.sent = true })
	if reference == d.Digest.String() && reference != m.job.dest.Identifier() {
		return listed, nil // the answer had its digest, and its index or its tag follows
	}
	return listed, repo.seen(ctx, reference, d.Digest, before, d.MediaType)
}

// blobsLost reports whether a registry misses blobs of a manifest, which were sent or reported present.
func blobsLost(err error) bool {
	te, ok := asRegistryError(err)
	return ok && te.StatusCode < http.StatusInternalServerError && hasCode(te, transport.ManifestBlobUnknownErrorCode,
		transport.BlobUnknownErrorCode)
}

// sendAgain sends the blobs named by the registry, or all of the manifest, once, without querying them.
func (m manifestPusher) sendAgain(ctx context.Context, n *node, cause error) error {
	named := lostOf(n.blobs, cause, func(d digest.Digest) digest.Digest { return d })
	m.logger.WarnContext(ctx, "registry lost blobs; sending them again", "item", m.job.item.String(), "blobs",
		len(named))
	for _, d := range named {
		size, _ := m.bundle.Stat(d)
		_, err := m.job.repo.sendBlob(ctx, ocispec.Descriptor{Digest: d, Size: size}, "",
			func(offset int64) (io.ReadCloser, error) {
				return m.bundle.Blob(ctx, d, offset)
			})
		if err != nil {
			return fmt.Errorf("blob %s: %w", d, err)
		}
		m.tally.count(func(c *PushSummary) { c.BlobsSent++; c.BytesSent += size })
	}
	return nil
}

// refused recognises the answers of registries that require all children of an index. These answers differ.
func refused(err error) bool {
	te, ok := asRegistryError(err)
	if !ok {
		return false
	}
	switch te.StatusCode {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// alreadyReduced recognises the result of an earlier push under the reference.
func (m manifestPusher) alreadyReduced(ctx context.Context, n *node,
	have digest.Digest,
) (ocispec.Descriptor, bool, error) {
	nested := n != m.job.root
	if have == "" && !nested || m.job.pinned {
		return ocispec.Descriptor{}, false, nil
	}
	content, err := m.reduce(ctx, n, nil)
	if err != nil || content == nil {
		return ocispec.Descriptor{}, false, err
	}
	d := n.desc
	d.Digest, d.Size = digest.FromBytes(content), int64(len(content))
	if nested {
		if have, err = m.job.repo.manifest(ctx, d.Digest.String(), d.MediaType); err != nil {
			return ocispec.Descriptor{}, false, err
		}
	}
	if have != d.Digest {
		return ocispec.Descriptor{}, false, nil
	}
	m.warnReduced(n, d)
	return d, true, nil
}

// An indexError means that the registry refuses an index. Its text has the remedy.
type indexError struct{ error }

// putReduced puts an index of the existing children.
func (m manifestPusher) putReduced(ctx context.Context, n *node, reference string,
	replaced map[digest.Digest]ocispec.Descriptor,
) (ocispec.Descriptor, error) {
	if m.job.pinned {
		return ocispec.Descriptor{},
			indexError{fmt.Errorf("registry %s requires all platforms of an index, the bundle lacks some of %s, and its digest is pinned, so no smaller index can replace it: "+
				"build the bundle with every platform of this image (indexes: pinned in the manifest), or pin the digest of one platform, or configure the registry to accept it (distribution: validation.manifests.indexes.platforms: none)",
				m.session.host, n.desc.Digest)}
	}
	content, err := m.reduce(ctx, n, replaced)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if content == nil {
		return ocispec.Descriptor{},
			indexError{fmt.Errorf("registry %s refuses index %s although all its children exist", m.session.host,
				n.desc.Digest)}
	}
	d := n.desc
	d.Digest, d.Size = digest.FromBytes(content), int64(len(content))
	if n != m.job.root {
		reference = d.Digest.String()
	}
	have, err := m.job.repo.manifest(ctx, reference, d.MediaType)
	if err == nil && have != d.Digest {
		_, err = m.send(ctx, reference, have, d, content)
	}
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("index %s in place of %s: %w", d.Digest, n.desc.Digest,
			m.session.explain(m.job.repo.name, err))
	}
	m.warnReduced(n, d)
	return d, nil
}

func (m manifestPusher) warnReduced(n *node, d ocispec.Descriptor) {
	m.tally.warn(m.job.item.String() + ": " +
		fmt.Sprintf("the registry requires all platforms of an index and the bundle lacks some, so %s has index %s of the existing platforms, instead of %s: pulls by tag work, pulls and signatures by the upstream index's digest do not",
			m.job.dest.Name(), d.Digest, n.desc.Digest))
}

// reduce returns n's index without the children that the registry lacks; nil if it lacks none. Children only at the
// registry stay: they came with a bundle of other platforms. The result depends on nothing else.
func (m manifestPusher) reduce(ctx context.Context, n *node,
	replaced map[digest.Digest]ocispec.Descriptor,
) ([]byte, error) {
	content, err := m.bundle.ReadBlob(ctx, n.desc.Digest, maxManifest)
	if err != nil {
		return nil, err
	}
	missing := map[digest.Digest]bool{}
	for _, c := range n.absent {
		have, err := m.job.repo.manifest(ctx, c.Digest.String(), c.MediaType)
		if err != nil {
			return nil, err
		}
		missing[c.Digest] = have == ""
	}
	var index map[string]json.RawMessage
	var children []map[string]json.RawMessage
	if err := json.Unmarshal(content, &index); err != nil {
		return nil, fmt.Errorf("index %s: %w", n.desc.Digest, err)
	}
	if err := json.Unmarshal(index["manifests"], &children); err != nil {
		return nil, fmt.Errorf("index %s: %w", n.desc.Digest, err)
	}
	kept, err := keep(children, missing, replaced)
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", n.desc.Digest, err)
	}
	if len(kept) == len(children) && len(replaced) == 0 {
		return nil, nil
	}
	if len(kept) == 0 {
		return nil, errors.New("neither the bundle nor the registry has a platform of the image")
	}
	if index["manifests"], err = json.Marshal(kept); err != nil {
		return nil, fmt.Errorf("reduce index %s: %w", n.desc.Digest, err)
	}
	return json.Marshal(index)
}

// keep returns the children that are not missing, with the digests of replaced ones.
func keep(children []map[string]json.RawMessage, missing map[digest.Digest]bool,
	replaced map[digest.Digest]ocispec.Descriptor,
) ([]map[string]json.RawMessage, error) {
	var kept []map[string]json.RawMessage
	for _, c := range children {
		var d digest.Digest
		if err := json.Unmarshal(c["digest"], &d); err != nil {
			return nil, err
		}
		if missing[d] {
			continue
		}
		if r, ok := replaced[d]; ok {
			c["digest"], c["size"] = fmt.Appendf(nil, "%q", r.Digest), fmt.Appendf(nil, "%d", r.Size)
		}
		kept = append(kept, c)
	}
	return kept, nil
}
