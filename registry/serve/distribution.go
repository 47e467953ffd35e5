package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The grammars of repository names and tags in the distribution specification, section "Pulling manifests".
var (
	nameGrammar = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagGrammar  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

const (
	maxName      = 255     // characters of a repository's name
	maxPage      = 10000   // names or tags in one answer
	maxReferrers = 4 << 20 // bytes of an answer about referrers, unless one alone is larger
)

// A route is a parsed path under /v2/.
type route struct {
	kind string // "", "manifests", "blobs", "uploads", "tags", "referrers", "_catalog"; "?" for an unknown path
	name string // repository
	ref  string // tag or digest
}

// parseRoute parses a path from its end, because a repository's name may contain any of the keywords.
func parseRoute(path string) route {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "/v2"), "/")
	switch path {
	case "":
		return route{}
	case "_catalog":
		return route{kind: "_catalog"}
	}
	if name, ok := strings.CutSuffix(path, "/tags/list"); ok {
		return route{"tags", name, ""}
	}
	if i := strings.LastIndex(path, "/blobs/uploads/"); i > 0 {
		return route{"uploads", path[:i], path[i+len("/blobs/uploads/"):]}
	}
	rest, ref, ok := cutLast(path)
	name, kind, ok2 := cutLast(rest)
	if ok && ok2 && ref != "" && (kind == "manifests" || kind == "blobs" || kind == "referrers") {
		return route{kind, name, ref}
	}
	return route{kind: "?"}
}

func cutLast(path string) (before, after string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", "", false
	}
	return path[:i], path[i+1:], true
}

// distribution serves the reading part of the OCI distribution specification's API, version 1.1.
func (s *Server) distribution(w http.ResponseWriter, r *http.Request, sh *snapshot) {
	if err := s.distribute(w, r, sh); err != nil {
		registryError(w, err)
	}
}

func (s *Server) distribute(w http.ResponseWriter, r *http.Request, sh *snapshot) error {
	to := parseRoute(r.URL.Path)
	switch to.kind {
	case "":
		return sendJSON(w, r, "application/json", struct{}{})
	case "?":
		return notFound(codeUnsupported, "not a path of the distribution specification")
	case "_catalog":
		return sh.catalog(w, r)
	case "uploads":
		return &answer{http.StatusMethodNotAllowed, codeUnsupported, "this server is read-only"}
	}
	if len(to.name) > maxName || !nameGrammar.MatchString(to.name) {
		return &answer{http.StatusBadRequest, codeNameInvalid, fmt.Sprintf("%q is not a repository name", to.name)}
	}
	repo := sh.names().repository(to.name, r.URL.Query().Get("ns"))
	if repo == nil {
		return notFound(codeNameUnknown, fmt.Sprintf("no bundle here has %s: names are <upstream host>/<path>",
			to.name))
	}
	switch to.kind {
	case "tags":
		return repo.list(w, r, to.name)
	case "referrers":
		return repo.referrers(w, r, to)
	case "blobs":
		return s.blobOf(w, r, repo, to.ref)
	default:
		return s.manifestOf(w, r, repo, to.ref)
	}
}

// parseReference checks a digest. Digests of other algorithms are well-formed, but match nothing.
func parseReference(ref string) (digest.Digest, error) {
	d := digest.Digest(ref)
	if err := d.Validate(); err != nil && !errors.Is(err, digest.ErrDigestUnsupported) {
		return "", &answer{http.StatusBadRequest, codeDigestInvalid, fmt.Sprintf("%q is not a digest", ref)}
	}
	return d, nil
}

func (s *Server) blobOf(w http.ResponseWriter, r *http.Request, repo *repository, ref string) error {
	want, err := parseReference(ref)
	if err != nil {
		return err
	}
	b, _, err := repo.find(r.Context(), want, func(ocispec.Descriptor) bool { return true })
	if err != nil {
		return err
	}
	if b.book == nil {
		return notFound(codeBlobUnknown, fmt.Sprintf("nothing in %s refers to blob %s", repo.name, want))
	}
	return s.sendContent(w, r, b, "application/octet-stream", immutable)
}

