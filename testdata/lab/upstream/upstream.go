// Package upstream is the internet as far as the lab needs it: one HTTPS server that has a registry, files and chart
// repositories under the name of each upstream host, to be reached through a manifest's sources.
package upstream

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// Options say what is served and where.
type Options struct {
	Content string   // Software.Upstream of package software
	Extra   []string // Software.Extra
	State   string   // directory for CA, credentials, log and manifests; made if it is not there
	Listen  string   // "" is a free port of 127.0.0.1
	Small   bool     // Content is that of a small build
}

// A Server is a running upstream. In its State directory are
//
//	ca.pem              who signed its certificate
//	docker/config.json  the registry's credentials, for DOCKER_CONFIG
//	requests.log        what was asked of it, see Requests
//	manifest.yaml       what the lab's bundle holds; with cluster.yaml unless Small
type Server struct {
	Addr  string // host:port
	State string

	registry *registrytest.Server
	log      *requestLog
}

// Start serves until Close.
func Start(o Options) (*Server, error) {
	if err := os.MkdirAll(filepath.Join(o.State, "docker"), 0o755); err != nil {
		return nil, fmt.Errorf("state of the upstream: %w", err)
	}
	log, err := newRequestLog(filepath.Join(o.State, LogFile))
	if err != nil {
		return nil, err
	}
	files := &fileServer{dirs: append([]string{filepath.Join(o.Content, "files")}, o.Extra...)}
	registry, err := registrytest.New(registrytest.Options{
		Addr: o.Listen, Dir: filepath.Join(o.Content, "registry"), ReadOnly: true, TLS: true,
		Auth: registrytest.AuthToken,
		// An effect on every request: it is logged, and files are served beside the registry.
		Faults: []registrytest.Fault{{
			Times:  -1,
			Effect: func(next http.Handler) http.Handler { return log.record(files.or(next)) },
		}},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the upstream: %w", err), log.close())
	}
	s := &Server{Addr: registry.Host, State: o.State, registry: registry, log: log}
	if err := s.describe(o.Small); err != nil {
		return nil, errors.Join(fmt.Errorf("describe the upstream: %w", err), s.Close())
	}
	return s, nil
}

// Close stops serving. What is in the State directory stays.
func (s *Server) Close() error { return errors.Join(s.registry.Close(), s.log.close()) }

// describe writes what a client needs into the state directory.
func (s *Server) describe(small bool) error {
	ca, err := os.ReadFile(s.registry.CAFile)
	if err != nil {
		return err
	}
	login := base64.StdEncoding.EncodeToString([]byte(s.registry.Username + ":" + s.registry.Password))
	config, err := json.MarshalIndent(map[string]any{"auths": map[string]any{s.Addr: map[string]string{"auth": login}}},
		"", "  ")
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(s.State, "ca.pem"), ca, 0o644),
		os.WriteFile(filepath.Join(s.State, "docker", "config.json"), config, 0o600),
	); err != nil {
		return err
	}
	for name, text := range manifests(s.Addr, small) {
		if err := os.WriteFile(filepath.Join(s.State, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// assets is where GitHub sends those who ask for a release's files.
const assets = "release-assets.githubusercontent.com"

// A fileServer has a directory for each upstream host, in each of its directories that is there.
type fileServer struct{ dirs []string }

// or serves the paths that begin with the name of a host, and leaves the others to next.
func (f *fileServer) or(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") || strings.HasPrefix(r.URL.Path, "/auth/") {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		f.serve(w, r)
	})
}

func (f *fileServer) serve(w http.ResponseWriter, r *http.Request) {
	name := path.Clean(r.URL.Path)
	host, rest, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	switch {
	case host == "github.com" && strings.Contains(rest, "/releases/download/"):
		http.Redirect(w, r, "/"+assets+"/"+rest+"?sp=r&sig="+signature(rest), http.StatusFound)
		return
	case host == assets && r.URL.Query().Get("sig") != signature(rest):
		http.Error(w, "signature missing or wrong", http.StatusForbidden)
		return
	case host == assets:
		name = "/github.com/" + rest
	}
	file, err := f.open(name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.IsDir() {
		http.NotFound(w, r)
		return
	}
	// The content under one name never changes: what is served lies in a directory that is named after all of it, or
	// was put where it is at the time that it has.
	w.Header().Set("ETag", `"`+signature(fmt.Sprint(file.Name(), name, info.Size(), info.ModTime()))+`"`)
	w.Header().Set("Content-Type", contentType(name))
	http.ServeContent(w, r, path.Base(name), info.ModTime(), file)
}

// open finds a file in the first directory that has it.
func (f *fileServer) open(name string) (*os.File, error) {
	for _, dir := range f.dirs {
		file, err := os.OpenInRoot(dir, strings.TrimPrefix(name, "/"))
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return file, err
		}
	}
	return nil, os.ErrNotExist
}

func contentType(name string) string {
	if strings.HasSuffix(name, ".yaml") {
		return "text/yaml"
	}
	return "application/octet-stream"
}

func signature(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:16])
}
