package harbortest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An identity is the sender of a request.
type identity struct {
	name  string // "" is anonymous
	admin bool
	robot *robot
	// scopes of a token: allowed actions by repository
	scopes map[string][]string
}

type access struct {
	Resource string `json:"resource"`
	Action   string `json:"action"`
	Effect   string `json:"effect,omitempty"`
}

type permission struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Access    []access `json:"access"`
}

type robot struct {
	ID          int64        `json:"id"`
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Level       string       `json:"level"`
	Duration    int64        `json:"duration"`
	Disable     bool         `json:"disable"`
	Editable    bool         `json:"editable"`
	Permissions []permission `json:"permissions,omitempty"`

	secret  string
	project int64
}

// robotPrefix is Harbor's default prefix of robots' names.
const robotPrefix = "robot$"

// accounts are the users and robots.
type accounts struct {
	ids      *ids
	password string // of Admin
	projects map[string]*Project
	robots   []*robot
}

// who identifies the sender of a request; ok is false for a wrong password.
func (a *accounts) who(r *http.Request) (who identity, ok bool) {
	user, password, has := r.BasicAuth()
	switch {
	case !has:
		return identity{}, true
	case user == Admin && password == a.password:
		return identity{name: user, admin: true}, true
	case user == User && password == UserPassword:
		return identity{name: user}, true
	}
	for _, rb := range a.robots {
		if user == robotPrefix+rb.Name && password == rb.secret {
			return identity{name: user, robot: rb}, true
		}
	}
	return identity{}, false
}

// may reports whether an identity may perform an action on a project's repositories.
func (who identity) may(p *Project, action string) bool {
	switch {
	case who.admin, action == "pull" && p.Public, slices.Contains(p.Members, who.name):
		return true
	case who.robot == nil:
		return false
	}
	return slices.ContainsFunc(who.robot.Permissions, func(perm permission) bool {
		return (perm.Namespace == p.Name || perm.Namespace == "*") &&
			slices.Contains(perm.Access, access{Resource: "repository", Action: action})
	})
}

// api answers; s.mu is held.
func (s *Server) api(w http.ResponseWriter, r *http.Request, body []byte) {
	who, _ := s.accounts.who(r) // a wrong password is anonymous
	path := strings.TrimPrefix(r.URL.Path, s.swagger.BasePath)
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/health":
		s.health(w)
	case path == "/systeminfo": // with a wrong password, too
		s.systemInfo(w, who)
	case who.name == "" && !s.isPublic(r, parts):
		sendError(w, http.StatusUnauthorized, "UNAUTHORIZED", "unauthorized")
	case path == "/projects" && r.Method == http.MethodPost:
		s.createProject(w, who, body)
	case parts[0] == "projects" && len(parts) >= 2:
		s.project(w, r, who, parts[1:])
	case path == "/robots" && r.Method == http.MethodPost:
		s.accounts.createRobot(w, who, body)
	case path == "/robots":
		s.accounts.listRobots(w, r, who)
	case parts[0] == "robots" && r.Method == http.MethodPut:
		s.accounts.updateRobot(w, who, parts[1], body)
	case parts[0] == "robots" && r.Method == http.MethodPatch:
		s.accounts.setSecret(w, who, parts[1], body)
	case parts[0] == "robots" && r.Method == http.MethodDelete:
		s.accounts.deleteRobot(w, who, parts[1])
	case path == "/users/current":
		sendJSON(w, map[string]any{"user_id": 1, "username": who.name, "sysadmin_flag": who.admin})
	case parts[0] == "registries", parts[0] == "replication":
		s.replications.serve(w, r, who, parts, body)
	default:
		sendError(w, http.StatusNotFound, "NOT_FOUND", "the stand-in does not have this")
	}
}

// isPublic reports whether a request reads a public project, for which a login is not needed.
func (s *Server) isPublic(r *http.Request, parts []string) bool {
	if r.Method != http.MethodGet || parts[0] != "projects" || len(parts) < 2 {
		return false
	}
	name, _ := url.PathUnescape(parts[1])
	p := s.projects[name]
	return p != nil && p.Public
}

func (s *Server) systemInfo(w http.ResponseWriter, who identity) {
	info := map[string]any{"auth_mode": "db_auth", "self_registration": false}
	if who.name != "" {
		info["harbor_version"], info["read_only"] = "v2.14.2-stand-in", s.options.ReadOnly
	}
	sendJSON(w, info)
}