func (s *Server) manifestOf(w http.ResponseWriter, r *http.Request, repo *repository, ref string) error {
	if !strings.Contains(ref, ":") {
		e, ok := repo.tags[ref]
		if !tagGrammar.MatchString(ref) || !ok {
			return notFound(codeManifestUnknown, fmt.Sprintf("%s has no tag %q", repo.name, ref))
		}
		d := e.item.Descriptor
		b, ok := e.book.blob(d)
		if !ok {
			return notFound(codeManifestUnknown, fmt.Sprintf("the bundle has no manifest %s", d.Digest))
		}
		return s.sendContent(w, r, b, e.book.mediaType(r.Context(), d), "no-cache")
	}
	want, err := parseReference(ref)
	if err != nil {
		return err
	}
	b, d, err := repo.find(r.Context(), want,
		func(d ocispec.Descriptor) bool { return isDocument(d.MediaType) || repo.isRoot(d.Digest) })
	if err != nil {
		return err
	}
	if b.book == nil {
		message := fmt.Sprintf("%s has no manifest %s", repo.name, want)
		if repo.isAbsent(want) {
			message += ": that platform was not selected when the bundle was built"
		}
		return notFound(codeManifestUnknown, message)
	}
	return s.sendContent(w, r, b, b.book.mediaType(r.Context(), d), immutable)
}

func (s *Server) sendContent(w http.ResponseWriter, r *http.Request, b blob, mediaType, caching string) error {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", caching)
	h.Set("Docker-Content-Digest", string(b.digest))
	err := s.sendBlob(w, r, b)
	if err != nil {
		h.Del("Docker-Content-Digest")
	}
	return err
}

// mediaType returns the manifest's own type, or else that of its reference. Content of a kind unknown to registries is
// plain bytes, so that a browser does not display it as a page.
func (b *book) mediaType(ctx context.Context, d ocispec.Descriptor) string {
	if isDocument(d.MediaType) {
		if doc, err := b.document(ctx, d); err == nil && doc.mediaType != "" {
			return doc.mediaType
		}
		return d.MediaType
	}
	if strings.HasPrefix(d.MediaType, "application/vnd.") && !strings.ContainsAny(d.MediaType, "\r\n;, ") {
		return d.MediaType
	}
	return "application/octet-stream"
}

// find searches all blobs below the repository's items, later bundles first. It returns the zero blob if there is none.
func (r *repository) find(ctx context.Context, want digest.Digest,
	fits func(ocispec.Descriptor) bool,
) (blob, ocispec.Descriptor, error) {
	var found ocispec.Descriptor
	var failed error
	for _, shelved := range r.byBook() {
		b := shelved.book
		if _, ok := b.reader.Stat(want); !ok {
			continue
		}
		hit := false
		err := b.walk(ctx, shelved.roots, func(d ocispec.Descriptor, _ *document) bool {
			if d.Digest == want && fits(d) {
				found, hit = d, true
			}
			return !hit
		})
		if hit {
			have, _ := b.blob(found)
			return have, found, nil
		}
		if err != nil {
			failed = err
		}
	}
	return blob{}, found, failed
}

// bookRoots are one bundle's items of one name.
type bookRoots struct {
	book  *book
	roots []ocispec.Descriptor
}

func (r *repository) byBook() []bookRoots {
	var all []bookRoots
	for _, e := range r.entries {
		if n := len(all); n == 0 || all[n-1].book != e.book {
			all = append(all, bookRoots{book: e.book})
		}
		last := &all[len(all)-1]
		last.roots = append(last.roots, e.item.Descriptor)
	}
	return all
}

func (r *repository) isRoot(d digest.Digest) bool {
	return slices.ContainsFunc(r.entries, func(e entry) bool { return e.item.Descriptor.Digest == d })
}

