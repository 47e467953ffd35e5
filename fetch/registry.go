package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/capped"
)

const (
	maxManifest = 4 << 20 // bytes; the limit of registries, too
	maxTagPages = 200
	maxTags     = 32 << 20 // bytes of all pages
)

const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	ociArtifact    = "application/vnd.oci.artifact.manifest.v1+json" // withdrawn, but published by some
)

func isIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == dockerIndex
}

func isManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == dockerManifest || mediaType == ociArtifact
}

func acceptedManifests() string {
	return strings.Join([]string{ocispec.MediaTypeImageIndex, dockerIndex, ocispec.MediaTypeImageManifest, dockerManifest, ociArtifact}, ", ")
}

// A repository is an upstream repository with its endpoints: on mirrors and on the registry itself.
type repository struct {
	s         *session
	upstream  name.Repository
	endpoints []*endpoint
	peers     []*peer // of the endpoints
}

// repository returns the repository with its endpoints.
func (s *session) repository(upstream name.Repository) (*repository, error) {
	host := canonicalHost(upstream.RegistryStr())
	peers, err := s.peers(host)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := host + " " + upstream.RepositoryStr()
	if s.repos[key] != nil {
		return s.repos[key], nil
	}
	r := &repository{s: s, upstream: upstream, peers: peers}
	for _, p := range peers {
		e, err := s.newEndpoint(p, upstream)
		if err != nil {
			return nil, err
		}
		r.endpoints = append(r.endpoints, e)
	}
	s.repos[key] = r
	return r, nil
}

// ask sends a HEAD request for a manifest, which does not count against pull limits.
func (r *repository) ask(ctx context.Context, u *url.URL) (header http.Header, err error) {
	err = r.s.inTurn(ctx, r.peers, func(i int) error {
		_, header, err = r.endpoints[i].ask(ctx, http.MethodHead, r.endpoints[i].at(u), acceptedManifests(), maxManifest)
		return err
	})
	return header, err
}

// url returns an address in the upstream repository; kind is manifests, blobs or tags.
func (r *repository) url(kind, id string) *url.URL {
	return &url.URL{Scheme: "https", Host: r.upstream.RegistryStr(), Path: path.Join("/v2", r.upstream.RepositoryStr(), kind, id)}
}

// String names the repository, and its endpoint if there is only one.
func (r *repository) String() string {
	if len(r.endpoints) == 1 {
		return r.endpoints[0].String()
	}
	return canonicalHost(r.upstream.RegistryStr()) + "/" + r.upstream.RepositoryStr()
}

// resolve returns a tag's present digest and manifest.
func (r *repository) resolve(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	u := r.url("manifests", tag)
	// A HEAD does not count against pull limits, and is often enough for a rebuild. If it fails, GET explains why.
	header, err := r.ask(ctx, u)
	if err == nil {
		d := digest.Digest(header.Get("Docker-Content-Digest"))
		if checkDigest(d) == nil {
			return r.manifest(ctx, ocispec.Descriptor{Digest: d, Size: -1, MediaType: mediaType(header)})
		}
	}
	var status *statusError
	if err != nil && !errors.As(err, &status) {
		return ocispec.Descriptor{}, nil, err
	}
	return r.get(ctx, u, ocispec.Descriptor{Size: -1})
}

