package installer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const defaultHosts = 20

// A run is one operation under way.
type run struct {
	*Site
	options Options
	verb    verb
	planner planner
	// speaker is the lead, see findLead; nil before it. made is the endpoint that it remembers, "" if it is no node.
	speaker *Target
	made    string
	// without are hosts that are not even tried; gone says that the hosts that change will never be reached.
	without  []string
	gone     bool
	sessions map[string]*session // by the host's name
	claimed  claims              // addresses that one host asks for
	journal  *journal
	recorder *recorder
	began    time.Time // zero before the work directory is ours
	// finish, if set, is called when the work has ended, while hosts are still connected to.
	finish func(ctx context.Context, err error) error

	mu     sync.Mutex // guards what follows, and the order of events
	report Report
}

// Run installs, or continues an installation, or finds that there is nothing to do. A host on which a task fails is left, and
// the others go on as far as they can without it; the error joins a *TaskError for every host that failed. What was done
// stays, and the next run goes on from there.
func Run(ctx context.Context, o Options) (Report, error) {
	phases, err := o.selected(Plan(o.Cluster))
	if err != nil {
		return Report{}, err
	}
	_, versions := catalog.Check(o.Cluster)
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall(), versions); err != nil {
		return Report{}, err
	}
	r, err := newInstall(o, installing())
	if err != nil {
		return Report{}, err
	}
	r.finish = r.keepReport
	return r.start(ctx, func(ctx context.Context) error {
		err := r.checkMembers(inTask(ctx, "connect"))
		if err == nil {
			err = r.checkForeign(inTask(ctx, "connect"))
		}
		if err == nil {
			err = r.checkNames(inTask(ctx, "connect"))
		}
		if err == nil {
			err = r.phases(ctx, phases)
		}
		if r.DryRun {
			err = errors.Join(err, r.onAll(r.connected(), func(_ int, t *Target) error { return t.forgetHelper(ctx) }))
		}
		return err
	})
}

// start connects to the hosts, locks them and the work directory, does the work, and lets go of everything.
func (r *run) start(ctx context.Context, work func(ctx context.Context) error) (_ Report, err error) {
	defer func() { err = errors.Join(err, r.dir.close()) }()
	if !r.DryRun {
		if err := r.dir.lock(thisOwner(r.Now())); err != nil {
			return Report{}, err
		}
	}
	log, err := r.dir.openLog()
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	r.journal = &journal{mask: r.mask, now: r.Now, w: log, worked: r.recorder.worked}
	begin := r.Now()
	r.began = begin
	defer r.disconnect()
	if r.finish != nil {
		defer func() { err = errors.Join(err, r.finish(context.WithoutCancel(ctx), err)) }()
	}
	lost := r.connect(ctx)
	if lost != nil && (!r.verb.tolerant || len(r.connected()) == 0) {
		return r.report, r.missed(ctx, lost)
	}
	if len(r.verb.roles) > 0 {
		lost = nil // the work knows which hosts it cannot do without
	}
	release, err := r.lockAll(ctx)
	defer release()
	if err == nil && r.verb.lead {
		err = r.findLead(inTask(ctx, "connect"))
	}
	if err == nil {
		err = work(ctx)
	}
	err = errors.Join(err, lost)
	if _, missing := r.dir.read(adminConfFile); missing == nil {
		r.report.Kubeconfig = r.dir.join(adminConfFile)
	}
	r.report.Duration = r.Now().Sub(begin)
	return r.report, err
}

// complete fills in what options leave out.
func (o Options) complete() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(Event) {}
	}
	if o.Hosts <= 0 {
		o.Hosts = defaultHosts
	}
	if o.StallLimit <= 0 {
		o.StallLimit = StallLimit
	}
	return o
}

// A planner is what a run has to know of the plan and of the variants of clusters.
type planner struct {
	distribution func(*manifest.Cluster) clusterDistribution
	// access returns how hosts reach the registry.
	access func(*Site) (registryAccess, error)
	// demands returns a cluster's needs from a bundle, packages the names of the packages that hosts with roles need on a
	// distribution.
	demands  func(*manifest.Cluster) []manifest.Demand
	packages func(c *manifest.Cluster, roles []manifest.Role, distribution string) ([]string, error)
}

