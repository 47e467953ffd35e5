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
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxManifest = 4 << 20 // bytes; what registries accept too
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

// A repository is one repository of a registry, as it is asked. It logs in when it is asked for the first time: what the
// store has needs no registry.
type repository struct {
	s    *session
	peer *peer
	name name.Repository // on the registry that is asked

	mu     sync.Mutex
	known  bool // credentials were found
	client *http.Client
}

// repository returns where to ask for an upstream repository.
func (s *session) repository(upstream name.Repository) (*repository, error) {
	p, err := s.peer(upstream.RegistryStr())
	if err != nil {
		return nil, err
	}
	var options []name.Option
	if p.plain {
		options = append(options, name.Insecure)
	}
	host, err := name.NewRegistry(p.host, options...)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", p, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.door == nil {
		p.door = &door{next: p.trip, host: host.RegistryStr(), scheme: p.scheme()}
	}
	key := p.upstream + " " + upstream.RepositoryStr()
	if s.repos[key] == nil {
		s.repos[key] = &repository{s: s, peer: p, name: host.Repo(path.Join(p.prefix, upstream.RepositoryStr()))}
	}
	return s.repos[key], nil
}

// login returns the client that is logged in.
func (r *repository) login(ctx context.Context) (*http.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		return r.client, nil
	}
	auth, err := authn.Resolve(ctx, r.s.opts.Keychain, r.name)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", r.peer.host, err)
	}
	r.known = auth != authn.Anonymous
	var trip http.RoundTripper
	err = r.s.retry(ctx, r.peer, "log in to "+r.peer.host, func() error {
		trip, err = r.handshake(ctx, auth)
		return err
	})
	if err != nil {
		return nil, r.explain(err)
	}
	r.client = r.peer.client(trip)
	return r.client, nil
}

// handshake asks the registry how to log in, and does.
func (r *repository) handshake(ctx context.Context, auth authn.Authenticator) (http.RoundTripper, error) {
	idle := r.s.opts.Retry.Idle
	ctx, cancel := context.WithTimeoutCause(ctx, idle, stalled(idle)) // its answers are short
	defer cancel()
	leave, err := r.peer.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	trip, err := transport.NewWithContext(ctx, r.name.Registry, auth, r.peer.door, []string{r.name.Scope(transport.PullScope)})
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, requestError(err)
	}
	return trip, nil
}

// ask sends one small request.
func (r *repository) ask(ctx context.Context, method string, u *url.URL, accept string, limit int64) ([]byte, http.Header, error) {
	client, err := r.login(ctx)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", accept)
	data, header, err := r.s.small(ctx, r.peer, client, req, limit)
	if err != nil {
		return nil, nil, r.explain(err)
	}
	return data, header, nil
}

// url is the address of something in the repository, kind being manifests, blobs or tags.
func (r *repository) url(kind, id string) *url.URL {
	return &url.URL{Scheme: r.peer.scheme(), Host: r.name.RegistryStr(), Path: path.Join("/v2", r.name.RepositoryStr(), kind, id)}
}

// String names the repository that is asked.
func (r *repository) String() string { return r.peer.host + "/" + r.name.RepositoryStr() }

// explain turns an answer of the registry into what happened and what to do.
func (r *repository) explain(err error) error {
	var status *statusError
	if !errors.As(err, &status) {
		return fmt.Errorf("ask %s: %w", r.peer, err)
	}
	switch status.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return r.explainDenied(err)
	case http.StatusNotFound:
		what := "there is no such tag, digest or repository"
		switch {
		case strings.Contains(status.detail, string(transport.NameUnknownErrorCode)):
			what = "there is no such repository"
		case strings.Contains(status.detail, string(transport.ManifestUnknownErrorCode)):
			what = "there is no such tag or digest"
		case strings.Contains(status.detail, string(transport.BlobUnknownErrorCode)):
			what = "the registry has lost this blob"
		}
		return fmt.Errorf("%s: %s in %s: %w", r.peer, what, r, err)
	}
	return fmt.Errorf("ask %s: %w", r.peer, err)
}

func (r *repository) explainDenied(err error) error {
	login := fmt.Sprintf("docker login %s (or an entry for it in the config.json of $DOCKER_CONFIG, ~/.docker by default)", r.peer.host)
	if r.known {
		return fmt.Errorf("%s: registry %s refuses the configured credentials for %s: check them with %s: %w", r.peer, r.peer.host, r.name.RepositoryStr(), login, err)
	}
	return fmt.Errorf("%s: registry %s wants credentials for %s, or the repository does not exist: %s: %w", r.peer, r.peer.host, r.name.RepositoryStr(), login, err)
}

