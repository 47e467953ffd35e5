package harbortest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A remote is another registry known to Harbor. The stand-in never contacts it, and copies nothing.
type remote struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	URL        string `json:"url"`
	Type       string `json:"type"`
	Insecure   bool   `json:"insecure"`
	CA         string `json:"ca_certificate,omitempty"`
	Credential struct {
		Type   string `json:"type"`
		Key    string `json:"access_key"`
		Secret string `json:"access_secret"`
	} `json:"credential"`
}

// A policy is a replication policy.
type policy struct {
	ID      int64   `json:"id"`
	Name    string  `json:"name"`
	To      *remote `json:"dest_registry"`
	Trigger struct {
		Type string `json:"type"`
	} `json:"trigger"`
	// As in Harbor's handler, requests set deletions by their deprecated name, and answers have both names.
	Deletion bool `json:"deletion"`
	Answered bool `json:"replicate_deletion"`
	Override bool `json:"override"`
	Enabled  bool `json:"enabled"`
}

// An execution is one run of a policy.
type execution struct {
	ID      int64  `json:"id"`
	Policy  int64  `json:"policy_id"`
	Status  string `json:"status"`
	Trigger string `json:"trigger"`
}

// replications are the other registries, the policies that copy to them, and what ran.
type replications struct {
	ids      *ids
	remotes  []*remote
	policies []*policy
	ran      []execution // newest first
	cutOff   bool        // no other registry is reached
}

func (s *Server) health(w http.ResponseWriter) {
	state := "healthy"
	if s.options.Ill {
		state = "unhealthy"
	}
	sendJSON(w, map[string]any{"status": state, "components": []map[string]string{
		{"name": "core", "status": "healthy"}, {"name": "database", "status": state},
	}})
}

// SetIll makes a component of Harbor unhealthy, or healthy again.
func (s *Server) SetIll(ill bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options.Ill = ill
}

// isSecret is Harbor's rule for secrets of robots.
func isSecret(text string) bool {
	return len(text) >= 8 && len(text) <= 128 && strings.IndexFunc(text, unicode.IsUpper) >= 0 &&
		strings.IndexFunc(text, unicode.IsLower) >= 0 &&
		strings.IndexFunc(text, unicode.IsDigit) >= 0
}

func (a *accounts) deleteRobot(w http.ResponseWriter, who identity, id string) {
	i := slices.IndexFunc(a.robots, func(r *robot) bool { return strconv.FormatInt(r.ID, 10) == id })
	switch {
	case !who.admin:
		sendError(w, http.StatusForbidden, "FORBIDDEN", who.name)
	case i < 0:
		sendError(w, http.StatusNotFound, "NOT_FOUND", "robot "+id+" not found")
	default:
		a.robots = slices.Delete(a.robots, i, i+1)
	}
}

func (a *accounts) setSecret(w http.ResponseWriter, who identity, id string, body []byte) {
	var req struct {
		Secret string `json:"secret"`
	}
	_ = json.Unmarshal(body, &req) // already checked
	i := slices.IndexFunc(a.robots, func(r *robot) bool { return strconv.FormatInt(r.ID, 10) == id })
	switch {
	case !who.admin:
		sendError(w, http.StatusForbidden, "FORBIDDEN", who.name)
	case i < 0:
		sendError(w, http.StatusNotFound, "NOT_FOUND", "robot "+id+" not found")
	case !isSecret(req.Secret):
		sendError(w, http.StatusBadRequest, "BAD_REQUEST",
			"the secret must be 8-128, inclusively, characters long with at least 1 uppercase letter, 1 lowercase letter and 1 number")
	default:
		a.robots[i].secret = req.Secret
		sendJSON(w, map[string]string{}) // a secret of the client's is not repeated
	}
}

func (c *replications) serve(w http.ResponseWriter, r *http.Request, who identity, parts []string, body []byte) {
	switch {
	case !who.admin:
		sendError(w, http.StatusForbidden, "FORBIDDEN", who.name)
	case parts[0] == "registries" && r.Method == http.MethodPost:
		c.addRemote(w, body)
	case parts[0] == "registries" && r.Method == http.MethodPut:
		c.changeRemote(w, parts[1], body)
	case parts[0] == "registries":
		list := []remote{}
		for _, one := range c.remotes {
			shown := *one
			shown.Credential.Secret = "*****" // as in Harbor
			list = append(list, shown)
		}
		sendJSON(w, list)
	case parts[1] == "executions":
		c.executions(w, r, body)
	case r.Method == http.MethodPost:
		c.addPolicy(w, body)
	case r.Method == http.MethodPut:
		c.changePolicy(w, parts[2], body)
	default:
		sendJSON(w, append([]*policy{}, c.policies...))
	}
}

