package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/registry/harbor"
)

// HarborOptions configure Push for Harbor: it creates missing projects, one for each first component of a name. If the
// registry is HOST, that is one for each upstream host; with HOST/PROJECT it is that project. Rename gives others.
// Existing projects are used unchanged.
type HarborOptions struct {
	Public bool  // make new projects public: pulls need no login
	Quota  int64 // storage quota of new projects in bytes; 0 is Harbor's default, below 0 no limit
	// name of an account to create that may pull from all these projects, see HarborResult; "" creates none
	Robot string
}

// States of a HarborProject.
const (
	ProjectCreated = "created"
	ProjectExists  = "exists"
	ProjectMissing = "missing" // a dry run would create it
	ProjectUnknown = "unknown" // Harbor hides it from this user; if it is missing, pushes to it fail
)

// A HarborProject is a project for items of the bundle.
type HarborProject struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Quota int64  `json:"quota,omitempty"` // bytes, if known; below 0 no limit
}

// A HarborRobot is the account of HarborOptions.Robot. Secret is "" if the account existed: Harbor reveals it once.
type HarborRobot struct {
	Name   string `json:"name"`
	Secret string `json:"secret,omitempty"`
}

// A HarborResult lists the projects and the account of a push.
type HarborResult struct {
	Version  string          `json:"version,omitempty"`
	Projects []HarborProject `json:"projects"`
	Robot    *HarborRobot    `json:"robot,omitempty"`
}

// A harborSite prepares Harbor for one push.
type harborSite struct {
	session *session
	jobs    []*job
	dryRun  bool
	logger  *slog.Logger
	warn    func(text string)

	client  *harbor.Client
	options HarborOptions
	result  HarborResult
	fresh   map[string]bool  // empty or missing projects
	refused map[string]error // the error of creating a possibly missing project
}

func projectOf(repository string) string {
	project, _, _ := strings.Cut(repository, "/")
	return project
}

// isNew reports whether a repository is certainly empty.
func (s *session) isNew(r *repo) bool { return s.harbor != nil && s.harbor.fresh[projectOf(r.name)] }

// prepare creates projects and account for the push, if the registry is Harbor. It checks everything first: its error
// lists all problems, and then nothing was created.
func (h *harborSite) prepare(ctx context.Context) error {
	login := h.session.account
	h.client = &harbor.Client{
		URL: h.session.url(""), HTTP: h.session.rt, Username: login.Username,
		Password: login.Password,
	}
	var info harbor.Info
	err := h.call(ctx, "look for Harbor",
		func(ctx context.Context) (err error) { info, err = h.client.Info(ctx); return err })
	// a proxy before another registry may answer anything for a foreign path
	_, answered := errors.AsType[*harbor.Error](err)
	switch {
	case errors.Is(err, harbor.ErrNotHarbor), answered:
		if h.options.Robot != "" {
			return fmt.Errorf("%s is not Harbor: it has no robot accounts", h.session.host)
		}
		return nil
	case err != nil:
		return h.explain(err)
	case info.ReadOnly:
		return fmt.Errorf("Harbor at %s is in read-only mode: an administrator turns it off under Configuration > System Settings", h.session.host) //nolint:staticcheck // a name
	}
	h.result.Version = info.Version
	needs, err := h.needs()
	if err != nil {
		return err
	}
	if err := h.look(ctx, needs); err != nil {
		return err
	}
	h.session.harbor = h
	if h.dryRun {
		return nil
	}
	return h.createProjects(ctx)
}

// call retries f while its failure may be temporary.
func (h *harborSite) call(ctx context.Context, what string, f func(context.Context) error) error {
	later := func(err error) bool {
		e, answered := errors.AsType[*harbor.Error](err)
		return answered && e.Temporary() || !answered && passing(err)
	}
	return h.session.retry.do(ctx, what, later, func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, h.session.stall, errStalled) // requests and answers are short
		defer cancel()
		return f(ctx)
	})
}

// explain explains an error, except Harbor's own.
func (h *harborSite) explain(err error) error {
	if e, answered := errors.AsType[*harbor.Error](err); answered {
		if e.Status == http.StatusUnauthorized {
			return &plainError{
				text: fmt.Sprintf(
					"%v: its API requires the user and password of an account: use --username and --password-stdin", e),
				class: ErrLogin, cause: err, fatal: true,
			}
		}
		return err
	}
	return h.session.explain("", err)
}

// needs returns the most bytes that each project will hold. The error lists every name that Harbor does not
// allow.
func (h *harborSite) needs() (map[string]int64, error) {
	needs, seen := map[string]int64{}, map[string]map[digest.Digest]bool{}
	var errs []error
	for _, j := range h.jobs {
		if j.dest == nil || j.err != nil {
			continue
		}
		if err := harbor.CheckRepository(j.repo.name); err != nil {
			errs = append(errs, fmt.Errorf(
				"%s: %w: give it another name with --rename, or one project for all with --registry %s/PROJECT", j.item,
				err, h.session.host))
			continue
		}
		project := projectOf(j.repo.name)
		if seen[project] == nil {
			seen[project] = map[digest.Digest]bool{}
		}
		for _, d := range j.blobs {
			if !seen[project][d.Digest] {
				seen[project][d.Digest] = true
				needs[project] += d.Size
			}
		}
	}
	return needs, nothingPushed(errs)
}

