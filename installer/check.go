package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/capped"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/manifest"
)

// Precheck looks at all hosts and reports what would make an installation fail. Hosts that cannot be reached are part
// of the report. Nothing is changed: the helper is put on hosts and taken away again where nothing was installed yet.
// Bundle may be nil; what it holds is not checked then. Progress is told when a host is being looked at and when it was:
// as the task "visit", which fails where the host could not be asked. With Recorded nobody is asked.
func Precheck(ctx context.Context, o Options) (precheck.Report, error) {
	o.DryRun = true
	if o.Hosts <= 0 {
		o.Hosts = precheckHosts
	}
	r, err := newInstall(o)
	if err != nil {
		return precheck.Report{}, err
	}
	r.visiting = true
	r.journal = &journal{mask: r.mask, now: r.Now, w: discard{}}
	r.parting = true
	defer r.dir.close()
	defer r.disconnect()
	if r.Recorded != nil {
		return r.recorded(ctx)
	}
	if err := r.findTargets(); err != nil {
		return precheck.Report{}, err
	}
	// Each host is looked at as soon as it is connected to: those that hang do so side by side, and not one phase after
	// the other.
	_ = r.onAll(r.needed(), func(_ int, t *Target) error {
		r.visited(t.Name, nil)
		t.visit(ctx)
		r.visited(t.Name, &t.known)
		return nil // the report says what is wrong with the host
	})
	var report precheck.Report
	ctx = inTask(ctx, "precheck")
	if err = r.checkMembers(ctx); ctx.Err() == nil && (err == nil || isGone(err)) {
		report, err = r.evaluate(ctx)
	}
	stopped := context.Cause(ctx)
	ctx = context.WithoutCancel(ctx) // who gives up is not left with our helpers either
	return report, errors.Join(err, stopped, r.onAll(r.connected(), func(_ int, t *Target) error {
		if err := t.forgetHelper(ctx); t.failure == nil && !isGone(err) {
			return err
		}
		return nil // the report says what is wrong with the host
	}))
}

// forgetHelper removes the helper from a host on which there is nothing else of ours, unless another run is at work
// there, which needs it.
func (t *Target) forgetHelper(ctx context.Context) error {
	ctx, cancel := bounded(ctx, factsTimeout)
	defer cancel()
	nothing, err := notInstalled(ctx, t)
	if err != nil || !nothing {
		return err
	}
	if there, err := t.test(ctx, "test", "-d", stateDir); err != nil || !there {
		return err
	}
	err = t.forget(ctx, "flock", "--nonblock", "--conflict-exit-code", strconv.Itoa(lockConflict), lockPath)
	var failed *host.ExitError
	if errors.As(err, &failed) && failed.Code == lockConflict {
		return nil
	}
	return err
}

// precheckTask stops the run if something would make it fail later.
func precheckTask() Task {
	return Task{
		Name:  "precheck",
		Where: Here,
		Look:  true,
		Do: func(ctx context.Context, t *Target) error {
			report, err := t.run.examine(ctx)
			if err != nil {
				return err
			}
			for _, result := range report.Results {
				t.run.tellResult(result)
			}
			t.run.recorder.examined(report)
			if err := t.run.tellIgnored(ctx); err != nil {
				return err
			}
			if t.run.Force {
				return nil
			}
			return report.Err()
		},
	}
}

// tellResult reports a check that failed.
func (r *run) tellResult(result precheck.Result) {
	if result.OK || result.Level == precheck.Off {
		return
	}
	state := Failed
	if result.Level == precheck.Warn {
		state = Warned
	}
	r.tell(Event{
		Phase: "precheck", Task: "precheck", Host: result.Host, State: state,
		Message: fmt.Sprintf("wanted: %s; found: %s; fix: %s", result.Title, result.Found, result.Fix),
	})
}

// examine looks at all hosts and evaluates all checks.
func (r *run) examine(ctx context.Context) (precheck.Report, error) {
	_ = r.onAll(r.needed(), func(_ int, t *Target) error {
		t.known = t.examine(ctx)
		return nil // the report says what is wrong with the host
	})
	return r.evaluate(ctx)
}

// evaluate tries the ways between the hosts and evaluates all checks. The error is what is wrong on this side: a bundle
// or hooks that do not fit the cluster.
func (r *run) evaluate(ctx context.Context) (precheck.Report, error) {
	in, err := r.input(ctx)
	if err != nil {
		return precheck.Report{}, err
	}
	targets := r.needed()
	in.Hosts = make([]precheck.Host, len(targets))
	for i, t := range targets {
		in.Hosts[i] = t.known
	}
	if r.Recorded == nil && r.Selection.TriesLinks() {
		in.Links = r.links(ctx, in.Hosts, targets)
	}
	if ctx.Err() != nil { // what is known is not all that would be
		return precheck.Report{}, context.Cause(ctx)
	}
	return r.judge(in)
}

