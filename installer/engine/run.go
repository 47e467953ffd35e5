package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// DefaultHosts is the default of Options.Parallel.
const DefaultHosts = 20

// A Run is one operation in progress.
type Run struct {
	*task.Site
	Options   Options
	Operation Operation
	planner   Planner
	// Between are the cluster's releases on the way of an upgrade, before its own.
	Between []*manifest.Cluster
	// LeadHost is nil before FindLead. recordedEndpoint is the endpoint recorded there, "" if it is not a node.
	LeadHost         *task.Host
	recordedEndpoint string
	// Excluded hosts are not connected to. Gone means that Scope.Changing lists hosts that will never be reached.
	Excluded []string
	Gone     bool
	Sessions map[string]*Session // by the host's name
	Claims   Claims              // of addresses to probe
	Journal  *Journal
	Recorder *recorder
	Began    time.Time // zero before the work directory is locked
	// Finish, if set, is called after the work, before hosts are disconnected.
	Finish func(ctx context.Context, err error) error

	mu     sync.Mutex // guards the fields below and the order of events
	Report Report
}

// Start locks the work directory, connects to hosts and locks them, does the work, and releases everything.
func (r *Run) Start(ctx context.Context, work func(ctx context.Context) error) (_ Report, err error) {
	defer func() { err = errors.Join(err, r.Dir.Close()) }()
	if !r.DryRun {
		if err := r.Dir.Lock(task.ThisOwner(r.Now())); err != nil {
			return Report{}, err
		}
	}
	if err := r.rememberValues(); err != nil {
		return Report{}, err
	}
	log, err := r.Dir.OpenLog()
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	r.Journal = &Journal{Mask: r.Mask, Now: r.Now, Writer: log, commandRan: r.Recorder.commandRan}
	begin := r.Now()
	r.Began = begin
	defer r.Disconnect()
	if r.Finish != nil {
		defer func() { err = errors.Join(err, r.Finish(context.WithoutCancel(ctx), err)) }()
	}
	lost := r.Connect(ctx)
	if lost != nil && (!r.Operation.tolerant || len(r.Connected()) == 0) {
		return r.Report, r.explainUnreached(ctx, lost)
	}
	if len(r.Operation.Roles) > 0 {
		lost = nil // the work itself checks for the hosts that it needs
	}
	release, err := r.lockAll(ctx)
	defer release()
	if err == nil && r.Operation.lead {
		err = r.FindLead(task.InTask(ctx, "connect"))
	}
	if err == nil && r.Operation.lead {
		err = r.findOtherAddresses(task.InTask(ctx, "connect"))
	}
	if err == nil {
		err = work(ctx)
	}
	err = errors.Join(err, lost)
	if _, missing := r.Dir.Read(task.AdminConfFile); missing == nil {
		r.Report.Kubeconfig = r.Dir.Join(task.AdminConfFile)
	}
	r.Report.Duration = r.Now().Sub(begin)
	return r.Report, err
}

// complete returns the options with defaults.
func (o Options) complete() Options {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(task.Event) {}
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultHosts
	}
	if o.StallLimit <= 0 {
		o.StallLimit = StallLimit
	}
	if o.Inventory != nil && o.Cluster != nil {
		o.Inventory = o.Inventory.WithDefaults(o.Cluster)
	}
	return o
}

// A Planner supplies a run with the parts that depend on the variant of the cluster.
type Planner struct {
	Distribution func(*manifest.Cluster) task.Distribution
	Access       func(*task.Site) (task.RegistryAccess, error)
	Files        task.FileSource
	// Demands returns the cluster's needs from a bundle, and Packages the operating system packages for roles.
	Demands  func(*manifest.Cluster) []manifest.Demand
	Packages func(c *manifest.Cluster, roles []manifest.Role, distribution string) ([]string, error)
}