// look checks which projects exist and can hold the content.
func (h *harborSite) look(ctx context.Context, needs map[string]int64) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		var project harbor.Project
		err := h.call(ctx, "look at project "+name,
			func(ctx context.Context) (err error) { project, err = h.client.Project(ctx, name); return err })
		found := HarborProject{Name: name, State: ProjectExists}
		switch {
		case errors.Is(err, harbor.ErrAbsent):
			found.State, h.fresh[name] = ProjectMissing, true
		case errors.Is(err, harbor.ErrHidden):
			found.State = ProjectUnknown
		case err != nil:
			return h.explain(err)
		case project.Proxy:
			errs = append(errs, fmt.Errorf(
				"project %s at %s is a proxy cache of another registry and does not accept pushes: use another project (--rename, or --registry %s/PROJECT)", name, h.session.host, h.session.host))
		default:
			if found.Quota, err = h.checkQuota(ctx, name, needs[name]); err != nil {
				errs = append(errs, err)
			}
		}
		if quota := h.options.Quota; found.State == ProjectMissing && quota > 0 && needs[name] > quota {
			errs = append(errs, tooSmall(name, quota, needs[name]))
		}
		h.result.Projects = append(h.result.Projects, found)
	}
	return nothingPushed(errs)
}

// checkQuota checks that the project's limit suffices. Existing content may be part of the needed content, so only the
// limit counts.
func (h *harborSite) checkQuota(ctx context.Context, name string, need int64) (int64, error) {
	var hard int64
	err := h.call(ctx, "quota of project "+name,
		func(ctx context.Context) (err error) { hard, _, err = h.client.Quota(ctx, name); return err })
	if err != nil { // not every user may see it; a push reports an exceeded quota
		h.logger.DebugContext(ctx, "the project's quota is unknown", "project", name, "error", h.explain(err))
		return 0, nil
	}
	if hard > 0 && need > hard {
		return hard, tooSmall(name, hard, need)
	}
	return hard, nil
}

func tooSmall(project string, quota, need int64) error {
	return fmt.Errorf("project %s has a storage quota of %d bytes but needs %d: raise it (Administration > Project Quotas), or push less with --item and --platform", project, quota, need)
}

// createProjects creates the missing projects.
func (h *harborSite) createProjects(ctx context.Context) error {
	for i := range h.result.Projects {
		project := &h.result.Projects[i]
		if project.State != ProjectMissing && project.State != ProjectUnknown {
			continue
		}
		ask := harbor.Project{Name: project.Name, Public: h.options.Public, Quota: h.options.Quota}
		err := h.call(ctx, "create project "+project.Name,
			func(ctx context.Context) error { return h.client.CreateProject(ctx, ask) })
		switch {
		case errors.Is(err, harbor.ErrExists):
			project.State, h.fresh[project.Name] = ProjectExists, false
		case errors.Is(err, harbor.ErrDenied) && project.State == ProjectUnknown:
			h.refused[project.Name] = err
		case errors.Is(err, harbor.ErrDenied):
			return errors.New(h.session.mayNotCreate(project.Name, err))
		case err != nil:
			return h.explain(err)
		default:
			project.State, h.fresh[project.Name] = ProjectCreated, true
			h.checkNewQuota(ctx, project)
		}
	}
	for _, j := range h.jobs {
		if j.repo != nil {
			j.repo.forgetToken() // a token issued before the project existed allows nothing
		}
	}
	return nil
}

func (s *session) mayNotCreate(project string, err error) string {
	return fmt.Sprintf("project %s does not exist at %s, and %s may not create it%s: ask an administrator for the project, or for permission to create projects",
		project, s.host, s.who(), harborWords(err))
}

// checkNewQuota warns if Harbor ignored the quota, which it honours only for administrators.
func (h *harborSite) checkNewQuota(ctx context.Context, project *HarborProject) {
	want := h.options.Quota
	if want == 0 {
		return
	}
	var hard int64
	err := h.call(ctx, "quota of project "+project.Name,
		func(ctx context.Context) (err error) { hard, _, err = h.client.Quota(ctx, project.Name); return err })
	if project.Quota = hard; err == nil && hard != max(want, -1) {
		has := "no storage quota"
		if hard >= 0 {
			has = fmt.Sprintf("a storage quota of %d bytes", hard)
		}
		h.warn(fmt.Sprintf("project %s has %s, and %d bytes were requested: only system administrators of Harbor can set it", project.Name, has, want))
	}
}

func harborWords(err error) string {
	if e, ok := errors.AsType[*harbor.Error](err); ok && e.Words != "" {
		return " (" + e.Words + ")"
	}
	return ""
}

// makeRobot creates the account with which hosts pull.
func (h *harborSite) makeRobot(ctx context.Context) error {
	if h.options.Robot == "" || h.dryRun {
		return nil
	}
	var projects []string
	for _, project := range h.result.Projects {
		projects = append(projects, project.Name)
	}
	// no retry: the secret of a first attempt would be lost
	robot, err := h.client.GrantPull(ctx, h.options.Robot, projects)
	if errors.Is(err, harbor.ErrDenied) {
		return fmt.Errorf("%s may not create robot account %s at %s%s: an account for several projects requires a system administrator, for a single project its administrator",
			h.session.who(), h.options.Robot, h.session.host, harborWords(err))
	}
	if err != nil {
		return h.explain(err)
	}
	h.result.Robot = &HarborRobot{Name: robot.Name, Secret: robot.Secret}
	return nil
}