// architectures are those that the bundle is for.
func (r *run) architectures() []string {
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
func (t *Target) examine(ctx context.Context) precheck.Host {
	h := precheck.Host{Host: t.Host, Err: t.failure, SSH: t.ssh}
	if t.on == nil || t.failure != nil {
		return h
	}
	h.Space, h.Err = t.boundedSpace(ctx)
	if lacks := (*MissingError)(nil); t.run.visiting && errors.As(h.Err, &lacks) {
		h.Space, h.Err = nil, nil // how much is not known, and what the bundle lacks is in the report
	}
	if h.Err != nil {
		return h
	}
	probe := t.probe(h)
	probe.Vacant = t.run.claimed.claim(probe.Vacant)
	h.Sent = t.run.Now()
	facts, err := t.facts(ctx, probe)
	h.Received = t.run.Now()
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
func (t *Target) probe(h precheck.Host) node.Probe {
	c, err := t.run.on(t.Host)
	if err != nil {
		c = t.run.cluster // the report says what is wrong with the host's settings
	}
	p := precheck.ProbeFor(c, h)
	p.Packages = t.run.packages.of(t.Roles)
	t.run.Selection.Spare(&p)
	return p
}

func (t *Target) boundedSpace(ctx context.Context) ([]precheck.Space, error) {
	ctx, cancel := bounded(ctx, spaceTimeout)
	defer cancel()
	return t.space(ctx)
}

// claims lets one host alone ask the network for an address: the others would hear its questions.
type claims struct {
	mu   sync.Mutex
	list []netip.Addr
}

// claim returns those of the addresses that no other host has claimed.
func (c *claims) claim(addresses []netip.Addr) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	mine := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return slices.Contains(c.list, a) })
	c.list = append(c.list, mine...)
	return mine
}

// facts asks the helper.
func (t *Target) facts(ctx context.Context, probe node.Probe) (node.Facts, error) {
	ctx, cancel := bounded(ctx, t.factsLimit())
	defer cancel()
	question, err := json.Marshal(probe)
	if err != nil {
		return node.Facts{}, err
	}
	out := &capped.Buffer{Most: maxFile}
	err = t.on.Run(withoutOutput(ctx), host.Cmd{Args: []string{host.HelperPath, "facts"}, Stdin: bytes.NewReader(question), Stdout: out})
	if err != nil {
		return node.Facts{}, err
	}
	var facts node.Facts
	if err := json.Unmarshal(out.Bytes(), &facts); err != nil {
		return node.Facts{}, fmt.Errorf("%s: facts: %w", t.Name, err)
	}
	if facts.Version != node.FactsVersion {
		return node.Facts{}, fmt.Errorf("%s: the helper speaks version %d of facts, this kkbundle %d", t.Name, facts.Version, node.FactsVersion)
	}
	return facts, nil
}

// checkBundle finds what the bundle lacks for these hosts: every need of every task, for the hosts that it runs on.
func (r *run) checkBundle(ctx context.Context) error {
	if r.Bundle == nil {
		return nil
	}
	missing := map[string]error{}
	var order []string
	for _, phase := range Plan(r.cluster) {
		for _, task := range phase.Tasks {
			for _, need := range task.Needs() {
				for _, platform := range r.platforms(task, need) {
					_, err := r.components(need, platform)
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
		errs = append(errs, r.checkImagePlatforms(ctx))
	}
	for _, a := range r.cluster.Addons {
		if err := r.checkAddon(a); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checkImagePlatforms looks for the images of the hosts' roles for the hosts' architectures.
func (r *run) checkImagePlatforms(ctx context.Context) error {
	var errs []error
	for _, d := range Needed(r.cluster) {
		if d.Kind != manifest.ItemImage {
			continue
		}
		items, err := r.components(d.Need, "")
		if err != nil {
			return err
		}
		for _, arch := range r.archesOf(d.Roles) {
			for _, it := range items {
				_, has, err := r.Bundle.Narrow(ctx, it, isFor(arch))
				if err != nil {
					return err
				}
				if !has {
					errs = append(errs, &MissingError{Kind: d.Kind, Name: d.Name, Ref: it.Ref, Platform: "linux/" + arch})
				}
			}
		}
	}
	return errors.Join(errs...)
}

// archesOf returns the architectures of the hosts with one of the roles, as far as they are known.
func (r *run) archesOf(roles []manifest.Role) []string {
	var list []string
	for _, t := range r.withRole(roles...) {
		if t.Arch != "" && !slices.Contains(list, t.Arch) {
			list = append(list, t.Arch)
		}
	}
	return list
}

// isFor accepts the platforms of an architecture.
func isFor(arch string) func(platform string) bool {
	own := "linux/" + arch
	return func(platform string) bool { return platform == own || strings.HasPrefix(platform, own+"/") }
}

// platforms returns those of the hosts that a task runs on, where they matter to a need.
func (r *run) platforms(task Task, need manifest.Need) []string {
	if need.Kind != manifest.ItemFile {
		return []string{""}
	}
	var list []string
	for _, t := range r.targetsOf(task) {
		if t.Arch != "" {
			list = append(list, "linux/"+t.Arch)
		}
	}
	return list
}