// New prepares a run. It opens the work directory and connects to nothing.
func New(o Options, v Operation, p Planner) (*Run, error) {
	o = o.complete()
	dir, err := task.OpenWorkDir(o.WorkDir, o.DryRun)
	if err != nil {
		return nil, err
	}
	r := &Run{Options: o, Operation: v, planner: p, Recorder: NewRecorder(o), Sessions: map[string]*Session{}}
	r.Site = &task.Site{
		Source: task.NewSource(o.Bundle, o.Groups), Inputs: o.Inputs, Consent: o.Consent,
		Output: task.Output{
			Tell: r.Tell, Mask: task.NewMasker(), Logger: o.Logger,
			Note: func(ctx context.Context, host, text string) { r.Journal.write(ctx, host, text, "") },
		},
		Lead: func() *task.Host { return r.LeadHost }, RecordedEndpoint: func() string { return r.recordedEndpoint },
		Scope: task.Scope{Hosts: o.Limit, Without: o.Without}, Rule: v.rule, Dir: dir, Verified: new(task.Verification),
		Parallel: o.Parallel, Registry: p.Access, Files: p.Files, Now: o.Now,
	}
	r.SetCluster(r.Site, o.Cluster)
	r.Report.Log, r.Report.Page = dir.Join(task.LogFile), dir.Join(ReportFile)
	return r, nil
}

// rememberValues writes the values that the site gave, and its groups, for later runs.
func (r *Run) rememberValues() error {
	if r.DryRun {
		return nil
	}
	for _, one := range []struct {
		name string
		data []byte
	}{{marks.SiteValues, r.Options.SiteValues}, {marks.SiteGroups, r.Options.SiteGroups}} {
		if one.data == nil {
			continue
		}
		if err := r.Dir.Write(one.name, one.data); err != nil {
			return err
		}
	}
	return nil
}

// SetCluster sets the cluster of a site, and the fields derived from it.
func (r *Run) SetCluster(s *task.Site, c *manifest.Cluster) {
	s.Cluster = c.WithDefaults()
	s.ClusterOn = s.Cluster.ForHosts(r.Options.Inventory)
	s.Distribution = r.planner.Distribution(s.Cluster)
	s.Demands = r.planner.Demands(s.Cluster)
	s.Packages = task.NewRolePackages(s.Cluster, len(s.Distributions()) > 0, r.planner.Packages)
}

// ChangeSite replaces the site by a changed copy.
func (r *Run) ChangeSite(change func(*task.Site)) {
	r.Site = r.Site.With(change)
	if r.LeadHost != nil {
		r.LeadHost = r.HostNamed(r.LeadHost.Name)
	}
}

// TaskOn runs a task on one host.
func (r *Run) TaskOn(ctx context.Context, phase string, step task.Task, t *task.Host) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx = task.InTask(ctx, phase+"/"+step.Name)
	begin := r.Now()
	event := task.Event{Phase: phase, Task: step.Name, Host: t.Name, State: task.Started}
	r.Tell(event)
	state, err := r.lookAndDo(ctx, step, t, &event)
	event.State, event.Duration = state, plain.Duration(r.Now().Sub(begin))
	if err == nil {
		r.Tell(event)
		return nil
	}
	event.State = task.Failed
	cause := context.Cause(ctx)
	interrupted := cause != nil && errors.Is(err, cause)
	if interrupted {
		event.State = task.Stopped
	}
	event.Message = r.Mask.Mask(err.Error())
	r.Tell(event)
	var (
		blocked   *precheck.BlockedError
		unreached *precheck.UnreachableError
	)
	if interrupted || errors.As(err, &blocked) || errors.As(err, &unreached) {
		return err // the error is complete
	}
	return &TaskError{Phase: phase, Task: step.Name, Host: t.Name, Err: err}
}

// TargetsOf returns the hosts that a task runs on, in the order of the inventory.
func TargetsOf(s *task.Site, step task.Task) []*task.Host {
	if step.Where == task.Here {
		return []*task.Host{{Site: s}}
	}
	all := s.WithRole(step.Roles...)
	if step.Where == task.First && slices.Contains(step.Roles, manifest.RoleControlPlane) {
		return []*task.Host{s.FirstControlPlane()}
	}
	if step.Where == task.First {
		return all[:min(1, len(all))]
	}
	if step.Where == task.Reached {
		return slices.DeleteFunc(all, func(t *task.Host) bool { return t.Err != nil })
	}
	return slices.DeleteFunc(all, func(t *task.Host) bool {
		follows := step.Follows && s.Scope.RunFollowers && t.Conn != nil && !t.Failed
		return !follows && !s.IsWanted(t)
	})
}

// Tell reports an event and counts it.
func (r *Run) Tell(e task.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Version, e.Time = 1, r.Now()
	if e.Task != "" {
		switch e.State {
		case task.Changed, task.Would:
			r.Report.Changed++
		case task.Done:
			r.Report.Done++
		}
	}
	r.Recorder.event(e)
}
