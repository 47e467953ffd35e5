package harbortest

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	tokenPath = "/service/token"
	service   = "harbor-registry"
)

// serveToken gives a token for the permitted actions in the requested repositories. A missing project and a wrong
// password permit nothing, without an error.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	who, _ := s.accounts.who(r)
	if asked := r.URL.Query().Get("service"); asked != service {
		http.Error(w, "Unable to handle service: "+asked, http.StatusBadRequest)
		return
	}
	who.scopes = map[string][]string{}
	for _, text := range r.URL.Query()["scope"] {
		for scope := range strings.SplitSeq(text, " ") {
			parts := strings.Split(scope, ":")
			if len(parts) != 3 || parts[0] != "repository" {
				continue
			}
			project, _, _ := strings.Cut(parts[1], "/")
			for _, action := range []string{"pull", "push", "delete"} {
				if p := s.projects[project]; p != nil && who.may(p, action) {
					who.scopes[parts[1]] = append(who.scopes[parts[1]], action)
				}
			}
		}
	}
	token := rand.Text()
	s.tokens[token] = who
	sendJSON(w, map[string]any{"token": token, "expires_in": 1800, "issued_at": "2024-01-01T00:00:00Z"})
}

var registryPath = regexp.MustCompile(`^/v2/(.+)/(blobs/uploads|blobs|manifests|tags|referrers)/(.*)$`)

// serveRegistry passes permitted requests to the registry.
func (s *Server) serveRegistry(w http.ResponseWriter, r *http.Request) {
	m := registryPath.FindStringSubmatch(r.URL.Path)
	if r.URL.Path == "/v2/" {
		if who, known := s.authorize(r); !known || who.name == "" {
			s.challenge(w, r, "", "unauthorized")
			return
		}
		w.WriteHeader(http.StatusOK)
		return
	}
	if m == nil {
		http.NotFound(w, r)
		return
	}
	repository, kind, reference := m[1], m[2], m[3]
	action := "pull"
	if r.Method != http.MethodGet && r.Method != http.MethodHead || kind == "blobs/uploads" {
		action = "push"
	}
	project, _, _ := strings.Cut(repository, "/")
	if problem := s.problem(r, repository, project, action); problem != "" {
		s.challenge(w, r, "repository:"+repository+":"+action, problem)
		return
	}
	s.mu.Lock()
	p, readOnly := s.projects[project], s.options.ReadOnly
	s.mu.Unlock()
	switch {
	case action == "push" && readOnly:
		sendError(w, http.StatusForbidden, "DENIED", "The system is in read only mode. Any modification is prohibited.")
	case action == "push" && p.Proxy:
		sendError(w, http.StatusForbidden, "DENIED", "denied: can not push artifact to a proxy project: "+p.Name)
	case kind == "blobs/uploads" && r.Method == http.MethodPut:
		s.putBlob(w, r, p)
	case kind == "manifests" && r.Method == http.MethodPut:
		s.putManifest(w, r, p, repository, reference)
	case kind == "referrers":
		s.referrers(w, p, repository+"@"+reference)
	case action == "pull" && kind != "blobs" && !slices.Contains(p.repositories(), repository):
		sendError(w, http.StatusNotFound, "NOT_FOUND", "repository "+repository+" not found")
	default:
		s.proxy.ServeHTTP(w, r)
	}
}

// authorize accepts basic logins and tokens.
func (s *Server) authorize(r *http.Request) (identity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		who, known := s.tokens[token]
		return who, known
	}
	return s.accounts.who(r)
}

// problem returns Harbor's reason that a request is not allowed; "" if it is.
func (s *Server) problem(r *http.Request, repository, project, action string) string {
	who, known := s.authorize(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.projects[project]
	switch {
	case (r.Method == http.MethodHead || r.Method == http.MethodGet) && r.Header.Get("Authorization") == "":
		return "authorize header needed to send HEAD to repository"
	case p == nil:
		return "project " + project + " not found"
	case !known:
		return "unauthorized"
	case who.scopes == nil && who.may(p, action), slices.Contains(who.scopes[repository], action):
		return ""
	}
	return fmt.Sprintf("unauthorized to access repository: %s, action: %s", repository, action)
}

// challenge refuses a request. Harbor tells the reason twice, and names no way to log in for a missing project.
func (s *Server) challenge(w http.ResponseWriter, r *http.Request, scope, message string) {
	challenge := fmt.Sprintf(`Bearer realm="http://%s%s",service="%s"`, s.Host, tokenPath, service)
	if scope != "" {
		challenge += fmt.Sprintf(`,scope="%s"`, scope)
	}
	if r.Header.Get("Authorization") != "" {
		challenge = `Basic realm="harbor"`
	}
	if strings.HasSuffix(message, " not found") {
		challenge = ""
	}
	w.Header().Set("WWW-Authenticate", challenge)
	sendError(w, http.StatusUnauthorized, "UNAUTHORIZED", message+": "+message)
}

// putBlob counts the blob against the project's quota.
func (s *Server) putBlob(w http.ResponseWriter, r *http.Request, p *Project) {
	if s.overQuota(w, p, r.ContentLength) {
		return
	}
	s.proxy.ServeHTTP(w, r)
	s.use(p, r.URL.Query().Get("digest"), r.ContentLength)
}

func (s *Server) use(p *Project, digest string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.used[digest] = size
}

func (s *Server) overQuota(w http.ResponseWriter, p *Project, size int64) bool {
	s.mu.Lock()
	used, limit := p.bytes(), p.limit()
	s.mu.Unlock()
	if limit < 0 || used+size <= limit {
		return false
	}
	sendError(w, http.StatusForbidden, "DENIED", fmt.Sprintf(
		"adding %d B of storage resource, which when updated to current usage of %d B will exceed the configured upper limit of %d B.", size, used, limit))
	return true
}

// putManifest enforces immutable tags and maintains the referrers list.
func (s *Server) putManifest(w http.ResponseWriter, r *http.Request, p *Project, repository, reference string) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		return
	}
	d := digest.FromBytes(body)
	s.mu.Lock()
	have := p.tags[repository+":"+reference]
	s.mu.Unlock()
	if p.Immutable && have != "" { // also with the same content
		_, short, _ := strings.Cut(repository, "/")
		sendError(w, http.StatusPreconditionFailed, "PRECONDITION",
			fmt.Sprintf("Failed to process request due to '%s:%s' configured as immutable.", short, reference))
		return
	}
	if s.overQuota(w, p, int64(len(body))) {
		return
	}
	var doc struct {
		Subject *ocispec.Descriptor `json:"subject"`
	}
	if json.Unmarshal(body, &doc) == nil && doc.Subject != nil {
		w.Header().Set("OCI-Subject", doc.Subject.Digest.String())
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.proxy.ServeHTTP(w, r)
	s.use(p, d.String(), int64(len(body)))
	s.mu.Lock()
	defer s.mu.Unlock()
	p.tags[repository+":"+reference] = d.String()
	if doc.Subject != nil {
		at := repository + "@" + doc.Subject.Digest.String()
		entry, _ := json.Marshal(ocispec.Descriptor{
			MediaType: r.Header.Get("Content-Type"), Digest: d,
			Size: int64(len(body)),
		})
		p.lists[at] = append(p.lists[at], entry)
	}
}

func (s *Server) referrers(w http.ResponseWriter, p *Project, at string) {
	s.mu.Lock()
	list := slices.Clone(p.lists[at])
	s.mu.Unlock()
	if list == nil {
		list = []json.RawMessage{}
	}
	data, _ := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex,
		"manifests": list,
	})
	w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data)
}
