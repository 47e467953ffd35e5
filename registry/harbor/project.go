package harbor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

const (
	// characters of a project name and of a repository name with its project (columns in Harbor's database)
	maxName = 255
)

// projectGrammar is Harbor's (src/pkg/project/manager.go): unlike repository names it allows neither "--" nor "__".
var projectGrammar = regexp.MustCompile(`^[a-z0-9]+(?:[._-][a-z0-9]+)*$`)

// CheckRepository returns an error if Harbor cannot hold a repository of that name, PROJECT/PATH. It does not contact
// Harbor.
func CheckRepository(name string) error {
	project, path, _ := strings.Cut(name, "/")
	switch {
	case path == "":
		return fmt.Errorf("%q has no project before its name: Harbor requires PROJECT/NAME", name)
	case !projectGrammar.MatchString(project):
		return fmt.Errorf("%q is not a valid project name: Harbor allows lower-case letters and digits with single . _ - between them", project)
	case len(name) > maxName:
		return fmt.Errorf("%q has %d characters: Harbor allows %d", name, len(name), maxName)
	}
	return nil
}

// A Project is a wanted or existing project.
type Project struct {
	Name   string
	Public bool  // pulls need no login
	Quota  int64 // bytes of storage; 0 is Harbor's default, below 0 no limit
	Proxy  bool  // a cache of another registry, which accepts no pushes
}

// Errors of Project and CreateProject besides *Error, for errors.Is.
var (
	ErrAbsent = errors.New("no such project")
	ErrHidden = errors.New("not allowed to see whether the project exists")
	ErrExists = errors.New("already exists")
	ErrDenied = errors.New("not allowed")
)

// Project returns a project: ErrAbsent if there is none, ErrHidden if Harbor hides it.
func (c *Client) Project(ctx context.Context, name string) (Project, error) {
	var p struct {
		RegistryID int64 `json:"registry_id"`
		Metadata   struct {
			Public string `json:"public"`
		} `json:"metadata"`
	}
	err := c.do(ctx, call{op: "look at project " + name, method: http.MethodGet, path: "/projects/" +
		url.PathEscape(name)}, &p)
	switch {
	case hasStatus(err, http.StatusNotFound):
		return Project{}, errors.Join(ErrAbsent, err)
	case hasStatus(err, http.StatusForbidden, http.StatusUnauthorized):
		return Project{}, errors.Join(ErrHidden, err)
	}
	return Project{Name: name, Public: p.Metadata.Public == "true", Proxy: p.RegistryID > 0}, err
}

// CreateProject creates a project: ErrExists if another client was faster, ErrDenied if the user may not.
func (c *Client) CreateProject(ctx context.Context, p Project) error {
	type metadata struct {
		Public string `json:"public"`
	}
	body := struct {
		Name     string   `json:"project_name"`
		Metadata metadata `json:"metadata"`
		Storage  *int64   `json:"storage_limit,omitempty"`
	}{Name: p.Name, Metadata: metadata{fmt.Sprint(p.Public)}}
	if p.Quota != 0 {
		limit := max(p.Quota, -1)
		body.Storage = &limit
	}
	err := c.do(ctx, call{
		op: "create project " + p.Name, method: http.MethodPost, path: "/projects", body: body,
		want: http.StatusCreated,
	}, nil)
	switch {
	case hasStatus(err, http.StatusConflict):
		return errors.Join(ErrExists, err)
	case hasStatus(err, http.StatusForbidden, http.StatusUnauthorized):
		return errors.Join(ErrDenied, err)
	}
	return err
}

// Quota returns a project's limit in bytes, -1 for none, and its usage.
func (c *Client) Quota(ctx context.Context, name string) (hard, used int64, err error) {
	var s struct {
		Quota *struct {
			Hard, Used struct {
				Storage int64 `json:"storage"`
			}
		} `json:"quota"`
	}
	if err := c.do(ctx, call{op: "quota of project " + name, method: http.MethodGet, path: "/projects/" +
		url.PathEscape(name) + "/summary"}, &s); err != nil {
		return 0, 0, err
	}
	if s.Quota == nil { // quotas are off, or hidden from this user
		return -1, 0, nil
	}
	return s.Quota.Hard.Storage, s.Quota.Used.Storage, nil
}

// Repositories returns the names of a project's repositories, with the project in front.
func (c *Client) Repositories(ctx context.Context, project string) ([]string, error) {
	type repository struct {
		Name string `json:"name"`
	}
	var names []string
	err := pages(ctx, c, call{
		op: "list the repositories of project " + project, method: http.MethodGet,
		path: "/projects/" + url.PathEscape(project) + "/repositories", anonymous: c.Username == "",
	}, func(r repository) bool {
		names = append(names, r.Name)
		return true
	})
	return names, err
}
