package begin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// Precheck examines all hosts and reports what would make an installation fail. The report includes unreachable hosts.
// Nothing is changed: hosts without an installation lose the helper again. Bundle may be nil; then its content is not
// checked. Progress gets the task "visit" at the start and the end of each host's examination; the task fails if the
// host could not be asked. With Recorded no host is asked.
func Precheck(ctx context.Context, o engine.Options) (precheck.Report, error) {
	o.DryRun = true
	if o.Parallel <= 0 {
		o.Parallel = engine.PrecheckHosts
	}
	r, err := NewFitting(o, engine.Prechecking())
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
	// Each host is examined as soon as it is connected: hosts that hang do so side by side, not one phase after the
	// other.
	_ = r.OnAll(r.Needed(), func(_ int, t *task.Host) error {
		visited(r, t.Name, nil)
		visit(ctx, r, t)
		visited(r, t.Name, &r.Sessions[t.Name].Known)
		return nil // the report has the host's error
	})
	var report precheck.Report
	ctx = task.InTask(ctx, "precheck")
	if err = CheckMembers(ctx, r); ctx.Err() == nil && (err == nil || task.IsUnresponsive(err)) {
		report, err = evaluate(ctx, r)
	}
	return report, ForgetHelpers(ctx, r, err)
}

// precheckHosts examines all hosts, reports failed checks, and returns an error if the run cannot succeed.
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
	if text := etcd.QuotaWarning(r.Cluster); text != "" {
		r.Tell(task.Event{Phase: "precheck", Task: "precheck", State: task.Warned, Message: text})
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

// examineAll examines all hosts and evaluates all checks.
func examineAll(ctx context.Context, r *engine.Run) (precheck.Report, error) {
	_ = r.OnAll(r.Needed(), func(_ int, t *task.Host) error {
		r.Sessions[t.Name].Known = examine(ctx, r, t)
		return nil // the report has the host's error
	})
	return evaluate(ctx, r)
}

// evaluate tries the links between the hosts and evaluates all checks. An unfit bundle or hook is an error.
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
	if ctx.Err() != nil { // the facts are incomplete
		return precheck.Report{}, context.Cause(ctx)
	}
	return judge(r, in)
}

// architectures returns the architectures of the bundle's platforms.
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

