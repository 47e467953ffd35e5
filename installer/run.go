package installer

import (
	"context"
	"errors"
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
	lead    *Target // see findLead; nil before it
	// madeWith is the endpoint that the lead remembers, "" if it is no node.
	madeWith string
	items    []bundle.Item // of the bundle
	claimed  claims        // addresses that one host asks for
	// on returns the cluster as it is on a host, packages what hosts need of their distribution.
	on       func(manifest.Host) (*manifest.Cluster, error)
	packages rolePackages
	// following says that tasks whose outcome depends on which hosts there are run on all hosts, whatever Limit is.
	following bool
	// change, if set, is which nodes the run adds or deletes.
	change *nodeChange
	// deleting says that the run takes nodes out of a cluster that goes on.
	deleting bool
	// repositories are what hosts get packages from.
	repositories osRepositories
	// leaving says that the run takes things away: it needs no helper, and a host that is gone does not stop it.
	leaving bool
	// alone says that the run is about the hosts of Limit and needs no other.
	alone bool
	// only, if any, are the roles of the hosts that the run works on, those that can be reached; without are hosts that it does not
	// even try.
	only    []manifest.Role
	without []string
	// limitable says that the operation can be limited to hosts.
	limitable bool
	// upgrading says that nodes may be of another version of the cluster.
	upgrading bool
	// visiting says that the run only looks at hosts for a precheck.
	visiting bool
	// anyCluster says that whatever cluster is there is looked at.
	anyCluster bool
	// parting says that connections to hosts end when they are not used, see visit.go.
	parting bool

	secretsMu sync.Mutex // guards the making of secrets

	began    time.Time // zero before the work directory is ours
	verified verification
	recorder *recorder
	// finish, if set, is called when the work has ended, while hosts are still connected to.
	finish func(ctx context.Context, err error) error

	mu       sync.Mutex // guards what follows, and the order of events
	report   Report
	contents map[digest.Digest]string // kind and reference of the items whose content hosts were offered
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
	r, err := newInstall(o)
	if err != nil {
		return Report{}, err
	}
	r.finish, r.limitable = r.keepReport, true
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
	if lost != nil && (!r.leaving && len(r.only) == 0 || len(r.connected()) == 0) {
		return r.report, r.missed(ctx, lost)
	}
	if len(r.only) > 0 {
		lost = nil // the work knows which hosts it cannot do without
	}
	release, err := r.lockAll(ctx)
	defer release()
	if err == nil && !r.leaving && !r.alone {
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
	if o.StallLimit <= 0 {
		o.StallLimit = StallLimit
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
	r.report.Log, r.report.Page = dir.join(logFile), dir.join(reportFile)
	r.recorder = newRecorder(o)
	r.Progress = r.recorder.event
	return r, nil
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
		follows := task.Follows && r.following && t.on != nil && !t.fell
		return !follows && !r.isWanted(t)
	})
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