// prepareRun prepares a run. It opens the work directory and connects to nothing.
func prepareRun(o Options, v verb, p planner) (*run, error) {
	o = o.complete()
	dir, err := openWorkDir(o.WorkDir, o.DryRun)
	if err != nil {
		return nil, err
	}
	r := &run{options: o, verb: v, planner: p, recorder: newRecorder(o), sessions: map[string]*session{}}
	r.Site = &Site{
		Source: NewSource(o.Bundle), Inputs: o.Inputs, Consent: o.Consent,
		Output: Output{
			tell: r.tell, mask: newMasker(), Logger: o.Logger,
			note: func(ctx context.Context, host, text string) { r.journal.write(ctx, host, text, "") },
		},
		lead: func() *Target { return r.speaker }, madeWith: func() string { return r.made },
		scope: Scope{Hosts: o.Limit}, rule: v.rule, dir: dir, verified: new(verification),
		parallel: o.Hosts, registry: p.access, Now: o.Now,
	}
	r.release(r.Site, o.Cluster)
	r.report.Log, r.report.Page = dir.join(logFile), dir.join(reportFile)
	return r, nil
}

// release fills in what follows from the cluster.
func (r *run) release(s *Site, c *manifest.Cluster) {
	s.cluster = c.WithDefaults()
	s.on = s.cluster.ForHosts(r.options.Inventory)
	s.distribution = r.planner.distribution(s.cluster)
	s.demands = r.planner.demands(s.cluster)
	s.packages = newRolePackages(s.cluster, len(s.distributions()) > 0, r.planner.packages)
}

// renew goes on with a site that differs by change.
func (r *run) renew(change func(*Site)) {
	r.Site = r.Site.With(change)
	if r.speaker != nil {
		r.speaker = r.target(r.speaker.Name)
	}
}

// taskOn runs a task on one host.
func (r *run) taskOn(ctx context.Context, phase string, task Task, t *Target) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx = inTask(ctx, phase+"/"+task.Name)
	begin := r.Now()
	event := Event{Phase: phase, Task: task.Name, Host: t.Name, State: Started}
	r.tell(event)
	state, err := r.lookAndDo(ctx, task, t, &event)
	event.State, event.Duration = state, r.Now().Sub(begin)
	if err == nil {
		r.tell(event)
		return nil
	}
	event.State = Failed
	cause := context.Cause(ctx)
	interrupted := cause != nil && errors.Is(err, cause)
	if interrupted {
		event.State = Stopped
	}
	event.Message = r.mask.mask(err.Error())
	r.tell(event)
	var (
		blocked   *precheck.BlockedError
		unreached *precheck.UnreachableError
	)
	if interrupted || errors.As(err, &blocked) || errors.As(err, &unreached) {
		return err // it says everything itself
	}
	return &TaskError{Phase: phase, Task: task.Name, Host: t.Name, Err: err}
}

// targetsOf returns the hosts that a task runs on, in the order of the inventory.
func (r *Site) targetsOf(task Task) []*Target {
	if task.Where == Here {
		return []*Target{{run: r}}
	}
	all := r.withRole(task.Roles...)
	if task.Where == First && slices.Contains(task.Roles, manifest.RoleControlPlane) {
		return []*Target{r.firstControlPlane()}
	}
	if task.Where == First {
		return all[:min(1, len(all))]
	}
	if task.Where == Reached {
		return slices.DeleteFunc(all, func(t *Target) bool { return t.failure != nil })
	}
	return slices.DeleteFunc(all, func(t *Target) bool {
		follows := task.Follows && r.scope.Following && t.on != nil && !t.fell
		return !follows && !r.isWanted(t)
	})
}

// tell reports an event and counts it.
func (r *run) tell(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Version, e.Time = 1, r.Now()
	if e.Task != "" {
		switch e.State {
		case Changed, Would:
			r.report.Changed++
		case Done:
			r.report.Done++
		}
	}
	r.recorder.event(e)
}
