// Package registries reads images, artifacts and their referrers in the registries of upstream, on whichever server has
// them: manifests and tags, what an image consists of, what is attached to it.
package registries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/fetch/content"
	"github.com/kkbundle/kkbundle/fetch/upstream"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/web"
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

// errPage is the likely reason for a page in place of what a registry has.
var errPage = errors.New(
	"it is no registry, or a proxy or firewall before it wants a sign-in: open its address in a browser")

// IsIndex reports whether a media type is that of an index.
func IsIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == dockerIndex
}

// IsManifest reports whether a media type is that of one image's manifest.
func IsManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == dockerManifest
}

func acceptedManifests() string {
	return strings.Join([]string{
		ocispec.MediaTypeImageIndex, dockerIndex, ocispec.MediaTypeImageManifest,
		dockerManifest, ociArtifact,
	}, ", ")
}

// Registries opens the repositories of a run.
type Registries struct {
	network  *upstream.Network
	loader   *upstream.Downloader
	keychain authn.Keychain

	mu    sync.Mutex
	repos map[string]*Repository   // by upstream repository
	apis  map[string]*referrersAPI // by upstream host
}

// New returns the registries of a run.
func New(of *upstream.Network, loader *upstream.Downloader, keychain authn.Keychain) *Registries {
	return &Registries{
		network: of, loader: loader, keychain: keychain, repos: map[string]*Repository{},
		apis: map[string]*referrersAPI{},
	}
}

// Catalog lists the repositories of a registry.
func (g *Registries) Catalog(ctx context.Context, registry name.Registry) (all []string, err error) {
	peers, err := g.network.Peers(upstream.CanonicalHost(registry.RegistryStr()))
	if err != nil {
		return nil, err
	}
	u := &url.URL{Scheme: "https", Host: registry.RegistryStr(), Path: "/v2/_catalog"}
	err = g.loader.Sender.InTurn(ctx, peers, func(i int) error {
		e, err := g.newEndpoint(peers[i], registry.Repo("_catalog"))
		if err != nil {
			return err
		}
		e.scope = catalogScope
		all, err = e.pages(ctx, u, "repositories")
		return err
	})
	return all, err
}

// catalogScope is the scope of a token for the list of repositories (distribution's docs/spec/auth/scope.md).
const catalogScope = "registry:catalog:*"

// A Repository is an upstream repository with its endpoints: on mirrors and on the registry itself.
type Repository struct {
	loader    *upstream.Downloader
	api       *referrersAPI
	upstream  name.Repository
	endpoints []*endpoint
	Peers     []*upstream.Peer // of the endpoints
	headless  atomic.Bool      // a HEAD was answered with 404 for a tag that GET has: only GET tells
}

// Repository returns the repository with its endpoints.
func (g *Registries) Repository(home name.Repository) (*Repository, error) {
	host := upstream.CanonicalHost(home.RegistryStr())
	peers, err := g.network.Peers(host)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := host + " " + home.RepositoryStr()
	if g.repos[key] != nil {
		return g.repos[key], nil
	}
	if g.apis[host] == nil {
		g.apis[host] = &referrersAPI{}
	}
	r := &Repository{loader: g.loader, api: g.apis[host], upstream: home, Peers: peers}
	for _, p := range peers {
		e, err := g.newEndpoint(p, home)
		if err != nil {
			return nil, err
		}
		r.endpoints = append(r.endpoints, e)
	}
	g.repos[key] = r
	return r, nil
}

// Pinned returns the repository of a pinned image or referrer.
func (g *Registries) Pinned(pin manifest.Pin) (*Repository, error) {
	home, _, named, err := ParseImage(pin.Ref)
	if err != nil {
		return nil, err
	}
	if named != "" && named != pin.Digest {
		return nil, fmt.Errorf("the lock pins %s, but the reference has another digest", pin.Digest)
	}
	return g.Repository(home)
}

