package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/registry/harbor"
)

// HarborOptions say what Push does where the registry is Harbor: it makes the projects that are missing, one for each first
// part of a name. With HOST alone as the registry that is one for each upstream host, with HOST/PROJECT it is that one; Rename
// makes any others. Projects that exist are used as they are.
type HarborOptions struct {
	Public bool   // new projects are public: anybody may pull
	Quota  int64  // storage quota of new projects in bytes; 0 is Harbor's default, below 0 none
	Robot  string // make an account of this name that may pull from all these projects, see HarborResult; "" makes none
}

// States of a HarborProject.
const (
	ProjectCreated = "created"
	ProjectExists  = "exists"
	ProjectMissing = "missing" // a dry run would create it
	ProjectUnknown = "unknown" // Harbor does not tell this user; if it is missing, pushes to it fail
)

// A HarborProject is one that the bundle's items are in.
type HarborProject struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Quota int64  `json:"quota,omitempty"` // bytes, where Harbor says; below 0 is none
}

// A HarborRobot is the account that HarborOptions.Robot asked for. Secret is "" if the account was there before: Harbor tells
// it once.
type HarborRobot struct {
	Name   string `json:"name"`
	Secret string `json:"secret,omitempty"`
}

// A HarborResult is what Push found and made at Harbor.
type HarborResult struct {
	Version  string          `json:"version,omitempty"`
	Projects []HarborProject `json:"projects"`
	Robot    *HarborRobot    `json:"robot,omitempty"`
}

// A harborSite is Harbor as one push sees it.
type harborSite struct {
	client  *harbor.Client
	options HarborOptions
	result  HarborResult
	fresh   map[string]bool  // projects with nothing in them, or not there yet
	refused map[string]error // why a project that may be missing was not made
}

func projectOf(repository string) string {
	project, _, _ := strings.Cut(repository, "/")
	return project
}

// isNew says whether a repository can't hold anything yet.
func (s *session) isNew(r *repo) bool { return s.harbor != nil && s.harbor.fresh[projectOf(r.name)] }

// prepareHarbor makes what the push needs, if the registry is Harbor. All problems that can be known are in its error, and then
// nothing was made.
func (p *pusher) prepareHarbor(ctx context.Context) error {
	if p.options.Harbor == nil {
		return nil
	}
	client, err := p.harborClient(ctx)
	if err != nil {
		return err
	}
	var info harbor.Info
	err = p.harborCall(ctx, "look for Harbor", func(ctx context.Context) (err error) { info, err = client.Info(ctx); return err })
	_, answered := errors.AsType[*harbor.Error](err) // a proxy before another registry may say anything about a path that is not its own
	switch {
	case errors.Is(err, harbor.ErrNotHarbor), answered:
		if p.options.Harbor.Robot != "" {
			return fmt.Errorf("%s is not Harbor: no robot account can be made there", p.session.host)
		}
		return nil
	case err != nil:
		return p.explainHarbor(err)
	case info.ReadOnly:
		return fmt.Errorf("Harbor at %s is in read-only mode: an administrator turns it off under Configuration > System Settings", p.session.host) //nolint:staticcheck // a name
	}
	site := &harborSite{client: client, options: *p.options.Harbor, fresh: map[string]bool{}, refused: map[string]error{}}
	site.result.Version = info.Version
	needs, err := p.harborNeeds()
	if err != nil {
		return err
	}
	if err := p.lookAtProjects(ctx, site, needs); err != nil {
		return err
	}
	p.session.harbor = site
	if p.options.DryRun {
		return nil
	}
	return p.createProjects(ctx, site)
}

func (p *pusher) harborClient(ctx context.Context) (*harbor.Client, error) {
	login, err := authn.Authorization(ctx, p.session.auth)
	if err != nil {
		return nil, fmt.Errorf("find the login for registry %s: %w", p.session.host, err)
	}
	return &harbor.Client{URL: p.session.url(""), HTTP: p.session.gate, Username: login.Username, Password: login.Password}, nil
}

// harborCall does something again while the reason for its failure may pass.
func (p *pusher) harborCall(ctx context.Context, what string, f func(context.Context) error) error {
	later := func(err error) bool {
		e, answered := errors.AsType[*harbor.Error](err)
		return answered && e.Temporary() || !answered && passing(err)
	}
	return p.session.retry.do(ctx, what, later, func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, p.session.stall, errStalled) // what is asked and answered here is short
		defer cancel()
		return f(ctx)
	})
}

// explainHarbor puts an error into words, and leaves those of Harbor.
func (p *pusher) explainHarbor(err error) error {
	if e, answered := errors.AsType[*harbor.Error](err); answered {
		if e.Status == http.StatusUnauthorized {
			return &plainError{text: fmt.Sprintf("%v: its API wants the user and password of an account: use --username and --password-stdin", e), class: ErrLogin, cause: err, fatal: true}
		}
		return err
	}
	return p.session.explain("", err)
}

