package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// GitParts are the blobs of a Git repository.
type GitParts struct{ Document, Pack, Index ocispec.Descriptor }

// GitName returns the name of a Git repository, if it can be a part of a path and of an address.
func GitName(it Item) (string, bool) {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._+~-", c)
	}
	bad := it.Kind != KindGit || it.Name == "" || len(it.Name) > 200 || strings.HasPrefix(it.Name, ".") ||
		strings.HasPrefix(it.Name, "-") || strings.ContainsFunc(it.Name, func(c rune) bool { return !plain(c) })
	return it.Name, !bad
}

// GitPartsOf returns the blobs that the manifest of a Git repository names.
func GitPartsOf(m ocispec.Manifest) (GitParts, error) {
	p := GitParts{Document: m.Config}
	for _, part := range []struct {
		mediaType string
		to        *ocispec.Descriptor
	}{{MediaTypeGitPack, &p.Pack}, {MediaTypeGitIndex, &p.Index}} {
		i := slices.IndexFunc(m.Layers, func(d ocispec.Descriptor) bool { return d.MediaType == part.mediaType })
		if i < 0 {
			return p, fmt.Errorf("the artifact has no layer of type %s", part.mediaType)
		}
		*part.to = m.Layers[i]
	}
	if p.Document.MediaType != MediaTypeGitDocument {
		return p, errors.New("the artifact has no document of a repository")
	}
	return p, nil
}

// Git returns the blobs of an item of KindGit, and its document, of at most that many bytes.
func (c *Catalog) Git(ctx context.Context, it Item, limit int64) (p GitParts, document []byte, err error) {
	fail := func(err error) (GitParts, []byte, error) { return p, nil, fmt.Errorf("content of %s: %w", it, err) }
	if it.Kind != KindGit || classOf(it.Descriptor.MediaType) != classManifest {
		return fail(errors.New("it is no Git repository"))
	}
	data, err := c.ReadBlob(ctx, it.Descriptor.Digest, MaxManifest)
	if err != nil {
		return fail(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fail(err)
	}
	if p, err = GitPartsOf(m); err != nil {
		return fail(err)
	}
	if document, err = c.ReadBlob(ctx, p.Document.Digest, limit); err != nil {
		return fail(err)
	}
	return p, document, nil
}
