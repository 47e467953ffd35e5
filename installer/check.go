package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// Precheck looks at all hosts and reports what would make an installation fail. Hosts that cannot be reached are part
// of the report. Nothing is changed: the helper is put on hosts and taken away again where nothing was installed yet.
// Bundle may be nil; what it holds is not checked then. Progress is told when a host is being looked at and when it was:
// as the task "visit", which fails where the host could not be asked. With Recorded nobody is asked.
func Precheck(ctx context.Context, o engine.Options) (precheck.Report, error) {
	o.DryRun = true
	if o.Parallel <= 0 {
		o.Parallel = engine.PrecheckHosts
	}
	r, err := newInstall(o, engine.Prechecking())
	if err != nil {
		return precheck.Report{}, err
	}
	r.Journal = &engine.Journal{Mask: r.Mask, Now: r.Now, Writer: task.Discard{}}
	defer r.Dir.Close()
	defer r.Disconnect()
	if r.Options.Recorded != nil {
		return recorded(ctx, r)
	}
	if err := r.FindTargets(); err != nil {
		return precheck.Report{}, err
	}
	// Each host is looked at as soon as it is connected to: those that hang do so side by side, and not one phase after
	// the other.
	_ = r.OnAll(r.Needed(), func(_ int, t *task.Host) error {
		visited(r, t.Name, nil)
		visit(ctx, r, t)
		visited(r, t.Name, &r.Sessions[t.Name].Known)
		return nil // the report says what is wrong with the host
	})
	var report precheck.Report
	ctx = task.InTask(ctx, "precheck")
	if err = checkMembers(ctx, r); ctx.Err() == nil && (err == nil || task.IsUnresponsive(err)) {
		report, err = evaluate(ctx, r)
	}
	stopped := context.Cause(ctx)
	ctx = context.WithoutCancel(ctx) // who gives up is not left with our helpers either
	return report, errors.Join(err, stopped, r.OnAll(r.Connected(), func(_ int, t *task.Host) error {
		if err := forgetHelper(ctx, t); t.Err == nil && !task.IsUnresponsive(err) {
			return err
		}
		return nil // the report says what is wrong with the host
	}))
}

// forgetHelper removes the helper from a host on which there is nothing else of ours, unless another run is at work
// there, which needs it.
func forgetHelper(ctx context.Context, t *task.Host) error {
	ctx, cancel := task.WithTimeout(ctx, task.FactsTimeout)
	defer cancel()
	nothing, err := notInstalled(ctx, t)
	if err != nil || !nothing {
		return err
	}
	if there, err := t.Test(ctx, "test", "-d", task.StateDir); err != nil || !there {
		return err
	}
	err = forget(ctx, t, "flock", "--nonblock", "--conflict-exit-code", strconv.Itoa(engine.LockConflict), engine.LockPath)
	var failed *host.ExitError
	if errors.As(err, &failed) && failed.Code == engine.LockConflict {
		return nil
	}
	return err
}

// precheckTask stops the run if something would make it fail later.
func precheckTask() task.Task {
	return task.Task{
		Name:     "precheck",
		Where:    task.Here,
		InDryRun: true,
		Do:       func(ctx context.Context, t *task.Host) error { return t.Site.Precheck(ctx) },
	}
}

// precheckHosts looks at all hosts, reports what checks found, and returns an error if the run cannot succeed.
func precheckHosts(ctx context.Context, r *engine.Run) error {
	report, err := examineAll(ctx, r)
	if err != nil {
		return err
	}
	for _, result := range report.Results {
		tellResult(r, result)
	}
	r.Recorder.RecordPrecheck(report)
	if err := tellIgnored(ctx, r); err != nil {
		return err
	}
	if r.Force {
		return nil
	}
	return report.Err()
}

// tellResult reports a check that failed.
func tellResult(r *engine.Run, result precheck.Result) {
	if result.OK || result.Level == precheck.Off {
		return
	}
	state := task.Failed
	if result.Level == precheck.Warn {
		state = task.Warned
	}
	r.Tell(task.Event{
		Phase: "precheck", Task: "precheck", Host: result.Host, State: state,
		Message: fmt.Sprintf("wanted: %s; found: %s; fix: %s", result.Title, result.Found, result.Fix),
	})
}

// examineAll looks at all hosts and evaluates all checks.
func examineAll(ctx context.Context, r *engine.Run) (precheck.Report, error) {
	_ = r.OnAll(r.Needed(), func(_ int, t *task.Host) error {
		r.Sessions[t.Name].Known = examine(ctx, r, t)
		return nil // the report says what is wrong with the host
	})
	return evaluate(ctx, r)
}

// evaluate tries the ways between the hosts and evaluates all checks. The error is what is wrong on this side: a bundle
// or hooks that do not fit the cluster.
func evaluate(ctx context.Context, r *engine.Run) (precheck.Report, error) {
	in, err := input(ctx, r)
	if err != nil {
		return precheck.Report{}, err
	}
	targets := r.Needed()
	in.Hosts = make([]precheck.Host, len(targets))
	for i, t := range targets {
		in.Hosts[i] = r.Sessions[t.Name].Known
	}
	if r.Options.Recorded == nil && r.Options.Selection.TriesLinks() {
		in.Links = links(ctx, r, in.Hosts, targets)
	}
	if ctx.Err() != nil { // what is known is not all that would be
		return precheck.Report{}, context.Cause(ctx)
	}
	return judge(r, in)
}