// resolve returns the digest that a tag has now and the manifest behind it.
func (r *repository) resolve(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	u := r.url("manifests", tag)
	// A HEAD is not counted as a pull where pulls are limited, and often all that is needed on a rebuild. Where it fails, GET
	// says why.
	_, header, err := r.ask(ctx, http.MethodHead, u, acceptedManifests(), maxManifest)
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

// manifest returns a manifest by its digest, from the store or else from the registry. Size -1 and media type "" are
// unknown; the returned descriptor has all.
func (r *repository) manifest(ctx context.Context, want ocispec.Descriptor) (ocispec.Descriptor, []byte, error) {
	type result struct {
		desc ocispec.Descriptor
		data []byte
	}
	if err := checkDigest(want.Digest); err != nil {
		return want, nil, err
	}
	if want.Size > maxManifest {
		return want, nil, fmt.Errorf("manifest %s: %d bytes are more than the %d allowed", want.Digest, want.Size, maxManifest)
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
		desc, data, err := r.get(ctx, r.url("manifests", want.Digest.String()), want)
		return result{desc, data}, err
	})
	if err != nil && !own && ctx.Err() == nil {
		return r.manifest(ctx, want) // another repository lacks it; this one may have it
	}
	if err != nil {
		return want, nil, err
	}
	if want.Size >= 0 && want.Size != got.desc.Size {
		return want, nil, fmt.Errorf("manifest %s: wrong size: expected %d bytes, it has %d", want.Digest, want.Size, got.desc.Size)
	}
	if want.MediaType != "" {
		got.desc.MediaType = want.MediaType
	}
	return r.typed(got.desc, got.data)
}

// get reads a manifest from the registry into the store.
func (r *repository) get(ctx context.Context, u *url.URL, want ocispec.Descriptor) (ocispec.Descriptor, []byte, error) {
	data, header, err := r.ask(ctx, http.MethodGet, u, acceptedManifests(), maxManifest)
	if err != nil {
		return want, nil, err
	}
	got := sha256Of(data)
	promised := want.Digest
	if promised == "" {
		promised = digest.Digest(header.Get("Docker-Content-Digest"))
		if checkDigest(promised) != nil {
			promised = got // none, or of another algorithm: the bytes say what they are
		}
	}
	if got != promised {
		return want, nil, fmt.Errorf("%s does not tell the truth about %s: the manifest that it sends has the digest %s, not %s; do not use it, or ask another source",
			r.peer, u.Path, got, promised)
	}
	if err := r.s.put(ctx, data, got); err != nil {
		return want, nil, err
	}
	want.Digest, want.Size = got, int64(len(data))
	if want.MediaType == "" {
		want.MediaType = mediaType(header)
	}
	return r.typed(want, data)
}

// typed gives the descriptor the media type that the manifest itself states, if it states one.
func (r *repository) typed(desc ocispec.Descriptor, data []byte) (ocispec.Descriptor, []byte, error) {
	var doc struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return desc, nil, fmt.Errorf("manifest %s is not JSON: %w", desc.Digest, err)
	}
	switch {
	case doc.SchemaVersion == 1:
		return desc, nil, fmt.Errorf("manifest %s has the docker schema 1, which registries no longer accept: ask its publisher to push it again", desc.Digest)
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
	return &download{
		s:       r.s,
		peer:    r.peer,
		client:  r.login,
		url:     r.url("blobs", d.String()),
		name:    fmt.Sprintf("blob %s of %s", d, r),
		want:    d,
		size:    size,
		explain: r.explain,
	}
}

// tags lists the repository's tags.
func (r *repository) tags(ctx context.Context) ([]string, error) {
	var all []string
	u := r.url("tags", "list")
	u.RawQuery = "n=1000"
	left := int64(maxTags)
	for range maxTagPages {
		data, header, err := r.ask(ctx, http.MethodGet, u, "application/json", left)
		if err != nil {
			return nil, err
		}
		left -= int64(len(data))
		var page struct {
			Tags []string `json:"tags"`
		}
		if err := json.Unmarshal(data, &page); err != nil {
			return nil, fmt.Errorf("tags of %s: %w", r, err)
		}
		all = append(all, page.Tags...)
		to, err := nextURL(u, header)
		if err != nil {
			return nil, fmt.Errorf("tags of %s: %w", r, err)
		}
		if to == nil {
			return all, nil
		}
		u = to
	}
	return nil, fmt.Errorf("tags of %s: more than %d pages", r, maxTagPages)
}

// nextURL is the address of the page that follows the one at u; nil if that was the last.
func nextURL(u *url.URL, header http.Header) (*url.URL, error) {
	next, ok := nextPage(header.Get("Link"))
	if !ok {
		return nil, nil //nolint:nilnil // the last page is a normal state that callers branch on
	}
	to, err := u.Parse(next)
	if err != nil || to.Host != u.Host {
		return nil, fmt.Errorf("the next page is elsewhere: %s", printable(next))
	}
	to.Scheme = u.Scheme // behind a proxy, registries do not know their own
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

// checkDigest accepts sha256 only: it is what every registry and every runtime has.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w", printable(d.String()), err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %s: only sha256 is supported", d)
	}
	return nil
}

// stored reads a small blob from the store, if it has it, and checks it.
func (s *session) stored(ctx context.Context, d digest.Digest, limit int64) (data []byte, ok bool, err error) {
	size, ok, err := s.opts.Store.Stat(ctx, d)
	if err != nil {
		return nil, false, &storeError{err}
	}
	if !ok {
		return nil, false, nil
	}
	if size > limit {
		return nil, false, fmt.Errorf("blob %s: %d bytes are more than the %d allowed", d, size, limit)
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
