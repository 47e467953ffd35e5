package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxManifest is the largest manifest in bytes, distribution's own limit.
const maxManifest = 4 << 20

// A place is what a request is about, below /v2/<repo>/.
type place struct {
	repo string
	kind kind
	ref  string // a digest or tag; of uploads what follows, maybe nothing
}

type kind string

const (
	manifests kind = "manifests"
	referrers kind = "referrers"
	uploads   kind = "blobs/uploads"
	blobs     kind = "blobs"
)

// parsePlace reports false for addresses that are not of a repository's content. It does not check names.
func parsePlace(urlPath string) (place, bool) {
	rest, ok := strings.CutPrefix(urlPath, "/v2/")
	if !ok {
		return place{}, false
	}
	for _, k := range []kind{uploads, manifests, referrers, blobs} {
		if i := strings.LastIndex(rest, "/"+string(k)+"/"); i > 0 {
			return place{rest[:i], k, rest[i+len(k)+2:]}, true
		}
	}
	return place{}, false
}

func (p place) path() string { return path.Join("/v2", p.repo, string(p.kind), p.ref) }

// digest returns the place's digest, or "" if it is none.
func (p place) digest() digest.Digest {
	if d := digest.Digest(p.ref); d.Validate() == nil {
		return d
	}
	return ""
}

// api answers below /v2/. Distribution lacks three parts of the specification's release 1.1, which are added here:
// the referrers of a manifest, content with SHA-512 digests, and manifests with layers that are not distributed.
func (r *Registry) api(w http.ResponseWriter, req *http.Request) {
	at, ok := parsePlace(req.URL.Path)
	switch {
	case !ok:
		r.app.ServeHTTP(w, req)
	case at.kind == referrers:
		r.listReferrers(w, req, at)
	case at.kind == manifests && req.Method == http.MethodPut && !r.readOnly:
		r.putManifest(w, req, at)
	case at.kind == manifests && req.Method == http.MethodDelete && at.digest() != "":
		r.deleteManifest(w, req, at)
	case at.kind != manifests:
		r.serveBlob(w, req, at)
	default:
		r.app.ServeHTTP(w, req)
	}
}

// A document is what a manifest says beyond distribution's own checks.
type document struct {
	MediaType    string               `json:"mediaType"`
	ArtifactType string               `json:"artifactType"`
	Config       *ocispec.Descriptor  `json:"config"`
	Layers       []ocispec.Descriptor `json:"layers"`
	Subject      *ocispec.Descriptor  `json:"subject"`
	Annotations  map[string]string    `json:"annotations"`
}

// putManifest lets distribution check and store a manifest, under its SHA-256 digest.
func (r *Registry) putManifest(w http.ResponseWriter, req *http.Request, at place) {
	data, err := io.ReadAll(io.LimitReader(req.Body, maxManifest+1))
	if err != nil {
		return // the client is gone, or too slow
	}
	inner := req.Clone(req.Context())
	inner.Body = io.NopCloser(io.MultiReader(bytes.NewReader(data), req.Body))
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		r.app.ServeHTTP(w, inner) // which refuses it
		return
	}
	own := digest.FromBytes(data)
	asked := at.digest()
	if asked != "" && asked != asked.Algorithm().FromBytes(data) {
		answerError(w, http.StatusBadRequest, "DIGEST_INVALID", "the content does not match the digest")
		return
	}
	if isAlias(asked) {
		inner.URL.Path, inner.URL.RawPath = place{at.repo, manifests, own.String()}.path(), ""
	}
	var out reply
	if foreign(doc) {
		r.putForeign(&out, inner, at, data)
	} else {
		r.app.ServeHTTP(&out, inner)
	}
	if out.status == http.StatusCreated {
		if err := r.stored(req.Context(), &out, at, doc, ocispec.Descriptor{
			MediaType: req.Header.Get("Content-Type"),
			Digest:    own, Size: int64(len(data)),
		}); err != nil {
			r.log.Error("a manifest was stored without its links", "repository", at.repo, "digest", own, "error", err)
			answerError(w, http.StatusInternalServerError, "UNKNOWN", "the manifest could not be stored")
			return
		}
	}
	out.send(w)
}