// architectures are those that the bundle is for.
func architectures(r *engine.Run) []string {
	if r.Bundle == nil {
		return nil
	}
	var list []string
	for _, platform := range r.Bundle.Index().Platforms {
		_, arch, _ := strings.Cut(platform, "/")
		arch, _, _ = strings.Cut(arch, "/")
		list = append(list, arch)
	}
	return list
}

// examine gathers what is known about one host.
func examine(ctx context.Context, r *engine.Run, t *task.Host) precheck.Host {
	h := precheck.Host{Host: t.Host, Err: t.Err, SSH: r.Sessions[t.Name].SSH}
	if t.Conn == nil || t.Err != nil {
		return h
	}
	h.Space, h.Err = boundedSpace(ctx, r, t)
	if lacks := (*task.MissingError)(nil); r.Operation.Visits && errors.As(h.Err, &lacks) {
		h.Space, h.Err = nil, nil // how much is not known, and what the bundle lacks is in the report
	}
	if h.Err != nil {
		return h
	}
	probe := probe(r, t, h)
	probe.Vacant = r.Claims.Claim(probe.Vacant)
	h.Sent = r.Now()
	facts, err := t.Facts(ctx, probe)
	h.Received = r.Now()
	if err != nil {
		h.Err = err
		return h
	}
	// The clock was read after all that took its time, which says nothing about how far it is off.
	h.Sent = h.Sent.Add(min(max(time.Duration(facts.Took), 0), h.Received.Sub(h.Sent)))
	h.Facts = &facts
	return h
}

// probe says what the host is asked for the checks that the operator wants.
func probe(r *engine.Run, t *task.Host, h precheck.Host) node.Probe {
	c, err := r.ClusterOn(t.Host)
	if err != nil {
		c = r.Cluster // the report says what is wrong with the host's settings
	}
	p := precheck.ProbeFor(c, h)
	p.Packages = r.Packages.Candidates(t.Roles)
	r.Options.Selection.Spare(&p)
	return p
}

func boundedSpace(ctx context.Context, r *engine.Run, t *task.Host) ([]precheck.Space, error) {
	ctx, cancel := task.WithTimeout(ctx, task.SpaceTimeout)
	defer cancel()
	return space(ctx, t)
}

// checkBundle finds what the bundle lacks for these hosts: every need of every task, for the hosts that it runs on.
func checkBundle(ctx context.Context, r *engine.Run) error {
	if r.Bundle == nil {
		return nil
	}
	missing := map[string]error{}
	var order []string
	for _, phase := range Plan(r.Cluster) {
		for _, task := range phase.Tasks {
			for _, need := range task.Needs() {
				for _, platform := range platforms(r, task, need) {
					_, err := r.Components(need, platform)
					if err == nil || missing[err.Error()] != nil {
						continue
					}
					missing[err.Error()] = err
					order = append(order, err.Error())
				}
			}
		}
	}
	var errs []error
	for _, text := range order {
		errs = append(errs, missing[text])
	}
	if len(errs) == 0 {
		errs = append(errs, checkImagePlatforms(ctx, r))
	}
	for _, a := range r.Cluster.Addons {
		if err := addon.CheckAddon(r.Site, a); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checkImagePlatforms looks for the images of the hosts' roles for the hosts' architectures.
func checkImagePlatforms(ctx context.Context, r *engine.Run) error {
	var errs []error
	for _, d := range Needed(r.Cluster) {
		if d.Kind != manifest.ItemImage {
			continue
		}
		items, err := r.Components(d.Need, "")
		if err != nil {
			return err
		}
		for _, arch := range archesOf(r, d.Roles) {
			for _, it := range items {
				_, has, err := r.Bundle.Narrow(ctx, it, task.ForArch(arch))
				if err != nil {
					return err
				}
				if !has {
					errs = append(errs, &task.MissingError{Kind: d.Kind, Name: d.Name, Ref: it.Ref, Platform: "linux/" + arch})
				}
			}
		}
	}
	return errors.Join(errs...)
}

// archesOf returns the architectures of the hosts with one of the roles, as far as they are known.
func archesOf(r *engine.Run, roles []manifest.Role) []string {
	var list []string
	for _, t := range r.WithRole(roles...) {
		if t.Arch != "" && !slices.Contains(list, t.Arch) {
			list = append(list, t.Arch)
		}
	}
	return list
}

// platforms returns those of the hosts that a task runs on, where they matter to a need.
func platforms(r *engine.Run, task task.Task, need manifest.Need) []string {
	if need.Kind != manifest.ItemFile {
		return []string{""}
	}
	var list []string
	for _, t := range engine.TargetsOf(r.Site, task) {
		if t.Arch != "" {
			list = append(list, "linux/"+t.Arch)
		}
	}
	return list
}
