// Command harbor stands in for the containers of Harbor, whose installer is published as archives of images only: it
// has as much of Harbor's API as an installation asks for, over a real registry. `prepare` makes of harbor.yml what
// Harbor's own makes of it, for one service and its registry; `serve` is that service. What it is told is kept below
// /data, as Harbor's database is. Its answers are those recorded from Harbor v2.14.2 (3a2df66d), but for one thing: it
// has no tokens, and asks for a password where Harbor names its token service.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

func main() {
	var err error
	switch command := append(os.Args, "")[1]; command {
	case "prepare":
		err = prepare()
	case "serve":
		err = serve()
	default:
		err = fmt.Errorf("unknown command %q", command)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// settings reads the keys of harbor.yml, wherever they are in it.
func settings(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	values := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), ":"); ok {
			values[key] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return values, nil
}

const compose = `services:
  registry:
    image: goharbor/registry-photon:VERSION
    container_name: registry
    restart: always
    volumes: ["DATA/registry:/storage", "./common/config/registry:/etc/registry"]
    networks: [harbor]
  proxy:
    image: goharbor/nginx-photon:VERSION
    container_name: nginx
    restart: always
    depends_on: [registry]
    volumes: ["DATA:/data", "DATA/secret/cert:/etc/cert"]
    env_file: [./common/config/core/env]
    networks: [harbor]
    ports: ["80:8080", "443:8443"]
networks:
  harbor:
    external: false
`

const registryConfig = `version: 0.1
storage: {filesystem: {rootdirectory: /storage}}
http: {addr: ":5000", relativeurls: true}
validation: {manifests: {indexes: {platforms: none}}}
`

func prepare() error {
	s, err := settings("/input/harbor.yml")
	if err != nil {
		return err
	}
	for _, key := range []string{
		"hostname", "harbor_admin_password", "data_volume", "certificate", "private_key",
		"max_job_workers", "webhook_job_max_retry", "level",
	} {
		if s[key] == "" {
			return fmt.Errorf("harbor.yml has no %s", key)
		}
	}
	text := strings.NewReplacer("VERSION", os.Getenv("VERSION"), "DATA", s["data_volume"]).Replace(compose)
	files := map[string][]byte{
		"/compose_location/docker-compose.yml": []byte(text),
		"/config/registry/config.yml":          []byte(registryConfig),
		"/config/core/env":                     []byte("HARBOR_ADMIN_PASSWORD=" + s["harbor_admin_password"] + "\n"),
	}
	for name, key := range map[string]string{"server.crt": "certificate", "server.key": "private_key"} {
		if files["/data/secret/cert/"+name], err = os.ReadFile("/hostfs" + s[key]); err != nil {
			return err
		}
	}
	for name, data := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o644)); err != nil {
			return err
		}
	}
	return os.MkdirAll("/data/registry", 0o755)
}

type permission struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Access    any    `json:"access"`
}

type robot struct {
	ID          int          `json:"id"`
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Level       string       `json:"level"`
	Duration    int          `json:"duration"`
	Permissions []permission `json:"permissions"`
	Secret      string       `json:"secret,omitempty"`
}

// A harbor is what it was told.
type harbor struct {
	mu       sync.Mutex
	proxy    *httputil.ReverseProxy
	Password string // the administrator's: the first that there was
	Projects []string
	Robots   []*robot
	Lists    map[string][]map[string]any // registries and policies
}

const state = "/data/state.json"

func serve() error {
	h := &harbor{Lists: map[string][]map[string]any{}}
	if data, err := os.ReadFile(state); err == nil {
		if err := json.Unmarshal(data, h); err != nil {
			return err
		}
	}
	if h.Password == "" {
		h.Password = os.Getenv("HARBOR_ADMIN_PASSWORD")
	}
	h.proxy = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "registry:5000"})
	go func() {
		log.Fatal(http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+r.Host+r.URL.Path, http.StatusPermanentRedirect)
		})))
	}()
	return http.ListenAndServeTLS(":8443", "/etc/cert/server.crt", "/etc/cert/server.key", h)
}

// ServeHTTP answers as Harbor's proxy does.
func (h *harbor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, projects, ok := h.who(r)
	if path, api := strings.CutPrefix(r.URL.Path, "/api/v2.0"); api {
		h.api(w, r, path, ok && name == "admin")
		return
	}
	repository := strings.TrimPrefix(r.URL.Path, "/v2/")
	project, _, _ := strings.Cut(repository, "/")
	writes := r.Method != http.MethodGet && r.Method != http.MethodHead
	if !ok || repository != "" && !slices.Contains(projects, project) || writes && name != "admin" {
		w.Header().Set("WWW-Authenticate", `Basic realm="harbor"`)
		reason := "unauthorized"
		if repository != "" {
			reason = "unauthorized to access repository: " + repository
		}
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", reason+": "+reason) // twice, as Harbor does
		return
	}
	h.proxy.ServeHTTP(w, r)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	send(w, status, map[string]any{"errors": []any{map[string]string{"code": code, "message": message}}})
}