// manifest returns a manifest by its digest, from the store or else from the registry. Size -1 and media type "" mean
// unknown; the returned descriptor is complete.
func (r *repository) manifest(ctx context.Context, want ocispec.Descriptor) (ocispec.Descriptor, []byte, error) {
	type result struct {
		desc ocispec.Descriptor
		data []byte
	}
	if err := checkDigest(want.Digest); err != nil {
		return want, nil, err
	}
	if want.Size > maxManifest {
		return want, nil, fmt.Errorf("manifest %s: %d bytes exceed the limit of %d", want.Digest, want.Size, maxManifest)
	}
	own := false
	got, err := once(r.s, "manifest "+want.Digest.String(), func() (result, error) {
		own = true
		data, ok, err := r.s.stored(ctx, want.Digest, maxManifest)
		if err != nil {
			return result{}, err
		}
		if ok {
			desc := want
			desc.Size = int64(len(data))
			return result{desc, data}, nil
		}
		if data, ok, err := r.s.blobFromDir(ctx, want.Digest, maxManifest); err != nil || ok {
			desc := want
			desc.Size = int64(len(data))
			return result{desc, data}, err
		}
		desc, data, err := r.get(ctx, r.url("manifests", want.Digest.String()), want)
		return result{desc, data}, err
	})
	if err != nil && !own && ctx.Err() == nil {
		return r.manifest(ctx, want) // another repository lacked it; this one may have it
	}
	if err != nil {
		return want, nil, err
	}
	if want.Size >= 0 && want.Size != got.desc.Size {
		return want, nil, fmt.Errorf("manifest %s: wrong size: expected %d bytes, got %d", want.Digest, want.Size, got.desc.Size)
	}
	if want.MediaType != "" {
		got.desc.MediaType = want.MediaType
	}
	return r.typed(got.desc, got.data)
}

// get stores a manifest from the first endpoint that has the right one.
func (r *repository) get(ctx context.Context, u *url.URL, want ocispec.Descriptor) (got ocispec.Descriptor, data []byte, err error) {
	if got, data, err = r.read(ctx, u, want); err != nil {
		return want, nil, err
	}
	if err := r.s.put(ctx, data, got.Digest); err != nil {
		return want, nil, err
	}
	return r.typed(got, data)
}

// read reads a manifest from the first endpoint that has the right one.
func (r *repository) read(ctx context.Context, u *url.URL, want ocispec.Descriptor) (got ocispec.Descriptor, data []byte, err error) {
	err = r.s.inTurn(ctx, r.peers, func(i int) error {
		got, data, err = r.endpoints[i].get(ctx, u, want)
		return err
	})
	return got, data, err
}

// get reads a manifest.
func (e *endpoint) get(ctx context.Context, u *url.URL, want ocispec.Descriptor) (ocispec.Descriptor, []byte, error) {
	data, header, err := e.ask(ctx, http.MethodGet, e.at(u), acceptedManifests(), maxManifest)
	if err != nil {
		return want, nil, err
	}
	got := sha256Of(data)
	promised := want.Digest
	if promised == "" {
		promised = digest.Digest(header.Get("Docker-Content-Digest"))
		if checkDigest(promised) != nil {
			promised = got // none, or of another algorithm: the bytes decide
		}
	}
	if got != promised {
		return want, nil, fmt.Errorf("%s sends a wrong manifest for %s: its digest is %s, not %s; do not use this source, or try another (%w)",
			e.peer, e.at(u).Path, got, promised, errMismatch)
	}
	want.Digest, want.Size = got, int64(len(data))
	if want.MediaType == "" {
		want.MediaType = mediaType(header)
	}
	return want, data, nil
}

// typed sets the descriptor's media type to the one in the manifest, if any.
func (r *repository) typed(desc ocispec.Descriptor, data []byte) (ocispec.Descriptor, []byte, error) {
	var doc struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
	}
	if err := capped.JSON(data, maxValues, &doc); err != nil {
		return desc, nil, fmt.Errorf("manifest %s is not JSON: %w", desc.Digest, err)
	}
	switch {
	case doc.SchemaVersion == 1:
		return desc, nil, fmt.Errorf("manifest %s has docker schema 1, which registries no longer accept: ask its publisher to push the image again", desc.Digest)
	case doc.MediaType != "":
		desc.MediaType = doc.MediaType
	case isIndex(desc.MediaType), isManifest(desc.MediaType):
	case len(doc.Manifests) > 0:
		desc.MediaType = ocispec.MediaTypeImageIndex
	default:
		desc.MediaType = ocispec.MediaTypeImageManifest
	}
	if !isIndex(desc.MediaType) && !isManifest(desc.MediaType) {
		return desc, nil, fmt.Errorf("manifest %s has the unknown media type %q", desc.Digest, printable(desc.MediaType))
	}
	return desc, data, nil
}

