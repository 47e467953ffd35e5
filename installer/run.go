package installer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const defaultHosts = 20

// A run is one installation under way.
type run struct {
	Options
	cluster *manifest.Cluster
	dir     *workDir
	mask    *masker
	journal *journal
	targets []*Target
	items   []bundle.Item // of the bundle
	claimed claims        // addresses that one host asks for
	// on returns the cluster as it is on a host, packages what hosts need of their distribution.
	on       func(manifest.Host) (*manifest.Cluster, error)
	packages rolePackages
	// repositories are what hosts get packages from.
	repositories osRepositories
	// leaving says that the run takes things away: it needs no helper, and a host that is gone does not stop it.
	leaving bool
	// visiting says that the run only looks at hosts for a precheck.
	visiting bool
	// parting says that connections to hosts end when they are not used, see visit.go.
	parting bool

	secretsMu sync.Mutex // guards the making of secrets

	mu       sync.Mutex // guards what follows, and the order of events
	report   Report
	contents map[digest.Digest]string // kind and reference of the items whose content hosts were offered
}

// Run installs, or continues an installation, or finds that there is nothing to do. A task that fails on a host lets
// the other hosts finish that task, and then the run ends; the error joins a *TaskError for every host that failed.
// What was done stays, and the next run goes on from there.
func Run(ctx context.Context, o Options) (Report, error) {
	phases := Plan(o.Cluster)
	for _, name := range o.Phases {
		if !slices.ContainsFunc(phases, func(p Phase) bool { return p.Name == name }) {
			return Report{}, fmt.Errorf("there is no phase %q; the phases are %s", name, phaseNames(phases))
		}
	}
	_, versions := catalog.Check(o.Cluster)
	if err := errors.Join(o.Cluster.CheckInstall(), o.Inventory.CheckInstall(), versions); err != nil {
		return Report{}, err
	}
	r, err := newInstall(o)
	if err != nil {
		return Report{}, err
	}
	return r.start(ctx, func(ctx context.Context) error {
		err := r.checkMembers(inTask(ctx, "connect"))
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
	r.journal = &journal{mask: r.mask, now: r.Now, w: log}
	begin := r.Now()
	defer r.disconnect()
	lost := r.connect(ctx)
	if lost != nil && (!r.leaving || len(r.connected()) == 0) {
		return r.report, lost
	}
	release, err := r.lockAll(ctx)
	defer release()
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

// newInstall prepares a run that needs hosts that fit the cluster.
func newInstall(o Options) (*run, error) {
	if err := o.Inventory.Check(o.Cluster); err != nil {
		return nil, err
	}
	return newRun(o)
}

func newRun(o Options) (*run, error) {
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
	dir, err := openWorkDir(o.WorkDir, o.DryRun)
	if err != nil {
		return nil, err
	}
	r := &run{Options: o, cluster: o.Cluster.WithDefaults(), dir: dir, mask: newMasker()}
	if o.Bundle != nil {
		r.items = o.Bundle.Index().Items
	}
	r.on = r.cluster.ForHosts(o.Inventory)
	r.packages = rolePackages{cluster: r.cluster, wanted: len(r.distributions()) > 0, known: map[string][]string{}}
	r.report.Log = dir.join(logFile)
	return r, nil
}

// phases runs the phases in order and stops at the first that fails.
func (r *run) phases(ctx context.Context, phases []Phase) error {
	for _, p := range phases {
		if len(r.Phases) > 0 && !slices.Contains(r.Phases, p.Name) {
			continue
		}
		begin := r.Now()
		r.tell(Event{Phase: p.Name, State: Started})
		for _, task := range p.Tasks {
			if err := r.task(ctx, p.Name, task); err != nil {
				r.tell(Event{Phase: p.Name, State: Failed, Duration: r.Now().Sub(begin)})
				return err
			}
		}
		r.tell(Event{Phase: p.Name, State: Done, Duration: r.Now().Sub(begin)})
	}
	return nil
}

// task runs a task on its hosts.
func (r *run) task(ctx context.Context, phase string, task Task) error {
	if task.Where == OneByOne {
		for _, t := range r.targetsOf(task) {
			if err := r.taskOn(ctx, phase, task, t); err != nil {
				return err
			}
		}
		return nil
	}
	return r.onAll(r.targetsOf(task), func(_ int, t *Target) error { return r.taskOn(ctx, phase, task, t) })
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
	state, err := r.lookAndDo(ctx, task, t, event)
	event.State, event.Duration = state, r.Now().Sub(begin)
	if err == nil {
		r.tell(event)
		return nil
	}
	event.State = Failed
	event.Message = r.mask.mask(err.Error())
	r.tell(event)
	var (
		blocked   *precheck.BlockedError
		unreached *precheck.UnreachableError
	)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) || errors.As(err, &blocked) || errors.As(err, &unreached) {
		return err // it says everything itself
	}
	return &TaskError{Phase: phase, Task: task.Name, Host: t.Name, Err: err}
}

// lookAndDo does a task where looking finds that it has to be done.
func (r *run) lookAndDo(ctx context.Context, task Task, t *Target, e Event) (State, error) {
	if task.Done == nil {
		if r.DryRun && !task.Look {
			return Skipped, nil
		}
		return Done, task.Do(ctx, t)
	}
	ok, err := r.isDone(ctx, task, t)
	switch {
	case err != nil:
		return Failed, err
	case ok:
		return Done, nil
	case r.DryRun:
		return Would, nil
	}
	if err := r.place(ctx, t, task.Files, e); err != nil {
		return Failed, err
	}
	return Changed, task.Do(ctx, t)
}

func (r *run) isDone(ctx context.Context, task Task, t *Target) (bool, error) {
	if ok, err := r.placed(ctx, t, task.Files); err != nil || !ok {
		return false, err
	}
	return task.Done(ctx, t)
}

// targetsOf returns the hosts that a task runs on, in the order of the inventory.
func (r *run) targetsOf(task Task) []*Target {
	if task.Where == Here {
		return []*Target{{run: r}}
	}
	all := r.withRole(task.Roles...)
	if task.Where == First {
		return all[:min(1, len(all))]
	}
	return slices.DeleteFunc(all, func(t *Target) bool { return !r.isWanted(t) })
}

// withRole returns the hosts that have one of the roles; every host if none is named.
func (r *run) withRole(roles ...manifest.Role) []*Target {
	var list []*Target
	for _, t := range r.targets {
		if len(roles) == 0 || slices.ContainsFunc(roles, t.Is) {
			list = append(list, t)
		}
	}
	return list
}

// firstControlPlane is where the cluster begins, and where kubectl runs.
func (r *run) firstControlPlane() *Target { return r.withRole(manifest.RoleControlPlane)[0] }

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
	r.Progress(e)
}