// harborNeeds returns how many bytes each project will hold at most, and every name that Harbor can't take.
func (p *pusher) harborNeeds() (map[string]int64, error) {
	needs, seen := map[string]int64{}, map[string]map[digest.Digest]bool{}
	var errs []error
	for _, j := range p.jobs {
		if j.dest == nil || j.err != nil {
			continue
		}
		if err := harbor.CheckRepository(j.repo.name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: give it another name with --rename, or one project for all with --registry %s/PROJECT", j.item, err, p.session.host))
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
	if len(errs) > 0 {
		return nil, fmt.Errorf("nothing was pushed: %w", errors.Join(errs...))
	}
	return needs, nil
}

// lookAtProjects finds out which projects are there and whether they can take what comes.
func (p *pusher) lookAtProjects(ctx context.Context, site *harborSite, needs map[string]int64) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		var project harbor.Project
		err := p.harborCall(ctx, "look at project "+name, func(ctx context.Context) (err error) { project, err = site.client.Project(ctx, name); return err })
		found := HarborProject{Name: name, State: ProjectExists}
		switch {
		case errors.Is(err, harbor.ErrAbsent):
			found.State, site.fresh[name] = ProjectMissing, true
		case errors.Is(err, harbor.ErrHidden):
			found.State = ProjectUnknown
		case err != nil:
			return p.explainHarbor(err)
		case project.Proxy:
			errs = append(errs, fmt.Errorf("project %s at %s is a proxy cache of another registry and takes no pushes: use another project (--rename, or --registry %s/PROJECT)", name, p.session.host, p.session.host))
		default:
			if found.Quota, err = p.checkQuota(ctx, site, name, needs[name]); err != nil {
				errs = append(errs, err)
			}
		}
		if quota := site.options.Quota; found.State == ProjectMissing && quota > 0 && needs[name] > quota {
			errs = append(errs, tooSmall(name, quota, needs[name]))
		}
		site.result.Projects = append(site.result.Projects, found)
	}
	if len(errs) > 0 {
		return fmt.Errorf("nothing was pushed: %w", errors.Join(errs...))
	}
	return nil
}

// checkQuota wants room for what the project has to hold. What is there already is part of that, so only the limit counts.
func (p *pusher) checkQuota(ctx context.Context, site *harborSite, name string, need int64) (int64, error) {
	var hard int64
	err := p.harborCall(ctx, "quota of project "+name, func(ctx context.Context) (err error) { hard, _, err = site.client.Quota(ctx, name); return err })
	if err != nil { // not everybody may see it; pushes say it then
		p.options.Logger.DebugContext(ctx, "the project's quota is not known", "project", name, "error", p.explainHarbor(err))
		return 0, nil
	}
	if hard > 0 && need > hard {
		return hard, tooSmall(name, hard, need)
	}
	return hard, nil
}

func tooSmall(project string, quota, need int64) error {
	return fmt.Errorf("project %s has a storage quota of %d bytes, and what it is to hold takes %d: raise it (Administration > Project Quotas), or push less with --item and --platform", project, quota, need)
}

// createProjects makes the projects that are missing.
func (p *pusher) createProjects(ctx context.Context, site *harborSite) error {
	for i := range site.result.Projects {
		project := &site.result.Projects[i]
		if project.State != ProjectMissing && project.State != ProjectUnknown {
			continue
		}
		ask := harbor.Project{Name: project.Name, Public: site.options.Public, Quota: site.options.Quota}
		err := p.harborCall(ctx, "create project "+project.Name, func(ctx context.Context) error { return site.client.CreateProject(ctx, ask) })
		switch {
		case errors.Is(err, harbor.ErrExists):
			project.State, site.fresh[project.Name] = ProjectExists, false
		case errors.Is(err, harbor.ErrDenied) && project.State == ProjectUnknown:
			site.refused[project.Name] = err
		case errors.Is(err, harbor.ErrDenied):
			return errors.New(p.session.mayNotCreate(project.Name, err))
		case err != nil:
			return p.explainHarbor(err)
		default:
			project.State, site.fresh[project.Name] = ProjectCreated, true
			p.checkNewQuota(ctx, site, project)
		}
	}
	for _, j := range p.jobs {
		if j.repo != nil {
			j.repo.forgetToken() // what it was given before the project was there allows nothing
		}
	}
	return nil
}

func (s *session) mayNotCreate(project string, err error) string {
	return fmt.Sprintf("project %s does not exist at %s, and %s may not create it%s: ask an administrator for the project, or for the right to create projects",
		project, s.host, s.who(), harborWords(err))
}

// checkNewQuota warns where Harbor has ignored the quota: it does so unless an administrator asks.
func (p *pusher) checkNewQuota(ctx context.Context, site *harborSite, project *HarborProject) {
	want := site.options.Quota
	if want == 0 {
		return
	}
	var hard int64
	err := p.harborCall(ctx, "quota of project "+project.Name, func(ctx context.Context) (err error) { hard, _, err = site.client.Quota(ctx, project.Name); return err })
	if project.Quota = hard; err == nil && hard != max(want, -1) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.warnings = append(p.warnings, fmt.Sprintf("project %s has a storage quota of %d bytes, not the %d asked for: only system administrators of Harbor can set it", project.Name, hard, want))
	}
}

func harborWords(err error) string {
	if e, ok := errors.AsType[*harbor.Error](err); ok && e.Words != "" {
		return " (" + e.Words + ")"
	}
	return ""
}

// makeRobot makes the account that hosts pull with.
func (p *pusher) makeRobot(ctx context.Context) error {
	site := p.session.harbor
	if site == nil || site.options.Robot == "" || p.options.DryRun {
		return nil
	}
	var projects []string
	for _, project := range site.result.Projects {
		projects = append(projects, project.Name)
	}
	robot, err := site.client.GrantPull(ctx, site.options.Robot, projects) // not again by itself: the secret of a first try would be lost
	if errors.Is(err, harbor.ErrDenied) {
		return fmt.Errorf("%s may not make robot account %s at %s%s: one for several projects takes a system administrator, one for a project its administrator",
			p.session.who(), site.options.Robot, p.session.host, harborWords(err))
	}
	if err != nil {
		return p.explainHarbor(err)
	}
	site.result.Robot = &HarborRobot{Name: robot.Name, Secret: robot.Secret}
	return nil
}