// blob returns the download of a blob of this repository.
func (r *repository) blob(d digest.Digest, size int64) *download {
	out := &download{s: r.s, name: fmt.Sprintf("blob %s of %s", d, r), want: d, size: size, names: layoutNames(d)}
	for _, e := range r.endpoints {
		out.places = append(out.places, origin{
			place:   place{e.peer, e.at(r.url("blobs", d.String()))},
			client:  e.login,
			explain: e.explain,
		})
	}
	return out
}

// tags lists the repository's tags.
func (r *repository) tags(ctx context.Context) (all []string, err error) {
	err = r.s.inTurn(ctx, r.peers, func(i int) error {
		all, err = r.endpoints[i].tags(ctx, r.url("tags", "list"))
		return err
	})
	return all, err
}

func parseTags(data []byte) ([]string, error) {
	var page struct {
		Tags []string `json:"tags"`
	}
	err := json.Unmarshal(data, &page)
	return page.Tags, err
}

// nextURL returns the address of the page after u; nil after the last.
func nextURL(u *url.URL, header http.Header) (*url.URL, error) {
	next, ok := nextPage(header.Get("Link"))
	if !ok {
		return nil, nil //nolint:nilnil // the last page is a normal state that callers branch on
	}
	to, err := u.Parse(next)
	if err != nil || to.Host != u.Host {
		return nil, fmt.Errorf("the next page is on another host: %s", printable(next))
	}
	to.Scheme = u.Scheme // behind a proxy, registries do not know their own scheme
	return to, nil
}

// nextPage reads the Link header: <address>; rel="next".
func nextPage(link string) (string, bool) {
	_, rest, ok := strings.Cut(link, "<")
	if !ok {
		return "", false
	}
	address, parameters, ok := strings.Cut(rest, ">")
	return address, ok && strings.Contains(parameters, "next")
}

func mediaType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

func sha256Of(data []byte) digest.Digest {
	sum := sha256.Sum256(data)
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(sum[:]))
}

// checkDigest accepts only sha256, which every registry and every runtime supports.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", printable(d.String()), err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %s: only sha256 is supported", d)
	}
	return nil
}

// stored reads a small blob from the store, if present, and checks it.
func (s *session) stored(ctx context.Context, d digest.Digest, limit int64) (data []byte, ok bool, err error) {
	size, ok, err := s.opts.Store.Stat(ctx, d)
	if err != nil {
		return nil, false, &storeError{err}
	}
	if !ok {
		return nil, false, nil
	}
	if size > limit {
		return nil, false, fmt.Errorf("blob %s: %d bytes exceed the limit of %d", d, size, limit)
	}
	rc, err := s.opts.Store.Open(ctx, d)
	if err != nil {
		return nil, false, &storeError{err}
	}
	data, err = io.ReadAll(io.LimitReader(rc, limit+1))
	if closeErr := rc.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, false, &storeError{err}
	}
	if sha256Of(data) != d {
		return nil, false, &storeError{fmt.Errorf("blob %s is damaged in the cache: remove it and run again", d)}
	}
	return data, true, nil
}

// put writes a small blob into the store.
func (s *session) put(ctx context.Context, data []byte, d digest.Digest) error {
	_, err := once(s, "put "+d.String(), func() (struct{}, error) { return struct{}{}, s.write(ctx, data, d) })
	return err
}

func (s *session) write(ctx context.Context, data []byte, d digest.Digest) (err error) {
	if _, ok, err := s.opts.Store.Stat(ctx, d); err != nil || ok {
		return err
	}
	w, offset, err := s.opts.Store.Begin(ctx, d.String())
	if err != nil {
		return &storeError{err}
	}
	defer func() {
		if closeErr := w.Close(); closeErr != nil && err == nil {
			err = &storeError{closeErr}
		}
	}()
	if offset > 0 {
		if err := w.Reset(); err != nil {
			return &storeError{err}
		}
	}
	if _, err := w.Write(data); err != nil {
		return &storeError{err}
	}
	if _, err := w.Commit(ctx, int64(len(data)), d); err != nil {
		return &storeError{err}
	}
	return nil
}