// ask sends a HEAD request for a manifest, which does not count against pull limits.
func (r *Repository) ask(ctx context.Context, u *url.URL) (header http.Header, err error) {
	err = r.loader.Sender.InTurn(ctx, r.Peers, func(i int) error {
		_, header, err = r.endpoints[i].ask(ctx, http.MethodHead, r.endpoints[i].at(u), acceptedManifests(),
			maxManifest)
		return err
	})
	return header, err
}

// url returns an address in the upstream repository; kind is manifests, blobs or tags.
func (r *Repository) url(kind, id string) *url.URL {
	return &url.URL{Scheme: "https", Host: r.upstream.RegistryStr(), Path: path.Join("/v2", r.upstream.RepositoryStr(),
		kind, id)}
}

// String names the repository, and its endpoint if there is only one.
func (r *Repository) String() string {
	if len(r.endpoints) == 1 {
		return r.endpoints[0].String()
	}
	return upstream.CanonicalHost(r.upstream.RegistryStr()) + "/" + r.upstream.RepositoryStr()
}

// Named returns the manifest that a digest or, at present, a tag names.
func (r *Repository) Named(ctx context.Context, reference string) (ocispec.Descriptor, []byte, error) {
	if d := digest.Digest(reference); d.Validate() == nil {
		return r.Manifest(ctx, ocispec.Descriptor{Digest: d, Size: -1})
	}
	return r.Resolve(ctx, reference)
}

// Resolve returns a tag's present digest and manifest.
func (r *Repository) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	u := r.url("manifests", tag)
	// A HEAD does not count against pull limits, and is often enough for a rebuild. If it fails, GET explains why.
	header, err := r.ask(ctx, u)
	if err == nil {
		d := digest.Digest(header.Get("Docker-Content-Digest"))
		if upstream.CheckDigest(d) == nil {
			desc, data, got := r.Manifest(ctx, ocispec.Descriptor{Digest: d, Size: -1, MediaType: mediaType(header)})
			if !upstream.Lacking(got, http.StatusNotFound) {
				return desc, data, got
			}
			// A cache remembers an older digest of the tag, or has manifests by tag only.
		}
	}
	if err != nil && web.Status(err) == nil {
		return ocispec.Descriptor{}, nil, err
	}
	desc, data, got := r.get(ctx, u, ocispec.Descriptor{Size: -1})
	if got == nil && upstream.Lacking(err, http.StatusNotFound) {
		r.headless.Store(true)
	}
	return desc, data, got
}

// Manifest returns a manifest by its digest, from the store or else from the registry. Size -1 and media type "" mean
// unknown; the returned descriptor is complete.
func (r *Repository) Manifest(ctx context.Context, want ocispec.Descriptor) (ocispec.Descriptor, []byte, error) {
	type result struct {
		desc ocispec.Descriptor
		data []byte
	}
	if err := upstream.CheckDigest(want.Digest); err != nil {
		return want, nil, err
	}
	if want.Size > maxManifest {
		return want, nil, fmt.Errorf("manifest %s: %d bytes exceed the limit of %d", want.Digest, want.Size,
			maxManifest)
	}
	own := false
	got, err := upstream.Once(&r.loader.Cache.Flights, "manifest "+want.Digest.String(), func() (result, error) {
		own = true
		data, ok, err := r.loader.Cache.Stored(ctx, want.Digest, maxManifest)
		if err == nil && !ok {
			data, ok, err = r.loader.Dirs.Blob(ctx, want.Digest, maxManifest)
		}
		if err != nil || ok {
			desc := want
			desc.Size = int64(len(data))
			return result{desc, data}, err
		}
		desc, data, err := r.get(ctx, r.url("manifests", want.Digest.String()), want)
		return result{desc, data}, err
	})
	if err != nil && !own && ctx.Err() == nil {
		return r.Manifest(ctx, want) // another repository lacked it; this one may have it
	}
	if err != nil {
		return want, nil, err
	}
	if want.Size >= 0 && want.Size != got.desc.Size {
		return want, nil, fmt.Errorf("manifest %s: wrong size: expected %d bytes, got %d", want.Digest, want.Size,
			got.desc.Size)
	}
	if want.MediaType != "" {
		got.desc.MediaType = want.MediaType
	}
	return r.typed(got.desc, got.data)
}