// stored adds to a stored manifest its other digest and its place among its subject's referrers.
func (r *Registry) stored(ctx context.Context, out *reply, at place, doc document, desc ocispec.Descriptor) error {
	if asked := at.digest(); isAlias(asked) {
		if err := r.links.put(ctx, at.repo, revisions, asked, desc.Digest); err != nil {
			return err
		}
		renameContent(out.Header(), desc.Digest, asked)
		desc.Digest = asked
	}
	if doc.Subject == nil {
		return nil
	}
	out.Header().Set("OCI-Subject", doc.Subject.Digest.String())
	r.subjects.add(at.repo, doc.Subject.Digest, listed(desc, doc))
	return nil
}

// deleteManifest removes a manifest under all its digests.
func (r *Registry) deleteManifest(w http.ResponseWriter, req *http.Request, at place) {
	asked := at.digest()
	own, err := r.links.canonical(req.Context(), at.repo, revisions, asked)
	if err != nil {
		r.app.ServeHTTP(w, req)
		return
	}
	if alias := r.links.aliasOf(req.Context(), at.repo, own); alias != "" {
		r.app.ServeHTTP(new(reply), moved(req, place{at.repo, manifests, alias.String()}))
	}
	r.app.ServeHTTP(w, moved(req, place{at.repo, manifests, own.String()}))
}

// moved returns the request for another place.
func moved(req *http.Request, to place) *http.Request {
	other := req.Clone(req.Context())
	other.URL.Path, other.URL.RawPath = to.path(), ""
	return other
}

// serveBlob sends a blob. It lets distribution answer everything else about blobs, which knows content by its SHA-256
// digest, and names it as the client does.
func (r *Registry) serveBlob(w http.ResponseWriter, req *http.Request, at place) {
	if at.kind == blobs && req.Method == http.MethodGet && r.sendBlob(w, req, at) {
		return
	}
	ctx, query, asked := req.Context(), req.URL.Query(), at.digest()
	if at.kind == uploads {
		asked = digest.Digest(query.Get("digest"))
		if mount := digest.Digest(query.Get("mount")); isAlias(mount) {
			asked = mount
			if own, err := r.links.canonical(ctx, query.Get("from"), layers, mount); err == nil {
				query.Set("mount", own.String())
				req = req.Clone(ctx)
				req.URL.RawQuery = query.Encode()
			}
		}
	}
	if !isAlias(asked) {
		r.app.ServeHTTP(w, req)
		return
	}
	r.app.ServeHTTP(&renamed{ResponseWriter: w, change: func(status int, h http.Header) {
		own := digest.Digest(h.Get("Docker-Content-Digest"))
		if status >= http.StatusBadRequest || own.Validate() != nil {
			return
		}
		if status == http.StatusCreated {
			if err := r.links.put(ctx, at.repo, layers, asked, own); err != nil {
				r.log.Error("a blob's other digest was not stored", "repository", at.repo, "digest", asked, "error",
					err)
				return // the client sees the digest that it can be had by
			}
		}
		renameContent(h, own, asked)
	}}, req)
}

// renameContent makes headers about a content name it by another digest.
func renameContent(h http.Header, from, to digest.Digest) {
	h.Set("Docker-Content-Digest", to.String())
	if h.Get("Etag") != "" {
		h.Set("Etag", `"`+to.String()+`"`)
	}
	if location, ok := strings.CutSuffix(h.Get("Location"), from.String()); ok {
		h.Set("Location", location+to.String())
	}
}

// A renamed is a response whose headers are changed before they are sent.
type renamed struct {
	http.ResponseWriter
	change func(status int, h http.Header)
	sent   bool
}

// WriteHeader implements http.ResponseWriter.
func (w *renamed) WriteHeader(status int) {
	if !w.sent && status >= http.StatusOK {
		w.sent = true
		w.change(status, w.Header())
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *renamed) Write(p []byte) (int, error) {
	if !w.sent {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the connection.
func (w *renamed) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A reply holds a small answer.
type reply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *reply) Header() http.Header {
	if r.header == nil {
		r.header = http.Header{}
	}
	return r.header
}

// WriteHeader implements http.ResponseWriter.
func (r *reply) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

// Write implements http.ResponseWriter.
func (r *reply) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

func (r *reply) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), r.header)
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes()) // the client may be gone
}