func (r *repository) isAbsent(d digest.Digest) bool {
	return slices.ContainsFunc(r.entries, func(e entry) bool { return slices.Contains(e.item.Absent, d) })
}

// referrers lists the referrers of a manifest, whether or not the manifest is here.
func (r *repository) referrers(w http.ResponseWriter, req *http.Request, to route) error {
	subject, err := parseReference(to.ref)
	if err != nil {
		return err
	}
	query := req.URL.Query()
	found := make(map[digest.Digest]ocispec.Descriptor)
	for _, shelved := range r.byBook() {
		err := shelved.book.walk(req.Context(), shelved.roots, func(_ ocispec.Descriptor, doc *document) bool {
			if doc != nil && doc.subject == subject {
				found[doc.referrer.Digest] = doc.referrer
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{}}
	index.SchemaVersion = 2
	want, last := query.Get("artifactType"), query.Get("last")
	size := 0
	for _, d := range sortedDescriptors(found) {
		if string(d.Digest) <= last || want != "" && d.ArtifactType != want {
			continue
		}
		text, err := json.Marshal(d)
		if err != nil {
			return err
		}
		if size += len(text); size > maxReferrers && len(index.Manifests) > 0 {
			link(w, req, "last", string(index.Manifests[len(index.Manifests)-1].Digest))
			break
		}
		index.Manifests = append(index.Manifests, d)
	}
	if want != "" {
		w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	return sendJSON(w, req, ocispec.MediaTypeImageIndex, index)
}

func sortedDescriptors(m map[digest.Digest]ocispec.Descriptor) []ocispec.Descriptor {
	all := make([]ocispec.Descriptor, 0, len(m))
	for _, d := range m {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a,
		b ocispec.Descriptor,
	) int {
		return strings.Compare(string(a.Digest), string(b.Digest))
	})
	return all
}

func (r *repository) list(w http.ResponseWriter, req *http.Request, name string) error {
	tags, err := page(w, req, r.sorted, compareTags)
	if err != nil {
		return err
	}
	return sendJSON(w, req, "application/json", struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}{name, tags})
}

func (sh *snapshot) catalog(w http.ResponseWriter, r *http.Request) error {
	found, err := page(w, r, sh.names().sorted, strings.Compare)
	if err != nil {
		return err
	}
	return sendJSON(w, r, "application/json", struct {
		Repositories []string `json:"repositories"`
	}{found})
}

// page returns at most n of all after last, according to the query, and links to the next page if there is one.
func page(w http.ResponseWriter, r *http.Request, all []string, compare func(a, b string) int) ([]string, error) {
	query := r.URL.Query()
	n := maxPage
	if text := query.Get("n"); text != "" {
		asked, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, &answer{http.StatusBadRequest, codePageInvalid, fmt.Sprintf("n=%q is not a number of results",
				text)}
		}
		n = min(n, int(asked))
	}
	rest := all
	if last := query.Get("last"); last != "" {
		i, found := slices.BinarySearchFunc(all, last, compare)
		if found {
			i++
		}
		rest = all[i:]
	}
	if len(rest) <= n {
		return append([]string{}, rest...), nil
	}
	if n > 0 {
		link(w, r, "last", rest[n-1])
	}
	return append([]string{}, rest[:n]...), nil
}

// link adds the address of the next page: the same query with one parameter changed.
func link(w http.ResponseWriter, r *http.Request, key, value string) {
	query := r.URL.Query()
	query.Set(key, value)
	next := url.URL{Path: r.URL.Path, RawQuery: query.Encode()}
	w.Header().Set("Link", "<"+next.String()+`>; rel="next"`)
}

// sendJSON answers with a generated document.
func sendJSON(w http.ResponseWriter, r *http.Request, mediaType string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sendBytes(w, r, mediaType, body)
	return nil
}

// sendBytes answers with bytes in memory, including conditions and ranges.
func sendBytes(w http.ResponseWriter, r *http.Request, mediaType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", etag(digest.FromBytes(body)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