func (c *replications) addRemote(w http.ResponseWriter, body []byte) {
	var req remote
	_ = json.Unmarshal(body, &req) // already checked
	if slices.ContainsFunc(c.remotes, func(one *remote) bool { return one.Name == req.Name }) {
		sendError(w, http.StatusConflict, "CONFLICT", "registry "+req.Name+" already exists")
		return
	}
	if c.cutOff {
		sendError(w, http.StatusInternalServerError, "UNKNOWN", "internal server error")
		return
	}
	req.ID = c.ids.next()
	c.remotes = append(c.remotes, &req)
	w.WriteHeader(http.StatusCreated)
}

func (c *replications) changeRemote(w http.ResponseWriter, id string, body []byte) {
	var req struct {
		URL    *string `json:"url"`
		Key    *string `json:"access_key"`
		Secret *string `json:"access_secret"`
		CA     *string `json:"ca_certificate"`
	}
	_ = json.Unmarshal(body, &req) // already checked
	for _, one := range c.remotes {
		if strconv.FormatInt(one.ID, 10) != id {
			continue
		}
		for from, to := range map[*string]*string{
			req.URL: &one.URL, req.Key: &one.Credential.Key,
			req.Secret: &one.Credential.Secret, req.CA: &one.CA,
		} {
			if from != nil {
				*to = *from
			}
		}
		return
	}
	sendError(w, http.StatusNotFound, "NOT_FOUND", "registry not found")
}

func (c *replications) addPolicy(w http.ResponseWriter, body []byte) {
	var req policy
	_ = json.Unmarshal(body, &req) // already checked
	if slices.ContainsFunc(c.policies, func(one *policy) bool { return one.Name == req.Name }) {
		sendError(w, http.StatusConflict, "CONFLICT", "policy "+req.Name+" already exists")
		return
	}
	if req.To == nil || !slices.ContainsFunc(c.remotes, func(one *remote) bool { return one.ID == req.To.ID }) {
		sendError(w, http.StatusNotFound, "NOT_FOUND", "registry not found")
		return
	}
	req.ID, req.Answered = c.ids.next(), req.Deletion
	c.policies = append(c.policies, &req)
	w.WriteHeader(http.StatusCreated)
}

func (c *replications) changePolicy(w http.ResponseWriter, id string, body []byte) {
	var req policy
	_ = json.Unmarshal(body, &req) // already checked
	for i, one := range c.policies {
		if strconv.FormatInt(one.ID, 10) == id {
			req.ID, req.Answered = one.ID, req.Deletion
			c.policies[i] = &req
			return
		}
	}
	sendError(w, http.StatusNotFound, "NOT_FOUND", "policy not found")
}

// executions runs a policy for everything, or lists what ran.
func (c *replications) executions(w http.ResponseWriter, r *http.Request, body []byte) {
	var req execution
	_ = json.Unmarshal(body, &req) // already checked
	if r.Method == http.MethodPost {
		c.run(execution{Policy: req.Policy, Status: "Succeed", Trigger: "manual"})
		w.WriteHeader(http.StatusCreated)
		return
	}
	query, list := r.URL.Query(), []execution{}
	for _, one := range c.ran {
		if query.Get("policy_id") == strconv.FormatInt(one.Policy, 10) &&
			(!query.Has("status") || query.Get("status") == one.Status) &&
			(!query.Has("trigger") || query.Get("trigger") == one.Trigger) {
			list = append(list, one)
		}
	}
	sendJSON(w, list[:min(len(list), number(query.Get("page_size"), 10))])
}

func (c *replications) run(one execution) {
	one.ID = c.ids.next()
	c.ran = slices.Insert(c.ran, 0, one)
}

// CutOff has Harbor reach no other registry: it registers none then.
func (s *Server) CutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replications.cutOff = true
}

// FailCopies is a push whose replication failed, as while the other Harbor is away.
func (s *Server) FailCopies() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.replications.policies {
		s.replications.run(execution{Policy: one.ID, Status: "Failed", Trigger: "event_based"})
	}
}

// DisablePolicies disables all policies, as an administrator may do.
func (s *Server) DisablePolicies() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.replications.policies {
		one.Enabled = false
	}
}

// Copies lists the replication targets for pushes, as "NAME URL USER PASSWORD".
func (s *Server) Copies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, p := range s.replications.policies {
		for _, to := range s.replications.remotes {
			if p.Enabled && p.Override && !p.Deletion && p.Trigger.Type == "event_based" && p.To.ID == to.ID {
				list = append(list, to.Name+" "+to.URL+" "+to.Credential.Key+" "+to.Credential.Secret)
			}
		}
	}
	return list
}