// get stores a manifest from the first endpoint that has the right one.
func (r *Repository) get(ctx context.Context, u *url.URL,
	want ocispec.Descriptor,
) (got ocispec.Descriptor, data []byte, err error) {
	if got, data, err = r.read(ctx, u, want); err != nil {
		return want, nil, err
	}
	if err := r.loader.Cache.Put(ctx, data, got.Digest); err != nil {
		return want, nil, err
	}
	return r.typed(got, data)
}

// read reads a manifest from the first endpoint that has the right one.
func (r *Repository) read(ctx context.Context, u *url.URL,
	want ocispec.Descriptor,
) (got ocispec.Descriptor, data []byte, err error) {
	err = r.loader.Sender.InTurn(ctx, r.Peers, func(i int) error {
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
	got := upstream.SHA256Of(data)
	promised := want.Digest
	if promised == "" {
		promised = digest.Digest(header.Get("Docker-Content-Digest"))
		if upstream.CheckDigest(promised) != nil {
			promised = got // none, or of another algorithm: the bytes decide
		}
	}
	if got != promised {
		return want, nil, fmt.Errorf(
			"%s sends a wrong manifest for %s: its digest is %s, not %s; do not use this source, or try another (%w)",
			e.peer, e.at(u).Path, got, promised, upstream.ErrMismatch)
	}
	want.Digest, want.Size = got, int64(len(data))
	if want.MediaType == "" {
		want.MediaType = mediaType(header)
	}
	return want, data, nil
}

// document returns and parses a manifest.
func (r *Repository) document(ctx context.Context, want ocispec.Descriptor) (ocispec.Descriptor, Manifest, error) {
	desc, data, err := r.Manifest(ctx, want)
	if err != nil {
		return desc, Manifest{}, err
	}
	doc, err := ParseManifest(desc, data)
	return desc, doc, err
}

// typed sets the descriptor's media type to the one in the manifest, if any.
func (r *Repository) typed(desc ocispec.Descriptor, data []byte) (ocispec.Descriptor, []byte, error) {
	var doc struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     string          `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
	}
	if err := capped.JSON(data, MaxValues, &doc); err != nil {
		if content.IsHTML(data) {
			return desc, nil, fmt.Errorf("%s sends a web page (HTML) in place of a manifest: %w", r, errPage)
		}
		return desc, nil, fmt.Errorf("manifest %s is not JSON: %w", desc.Digest, err)
	}
	switch {
	case doc.SchemaVersion == 1:
		return desc, nil, fmt.Errorf(
			"manifest %s has docker schema 1, which registries no longer accept: ask its publisher to push the image again", desc.Digest)
	case doc.MediaType != "":
		desc.MediaType = doc.MediaType
	case IsIndex(desc.MediaType), IsManifest(desc.MediaType), desc.MediaType == ociArtifact:
	case len(doc.Manifests) > 0:
		desc.MediaType = ocispec.MediaTypeImageIndex
	default:
		desc.MediaType = ocispec.MediaTypeImageManifest
	}
	if desc.MediaType == ociArtifact {
		return desc, nil, fmt.Errorf(
			"manifest %s has the withdrawn media type %s, which registries refuse: ask its publisher to push it again as an image manifest", desc.Digest, ociArtifact)
	}
	if !IsIndex(desc.MediaType) && !IsManifest(desc.MediaType) {
		return desc, nil, fmt.Errorf("manifest %s has the unknown media type %q", desc.Digest,
			upstream.Printable(desc.MediaType))
	}
	return desc, data, nil
}

// Blob returns the download of a blob of this repository.
func (r *Repository) Blob(d digest.Digest, size int64) *upstream.Download {
	out := &upstream.Download{
		Loader: r.loader, What: fmt.Sprintf("blob %s of %s", d, r), Want: d, Size: size,
		Names: upstream.LayoutNames(d),
	}
	for _, e := range r.endpoints {
		out.Places = append(out.Places, upstream.Origin{
			Peer:    e.peer,
			URL:     e.at(r.url("blobs", d.String())),
			Client:  e.login,
			Explain: e.explain,
		})
	}
	return out
}

// Tags lists the repository's tags.
func (r *Repository) Tags(ctx context.Context) (all []string, err error) {
	err = r.loader.Sender.InTurn(ctx, r.Peers, func(i int) error {
		all, err = r.endpoints[i].pages(ctx, r.url("tags", "list"), "tags")
		return err
	})
	return all, err
}

// nextURL returns the address of the page after u; nil after the last. Of the link only its query counts, which has
// the place in the list: host and path are often those of another port or of a server behind a proxy, and lead
// nowhere from here.
func nextURL(u *url.URL, header http.Header) (*url.URL, error) {
	next, ok := nextPage(header.Values("Link"))
	if !ok {
		return nil, nil //nolint:nilnil // the last page is a normal state that callers branch on
	}
	link, err := u.Parse(next)
	if err != nil || link.RawQuery == "" {
		return nil, fmt.Errorf("the address of the next page has no query: %s", upstream.Printable(next))
	}
	to := *u
	to.RawQuery = link.RawQuery
	return &to, nil
}

// nextPage returns the link with the relation next of Link headers (RFC 8288): <address>; rel="next". Some registries
// list other relations in the same line, and write no quotes or no brackets.
func nextPage(values []string) (string, bool) {
	for _, rest := range values {
		for rest != "" {
			var address, parameters string
			if _, inside, ok := strings.Cut(rest, "<"); !ok {
				address, parameters, _ = strings.Cut(rest, ";")
				rest = ""
			} else {
				address, parameters, _ = strings.Cut(inside, ">")
				rest = ""
				if i := strings.IndexByte(parameters, '<'); i >= 0 {
					parameters, rest = parameters[:i], parameters[i:]
				}
			}
			if isNext(parameters) {
				return strings.TrimSpace(address), true
			}
		}
	}
	return "", false
}

// isNext reports whether a link's parameters have the relation next.
func isNext(parameters string) bool {
	for p := range strings.FieldsFuncSeq(parameters, func(r rune) bool { return r == ';' || r == ',' }) {
		name, value, _ := strings.Cut(p, "=")
		relations := strings.Fields(strings.ToLower(strings.Trim(strings.TrimSpace(value), `"'`)))
		if strings.EqualFold(strings.TrimSpace(name), "rel") && slices.Contains(relations, "next") {
			return true
		}
	}
	return false
}

func mediaType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// Head returns the present digest of a tag.
func (r *Repository) Head(ctx context.Context, tag string) (digest.Digest, error) {
	u := r.url("manifests", tag)
	header, err := r.ask(ctx, u)
	if err == nil {
		if d := digest.Digest(header.Get("Docker-Content-Digest")); upstream.CheckDigest(d) == nil {
			return d, nil
		}
	}
	if err != nil && web.Status(err) == nil {
		return "", err
	}
	got, _, err := r.read(ctx, u, ocispec.Descriptor{Size: -1})
	return got.Digest, err
}

// Small reads a blob of at most limit bytes.
func (r *Repository) Small(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := r.Bring(ctx, d.Digest, d.Size); err != nil {
		return nil, err
	}
	data, ok, err := r.loader.Cache.Stored(ctx, d.Digest, limit)
	if err == nil && !ok {
		err = &upstream.StoreError{Cause: errors.New("blob " + d.Digest.String() + " has disappeared from the cache")}
	}
	return data, err
}

// Bring fetches a blob into the store.
func (r *Repository) Bring(ctx context.Context, d digest.Digest, size int64) error {
	return r.loader.Fetch(ctx, r.Blob(d, size))
}

// Peek returns the manifest that a tag or digest names, and stores nothing.
func (r *Repository) Peek(ctx context.Context, reference string) (ocispec.Descriptor, []byte, error) {
	want := ocispec.Descriptor{Size: -1}
	if d := digest.Digest(reference); d.Validate() == nil {
		want.Digest = d
	}
	return r.read(ctx, r.url("manifests", reference), want)
}
