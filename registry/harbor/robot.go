package harbor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Levels of robot accounts, and the duration in days of an unlimited one.
const (
	levelSystem  = "system"
	levelProject = "project"
	forever      = -1
)

// robotGrammar is Harbor's (src/server/v2.0/handler/robot.go).
var robotGrammar = regexp.MustCompile(`^[a-z0-9]+(?:[._-][a-z0-9]+)*$`)

// CheckRobot returns an error if Harbor does not allow a robot account of that name. It does not contact Harbor.
func CheckRobot(name string) error {
	if !robotGrammar.MatchString(name) || len(name) > maxName {
		return fmt.Errorf("%q is not a valid name for a robot account: Harbor allows lower-case letters and digits with single . _ - between them", name)
	}
	return nil
}

// A Robot is a robot account. Only a new one has its secret: Harbor never reveals it again.
type Robot struct {
	Name   string // the login name: robot$NAME by default
	Secret string `json:"-"`
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

func pullFrom(project string) permission {
	return permission{
		Kind: levelProject, Namespace: project,
		Access: []access{{Resource: "repository", Action: "pull"}},
	}
}

type newRobot struct {
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Level       string       `json:"level"`
	Duration    int64        `json:"duration"`
	Permissions []permission `json:"permissions"`
}

// GrantPull creates a robot account with pull permission for projects only. It does not expire. An existing account
// gets the missing permissions and keeps its secret, which stays unknown.
func (c *Client) GrantPull(ctx context.Context, name string, projects []string) (Robot, error) {
	if len(projects) == 0 {
		return Robot{}, errors.New("a robot account needs at least one project")
	}
	body := newRobot{Name: name, Description: "pulls content pushed by kkbundle", Level: levelSystem, Duration: forever}
	for _, p := range projects {
		body.Permissions = append(body.Permissions, pullFrom(p))
	}
	r, err := c.createRobot(ctx, body)
	// a project's administrator may create an account of the project
	if hasStatus(err, http.StatusForbidden) && len(projects) == 1 {
		body.Level = levelProject
		r, err = c.createRobot(ctx, body)
	}
	switch {
	case hasStatus(err, http.StatusConflict):
		return c.extendRobot(ctx, body)
	case hasStatus(err, http.StatusForbidden, http.StatusUnauthorized):
		return Robot{}, errors.Join(ErrDenied, err)
	}
	return r, err
}

func (c *Client) createRobot(ctx context.Context, body newRobot) (Robot, error) {
	var created struct{ Name, Secret string }
	err := c.do(ctx, call{
		op: "create robot account " + body.Name, method: http.MethodPost, path: "/robots", body: body,
		want: http.StatusCreated,
	}, &created)
	if err == nil && (created.Name == "" || created.Secret == "") {
		err = fmt.Errorf("create robot account %s: Harbor answered without its name or its secret", body.Name)
	}
	return Robot(created), err
}

// A knownRobot holds the fields of a listed robot that an update must send back.
type knownRobot struct {
	ID          int64        `json:"id"`
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Level       string       `json:"level"`
	Duration    int64        `json:"duration"`
	Disable     bool         `json:"disable"`
	Permissions []permission `json:"permissions"`
}

// extendRobot adds missing permissions to an account.
func (c *Client) extendRobot(ctx context.Context, body newRobot) (Robot, error) {
	found, err := c.findRobot(ctx, body)
	if err != nil {
		return Robot{}, err
	}
	lacks := false
	for _, p := range body.Permissions {
		lacks = found.grant(p.Namespace) || lacks
	}
	if !lacks {
		return Robot{Name: found.Name}, nil
	}
	path := "/robots/" + strconv.FormatInt(found.ID, 10)
	return Robot{Name: found.Name}, c.do(ctx, call{
		op: "extend robot account " + body.Name, method: http.MethodPut,
		path: path, body: found,
	}, nil)
}

// grant adds pull permission for a project and reports whether it was missing.
func (r *knownRobot) grant(project string) bool {
	for i, p := range r.Permissions {
		if p.Kind != levelProject || p.Namespace != project && p.Namespace != "*" {
			continue
		}
		if slices.ContainsFunc(p.Access, func(a access) bool {
			return a.Resource == "repository" && (a.Action == "pull" || a.Action == "*") && a.Effect != "deny"
		}) {
			return false
		}
		if p.Namespace == project {
			r.Permissions[i].Access = append(p.Access, pullFrom(project).Access...)
			return true
		}
	}
	r.Permissions = append(r.Permissions, pullFrom(project))
	return true
}

func (c *Client) findRobot(ctx context.Context, body newRobot) (knownRobot, error) {
	q := call{op: "find robot account " + body.Name, method: http.MethodGet, path: "/robots"}
	want := body.Name
	if body.Level == levelProject {
		project := body.Permissions[0].Namespace
		id, err := c.projectID(ctx, project)
		if err != nil {
			return knownRobot{}, err
		}
		q.query = url.Values{"q": {"Level=project,ProjectID=" + strconv.FormatInt(id, 10)}}
		want = project + "+" + body.Name
	}
	var found *knownRobot
	err := pages(ctx, c, q, func(r knownRobot) bool {
		if isRobot(r.Name, want) {
			found = &r
		}
		return found == nil
	})
	if err == nil && found == nil {
		err = fmt.Errorf("%s: %w", q.op, errNoRobot)
	}
	if err != nil {
		return knownRobot{}, err
	}
	return *found, nil
}

var errNoRobot = errors.New("the account is not in the list of Harbor")

// DeleteRobot deletes the system's robot account with that name, if it exists.
func (c *Client) DeleteRobot(ctx context.Context, name string) error {
	found, err := c.findRobot(ctx, newRobot{Name: name, Level: levelSystem})
	if errors.Is(err, errNoRobot) {
		return nil
	}
	if err != nil {
		return err
	}
	path := "/robots/" + strconv.FormatInt(found.ID, 10)
	err = c.do(ctx, call{op: "delete robot account " + name, method: http.MethodDelete, path: path}, nil)
	if hasStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// isRobot compares a listed name, which has Harbor's configured prefix ("robot$"), with one without.
func isRobot(listed, name string) bool {
	prefix, ok := strings.CutSuffix(listed, name)
	return ok && (prefix == "" ||
		!strings.ContainsAny(prefix[len(prefix)-1:], "abcdefghijklmnopqrstuvwxyz0123456789._-"))
}

func (c *Client) projectID(ctx context.Context, name string) (int64, error) {
	var p struct {
		ID int64 `json:"project_id"`
	}
	err := c.do(ctx, call{op: "look at project " + name, method: http.MethodGet, path: "/projects/" +
		url.PathEscape(name)}, &p)
	return p.ID, err
}