// examine collects the facts of one host.
func examine(ctx context.Context, r *engine.Run, t *task.Host) precheck.Host {
	h := precheck.Host{Host: t.Host, Err: t.Err, SSH: r.Sessions[t.Name].SSH}
	if t.Conn == nil || t.Err != nil {
		return h
	}
	h.Space, h.Err = boundedSpace(ctx, t)
	if lacks := (*task.MissingError)(nil); r.Operation.Visits && errors.As(h.Err, &lacks) {
		h.Space, h.Err = nil, nil // the size is unknown, and the report lists the missing items
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
	// The helper read the clock at the end of its work, so that work says nothing about the clock's offset.
	h.Sent = h.Sent.Add(min(max(time.Duration(facts.Took), 0), h.Received.Sub(h.Sent)))
	h.Facts = &facts
	return h
}

// probe returns the questions to a host for the selected checks.
func probe(r *engine.Run, t *task.Host, h precheck.Host) node.Probe {
	c, err := r.ClusterOn(t.Host)
	if err != nil {
		c = r.Cluster // the report has the error in the host's settings
	}
	p := precheck.ProbeFor(c, h)
	p.Packages = r.Packages.Candidates(t.Roles)
	r.Options.Selection.Spare(&p)
	return p
}

func boundedSpace(ctx context.Context, t *task.Host) ([]precheck.Space, error) {
	ctx, cancel := task.WithTimeout(ctx, task.SpaceTimeout)
	defer cancel()
	return space(ctx, t)
}

// CheckBundle returns an error that lists missing items: every need of every task, for the task's hosts. Without the
// architecture of a host, everything would be missing there: the error is an ArchitectureError then.
func CheckBundle(ctx context.Context, r *engine.Run) error {
	if r.Bundle == nil {
		return nil
	}
	if err := checkArchitectures(r); err != nil {
		return err
	}
	missing := map[string]error{}
	var order []string
	for _, phase := range plan.Plan(r.Cluster) {
		for _, task := range phase.Tasks {
			for _, need := range task.Needs() {
				for _, platform := range Platforms(r, task, need) {
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
		if err := addon.Check(r.Site, a); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checkArchitectures checks that the bundle was built for the hosts' architectures.
func checkArchitectures(r *engine.Run) error {
	has := architectures(r)
	if len(has) == 0 {
		return nil
	}
	var errs []error
	for _, arch := range archesOf(r, nil) {
		if slices.Contains(has, arch) {
			continue
		}
		lacking := &ArchitectureError{Arch: arch, Has: has}
		for _, t := range r.Hosts {
			if t.Arch == arch {
				lacking.Hosts = append(lacking.Hosts, t.Name)
			}
		}
		errs = append(errs, lacking)
	}
	return errors.Join(errs...)
}

// An ArchitectureError means that the bundle was built without an architecture of hosts.
type ArchitectureError struct {
	Hosts []string
	Arch  string   // of the hosts, in Go's spelling
	Has   []string // architectures of the bundle
}

// Error names the hosts.
func (e *ArchitectureError) Error() string {
	return fmt.Sprintf("the bundle has nothing for %s, the architecture of %s: it was built for %s", e.Arch,
		strings.Join(e.Hosts, ", "), strings.Join(e.Has, ", "))
}

// Hint returns the remedy.
func (e *ArchitectureError) Hint() string {
	return "build the bundle again with linux/" + e.Arch +
		" under platforms in the manifest, or take these hosts out of the inventory"
}

// checkImagePlatforms checks that the bundle has each role's images for its hosts' architectures.
func checkImagePlatforms(ctx context.Context, r *engine.Run) error {
	var errs []error
	for _, d := range plan.Needed(r.Cluster) {
		if d.Kind != manifest.ItemImage {
			continue
		}
		items, err := r.Components(d.Need, "")
		if err != nil {
			return err
		}
		for _, arch := range archesOf(r, d.Roles) {
			for _, it := range items {
				has, err := serves(ctx, r, it, arch)
				if err != nil {
					return err
				}
				if !has {
					errs = append(errs, &task.MissingError{Kind: d.Kind, Name: d.Name, Ref: it.Ref, Platform: "linux/" +
						arch})
				}
			}
		}
	}
	return errors.Join(errs...)
}

// serves reports whether an image of the bundle has an architecture. An image without an index says nothing of its
// platform, but the build has noted the platforms that it was asked for in vain.
func serves(ctx context.Context, r *engine.Run, it bundle.Item, arch string) (bool, error) {
	own := task.ForArch(arch)
	if slices.ContainsFunc(strings.Split(it.Descriptor.Annotations[bundle.AnnotationLacks], ","), own) {
		return false, nil
	}
	_, has, err := r.Bundle.Narrow(ctx, it, own)
	return has, err
}

// lackingImages returns the images that lack an architecture of the cluster's hosts, by architecture. Those of tasks
// are left out: checkImagePlatforms reports them.
func lackingImages(ctx context.Context, r *engine.Run) (map[string][]string, error) {
	if r.Bundle == nil {
		return nil, nil
	}
	declared := map[string]bool{}
	for _, d := range plan.Needed(r.Cluster) {
		if d.Kind != manifest.ItemImage {
			continue
		}
		refs, err := catalog.Refs(r.Cluster, d.Need, "")
		if err != nil {
			return nil, err
		}
		for _, ref := range refs {
			declared[ref] = true
		}
	}
	lacking := map[string][]string{}
	for _, arch := range archesOf(r, []manifest.Role{manifest.RoleCluster}) {
		for _, it := range r.Items {
			if it.Kind != bundle.KindImage || declared[it.Ref] {
				continue
			}
			has, err := serves(ctx, r, it, arch)
			if err != nil {
				return nil, err
			}
			if !has {
				lacking[arch] = append(lacking[arch], it.Ref)
			}
		}
	}
	return lacking, nil
}

// archesOf returns the known architectures of the hosts with one of the roles.
func archesOf(r *engine.Run, roles []manifest.Role) []string {
	var list []string
	for _, t := range r.WithRole(roles...) {
		if t.Arch != "" && !slices.Contains(list, t.Arch) {
			list = append(list, t.Arch)
		}
	}
	return list
}

// Platforms returns the platforms of a task's hosts, or one empty platform if the need does not depend on it.
func Platforms(r *engine.Run, task task.Task, need manifest.Need) []string {
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