// who returns who asks and the projects that are there for him.
func (h *harbor) who(r *http.Request) (name string, projects []string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	user, password, _ := r.BasicAuth()
	if user == "admin" && password == h.Password {
		return user, slices.Clone(h.Projects), true
	}
	for _, one := range h.Robots {
		if user == one.Name && password == one.Secret {
			for _, p := range one.Permissions {
				projects = append(projects, p.Namespace)
			}
			return user, projects, true
		}
	}
	return "", nil, false
}

func (h *harbor) api(w http.ResponseWriter, r *http.Request, path string, admin bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	data, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/health":
		send(w, http.StatusOK, map[string]any{"status": "healthy", "components": []any{}})
	case path == "/systeminfo":
		send(w, http.StatusOK, map[string]any{"auth_mode": "db_auth", "harbor_version": "v2.14.2-stand-in"})
	case !admin:
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "unauthorized")
	case path == "/users/current":
		send(w, http.StatusOK, map[string]any{"username": "admin"})
	case parts[0] == "projects":
		h.projects(w, r, parts[1:], data)
	case parts[0] == "robots":
		h.robots(w, r, parts[1:], data)
	default:
		h.list(w, r, parts, data)
	}
	kept, err := json.Marshal(h)
	if err == nil {
		err = os.WriteFile(state, kept, 0o600)
	}
	if err != nil {
		log.Print(err)
	}
}

func (h *harbor) projects(w http.ResponseWriter, r *http.Request, parts []string, data []byte) {
	var asked struct {
		Name string `json:"project_name"`
	}
	_ = json.Unmarshal(data, &asked)
	switch {
	case r.Method == http.MethodPost && slices.Contains(h.Projects, asked.Name):
		refuse(w, http.StatusConflict, "CONFLICT", "The project named "+asked.Name+" already exists")
	case r.Method == http.MethodPost:
		h.Projects = append(h.Projects, asked.Name)
		w.WriteHeader(http.StatusCreated)
	case len(parts) == 0 || !slices.Contains(h.Projects, parts[0]):
		refuse(w, http.StatusNotFound, "NOT_FOUND", "project "+strings.Join(parts, "/")+" not found")
	case len(parts) == 2: // the summary
		send(w, http.StatusOK, map[string]any{"quota": map[string]any{
			"hard": map[string]int{"storage": -1},
			"used": map[string]int{"storage": 0},
		}})
	default:
		send(w, http.StatusOK, map[string]any{"name": parts[0], "metadata": map[string]string{"public": "false"}})
	}
}

func (h *harbor) robots(w http.ResponseWriter, r *http.Request, parts []string, data []byte) {
	var asked robot
	_ = json.Unmarshal(data, &asked)
	name := "robot$" + strings.TrimPrefix(asked.Name, "robot$")
	at := slices.IndexFunc(h.Robots, func(one *robot) bool {
		return one.Name == name || len(parts) > 0 && strconv.Itoa(one.ID) == parts[0]
	})
	switch {
	case r.Method == http.MethodGet:
		send(w, http.StatusOK, h.Robots)
	case r.Method == http.MethodPost && at >= 0:
		refuse(w, http.StatusConflict, "CONFLICT", "robot account 0:"+strings.TrimPrefix(name, "robot$")+" already exists")
	case r.Method == http.MethodPost:
		asked.ID, asked.Name, asked.Secret = 1, name, "Generated1"
		for _, one := range h.Robots {
			asked.ID = max(asked.ID, one.ID+1)
		}
		h.Robots = append(h.Robots, &asked)
		send(w, http.StatusCreated, asked)
	case at < 0:
		refuse(w, http.StatusNotFound, "NOT_FOUND", "robot "+strings.Join(parts, "/")+" not found")
	case r.Method == http.MethodDelete:
		h.Robots = slices.Delete(h.Robots, at, at+1)
	case r.Method == http.MethodPatch:
		h.Robots[at].Secret = asked.Secret
		send(w, http.StatusOK, map[string]string{}) // a secret of the client's is not repeated
	default:
		h.Robots[at].Permissions = asked.Permissions
	}
}

// list keeps objects that are not acted upon.
func (h *harbor) list(w http.ResponseWriter, r *http.Request, parts []string, data []byte) {
	of := parts[0]
	if of == "replication" { // policies, and executions, which are none
		parts = parts[1:]
		of += "/" + parts[0]
	}
	var asked map[string]any
	_ = json.Unmarshal(data, &asked)
	switch r.Method {
	case http.MethodPost:
		asked["id"] = len(h.Lists[of]) + 1
		h.Lists[of] = append(h.Lists[of], asked)
		w.WriteHeader(http.StatusCreated)
	case http.MethodPut:
		for _, one := range h.Lists[of] {
			if fmt.Sprint(one["id"]) == parts[1] {
				for key, value := range asked {
					one[key] = value
				}
			}
		}
	default:
		send(w, http.StatusOK, append([]map[string]any{}, h.Lists[of]...))
	}
}

func send(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