var projectName = regexp.MustCompile(`^[a-z0-9]+(?:[._-][a-z0-9]+)*$`)

func (s *Server) createProject(w http.ResponseWriter, who identity, body []byte) {
	var req struct {
		Name     string `json:"project_name"`
		Storage  *int64 `json:"storage_limit"`
		Metadata struct {
			Public string `json:"public"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(body, &req) // already checked
	switch {
	case who.robot != nil && who.robot.Level != "system":
		sendError(w, http.StatusForbidden, "FORBIDDEN", "Only system level robot can create project")
	case !who.admin && !s.options.AnyoneMay:
		sendError(w, http.StatusForbidden, "FORBIDDEN", "Only system admin can create project")
	case !projectName.MatchString(req.Name) || len(req.Name) > 255:
		sendError(w, http.StatusBadRequest, "BAD_REQUEST",
			"project name is not in lower case or contains illegal characters")
	case s.projects[req.Name] != nil:
		sendError(w, http.StatusConflict, "CONFLICT", fmt.Sprintf("The project named %s already exists", req.Name))
	default:
		p := Project{Name: req.Name, Public: req.Metadata.Public == "true", Quota: -1}
		if req.Storage != nil && who.admin { // anybody else gets the default
			p.Quota = *req.Storage
		}
		if !who.admin {
			p.Members = []string{who.name}
		}
		s.addProject(p)
		w.WriteHeader(http.StatusCreated)
	}
}

// project answers GET of /projects/{name}, /projects/{name}/summary and /projects/{name}/repositories.
func (s *Server) project(w http.ResponseWriter, r *http.Request, who identity, parts []string) {
	name, _ := url.PathUnescape(parts[0])
	p := s.projects[name]
	sees := who.admin || p != nil && !p.Hidden && (p.Public || who.may(p, "pull") && who.robot == nil)
	switch {
	case r.Header.Get("X-Is-Resource-Name") != "true" && strings.Trim(name, "0123456789") == "":
		sendError(w, http.StatusNotFound, "NOT_FOUND", "that is the number of a project")
	case !sees:
		sendError(w, http.StatusForbidden, "FORBIDDEN", "forbidden")
	case p == nil:
		sendError(w, http.StatusNotFound, "NOT_FOUND", fmt.Sprintf("project %s not found", name))
	case len(parts) == 2 && parts[1] == "repositories":
		list := []map[string]any{}
		for _, name := range p.repositories() {
			list = append(list, map[string]any{"name": name, "project_id": p.id})
		}
		page, size := number(r.URL.Query().Get("page"), 1), number(r.URL.Query().Get("page_size"), 10)
		from := min((page-1)*size, len(list))
		sendJSON(w, list[from:min(from+size, len(list))])
	case len(parts) == 2:
		quota := map[string]any{
			"hard": map[string]int64{"storage": p.limit()},
			"used": map[string]int64{"storage": p.bytes()},
		}
		sendJSON(w, map[string]any{"repo_count": 0, "quota": quota})
	default:
		doc := map[string]any{
			"project_id": p.id, "name": p.Name,
			"metadata": map[string]string{"public": strconv.FormatBool(p.Public)},
		}
		if p.Proxy {
			doc["registry_id"] = 1
		}
		sendJSON(w, doc)
	}
}

func (p *Project) repositories() []string {
	var names []string
	for tag := range p.tags {
		name, _, _ := strings.Cut(tag, ":")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (p *Project) limit() int64 {
	if p.Quota <= 0 {
		return -1
	}
	return p.Quota
}

func (p *Project) bytes() int64 {
	var n int64
	for _, size := range p.used {
		n += size
	}
	return n
}

func (a *accounts) createRobot(w http.ResponseWriter, who identity, body []byte) {
	var req robot
	_ = json.Unmarshal(body, &req) // already checked
	name := req.Name
	refuse := a.robotProblem(who, req)
	if refuse.status == 0 && req.Level == "project" {
		p := a.projects[req.Permissions[0].Namespace]
		name, req.project = p.Name+"+"+req.Name, p.id
	}
	exists := slices.ContainsFunc(a.robots, func(r *robot) bool { return r.Name == name })
	switch {
	case refuse.status != 0:
		refuse.send(w)
	case exists: // the OpenAPI file does not list the 409 that Harbor's unique constraint gives
		w.WriteHeader(http.StatusConflict)
		sendJSON(w, map[string]any{"errors": []map[string]string{{"code": "CONFLICT", "message": fmt.Sprintf(
			"robot account %d:%s already exists", req.project, name)}}})
	default:
		req.ID, req.Name, req.Editable = a.ids.next(), name, true
		req.secret = fmt.Sprintf("Secret%dOfTheStandIn", req.ID)
		a.robots = append(a.robots, &req)
		w.WriteHeader(http.StatusCreated)
		sendJSON(w, map[string]any{"id": req.ID, "name": robotPrefix + name, "secret": req.secret, "expires_at": -1})
	}
}

// A refusal is an error of Harbor. The zero value is none.
type refusal struct {
	status     int
	code, text string
}

func (r refusal) send(w http.ResponseWriter) { sendError(w, r.status, r.code, r.text) }

func badRequest(text string) refusal {
	return refusal{http.StatusBadRequest, "BAD_REQUEST", text}
}

// robotProblem checks in Harbor's order: the request, rights, projects. A right that the system gives is refused with
// the user's name.
func (a *accounts) robotProblem(who identity, req robot) refusal {
	switch {
	case !projectName.MatchString(req.Name):
		return badRequest("robot name is not in lower case or contains illegal characters")
	case req.Duration == 0 || req.Duration < -1:
		return badRequest(fmt.Sprintf(
			"bad request error duration input: %d, duration must be either -1(Never) or a positive integer", req.Duration))
	case req.Level != "project" && req.Level != "system":
		return badRequest("bad request error level input: " + req.Level)
	case len(req.Permissions) == 0:
		return badRequest("bad request empty permission")
	case slices.ContainsFunc(req.Permissions, func(p permission) bool { return len(p.Access) == 0 }):
		return badRequest("bad request empty access")
	case req.Level == "project" && len(req.Permissions) > 1:
		return badRequest("bad request permission")
	case !who.admin && req.Level == "system":
		return refusal{http.StatusForbidden, "FORBIDDEN", who.name}
	}
	for _, perm := range req.Permissions {
		p := a.projects[perm.Namespace]
		switch {
		case !who.admin && (p == nil || !slices.Contains(p.Members, who.name)):
			return refusal{http.StatusForbidden, "FORBIDDEN", "forbidden"}
		case p == nil:
			return refusal{http.StatusNotFound, "NOT_FOUND", "project " + perm.Namespace + " not found"}
		}
	}
	return refusal{}
}

func (a *accounts) listRobots(w http.ResponseWriter, r *http.Request, who identity) {
	query := r.URL.Query()
	var project int64
	if q := query.Get("q"); q != "" {
		if n, err := fmt.Sscanf(q, "Level=project,ProjectID=%d", &project); n != 1 || err != nil {
			sendError(w, http.StatusBadRequest, "BAD_REQUEST", "the stand-in does not know this query")
			return
		}
	}
	list := []robot{}
	for _, rb := range a.robots {
		if rb.project == project && (who.admin || project != 0) {
			one := *rb
			one.Name = robotPrefix + rb.Name
			list = append(list, one)
		}
	}
	page, size := number(query.Get("page"), 1), number(query.Get("page_size"), 10)
	from := min((page-1)*size, len(list))
	w.Header().Set("X-Total-Count", strconv.Itoa(len(list)))
	sendJSON(w, list[from:min(from+size, len(list))])
}

func number(s string, otherwise int) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return otherwise
	}
	return n
}

func (a *accounts) updateRobot(w http.ResponseWriter, who identity, id string, body []byte) {
	var req robot
	_ = json.Unmarshal(body, &req) // already checked
	for _, rb := range a.robots {
		if strconv.FormatInt(rb.ID, 10) != id {
			continue
		}
		if req.Level != rb.Level || req.Name != robotPrefix+rb.Name {
			sendError(w, http.StatusBadRequest, "BAD_REQUEST", "cannot update the level or name of robot")
			return
		}
		check := req
		check.Name = "any"
		if problem := a.robotProblem(who, check); problem.status != 0 {
			problem.send(w)
			return
		}
		rb.Permissions = req.Permissions
		return
	}
	sendError(w, http.StatusNotFound, "NOT_FOUND", "robot "+id+" not found")
}
