package registrytest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// referrersPage is the number of referrers per answer: few, so that tests have several pages.
const referrersPage = 2

// referrers adds the referrers API to a registry that lacks it. Distribution v3 stores manifests with a subject but
// does not list them. No real registry runs this code: it implements the OCI distribution specification 1.1 ("Listing
// Referrers", "Pushing Manifests with Subject") on top of a real registry, which still authorizes requests. It knows
// the manifests pushed through it, and never forgets deleted ones.
type referrers struct {
	next http.Handler

	mu   sync.Mutex
	list map[string][]ocispec.Descriptor // by repository and subject
}

func newReferrers(next http.Handler) *referrers {
	return &referrers{next: next, list: map[string][]ocispec.Descriptor{}}
}

// ServeHTTP implements http.Handler.
func (s *referrers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := regexp.MustCompile(`^/v2/(.+)/(referrers|manifests)/([^/]+)$`).FindStringSubmatch(r.URL.Path)
	switch {
	case path != nil && path[2] == "referrers" && r.Method == http.MethodGet:
		s.answer(w, r, path[1], path[3])
	case path != nil && path[2] == "manifests" && r.Method == http.MethodPut:
		s.push(w, r, path[1])
	default:
		s.next.ServeHTTP(w, r)
	}
}

// push records the subject of a manifest accepted by the registry.
func (s *referrers) push(w http.ResponseWriter, r *http.Request, repository string) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	var m ocispec.Manifest
	if json.Unmarshal(data, &m) != nil || m.Subject == nil {
		s.next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("OCI-Subject", m.Subject.Digest.String())
	seen := &Request{}
	s.next.ServeHTTP(&statusWriter{ResponseWriter: w, log: &requestLog{}, seen: seen}, r)
	if seen.Status != http.StatusCreated {
		return
	}
	d := ocispec.Descriptor{
		MediaType: r.Header.Get("Content-Type"), ArtifactType: m.ArtifactType, Annotations: m.Annotations,
		Digest: digest.FromBytes(data), Size: int64(len(data)),
	}
	d.ArtifactType = cmp.Or(d.ArtifactType, m.Config.MediaType)
	key := repository + "@" + m.Subject.Digest.String()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.list[key], func(o ocispec.Descriptor) bool { return o.Digest == d.Digest }) {
		s.list[key] = append(s.list[key], d)
	}
}

func (s *referrers) answer(w http.ResponseWriter, r *http.Request, repository, subject string) {
	if !s.allowed(w, r, repository) {
		return
	}
	if digest.Digest(subject).Validate() != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	list := slices.Clone(s.list[repository+"@"+subject])
	s.mu.Unlock()
	if want := r.URL.Query().Get("artifactType"); want != "" {
		list = slices.DeleteFunc(list, func(d ocispec.Descriptor) bool { return d.ArtifactType != want })
		w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	var from int
	_, _ = fmt.Sscan(r.URL.Query().Get("from"), &from)
	from = min(max(from, 0), len(list))
	list = list[from:]
	if len(list) > referrersPage {
		list = list[:referrersPage]
		query := url.Values{"from": {fmt.Sprint(from + referrersPage)}}
		w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, r.URL.Path, query.Encode()))
	}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: append([]ocispec.Descriptor{}, list...)}
	index.SchemaVersion = 2
	w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
	_ = json.NewEncoder(w).Encode(index) // the client may be gone
}

// allowed checks, with the client's credentials, that the registry would list the repository's tags, and passes a
// challenge on.
func (s *referrers) allowed(w http.ResponseWriter, r *http.Request, repository string) bool {
	ask := r.Clone(r.Context())
	ask.URL.Path, ask.URL.RawQuery = "/v2/"+repository+"/tags/list", ""
	answer := httptest.NewRecorder()
	s.next.ServeHTTP(answer, ask)
	if answer.Code != http.StatusUnauthorized && answer.Code != http.StatusForbidden {
		return true
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client may be gone
	return false
}
