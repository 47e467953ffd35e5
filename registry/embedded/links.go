package embedded

import (
	"context"
	"errors"
	"path"

	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// A linkDir is a directory of a repository whose entries are links: files with a digest.
type linkDir string

const (
	layers    linkDir = "_layers"
	revisions linkDir = "_manifests/revisions"
)

// links are distribution's links of digests to content. All content lies under its SHA-256 digest; a link of another
// digest leads to that, and distribution follows it (linkedBlobStatter.Stat).
type links struct{ content *filesystem.Driver }

// isAlias reports whether a digest is one that content does not lie under.
func isAlias(d digest.Digest) bool { return d.Validate() == nil && d.Algorithm() != digest.Canonical }

// errName means that a repository's name is not valid, and so no path.
var errName = errors.New("not a repository's name")

// file returns a link's path in the storage.
func (l links) file(repo string, dir linkDir, d digest.Digest) (string, error) {
	if _, err := reference.WithName(repo); err != nil {
		return "", errName
	}
	if err := d.Validate(); err != nil {
		return "", err
	}
	return path.Join("/", contentRoot, "repositories", repo, string(dir), d.Algorithm().String(), d.Encoded(), "link"),
		nil
}

func (l links) put(ctx context.Context, repo string, dir linkDir, alias, canonical digest.Digest) error {
	p, err := l.file(repo, dir, alias)
	if err != nil {
		return err
	}
	// a client that leaves now may still count on it
	return l.content.PutContent(context.WithoutCancel(ctx), p, []byte(canonical))
}

// canonical returns the digest that a digest's content lies under.
func (l links) canonical(ctx context.Context, repo string, dir linkDir, d digest.Digest) (digest.Digest, error) {
	p, err := l.file(repo, dir, d)
	if err != nil {
		return "", err
	}
	data, err := l.content.GetContent(ctx, p)
	if err != nil {
		return "", err
	}
	return digest.Parse(string(data))
}

// aliasOf returns a manifest's SHA-512 digest, if the repository knows it by that, else "".
func (l links) aliasOf(ctx context.Context, repo string, canonical digest.Digest) digest.Digest {
	data, err := l.content.GetContent(ctx, blobPath(canonical))
	if err != nil {
		return ""
	}
	alias := digest.SHA512.FromBytes(data)
	if _, err := l.canonical(ctx, repo, revisions, alias); err != nil {
		return ""
	}
	return alias
}

func blobPath(d digest.Digest) string {
	return path.Join("/", contentRoot, "blobs", d.Algorithm().String(), d.Encoded()[:2], d.Encoded(), "data")
}
