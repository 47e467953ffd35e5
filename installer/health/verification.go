package installer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/manifest"
)

// verifyPhase is the phase that proves that the cluster works. Its tasks gather what they find; the last of them judges.
const verifyPhase = "verify"

// A verification is what the phase has found so far.
type verification struct {
	mu       sync.Mutex
	findings report.Findings
	waits    map[string]error // what did not come about in the time that it was given
}

// add records findings and tells those that are not as they should be.
func (r *Site) found(list ...report.Finding) {
	r.verified.mu.Lock()
	for i := range list {
		list[i].Found = r.mask.mask(list[i].Found)
	}
	r.verified.findings = append(r.verified.findings, list...)
	r.verified.mu.Unlock()
	for _, f := range list {
		state := Warned
		switch f.State {
		case report.OK:
			continue
		case report.Failed:
			state = Failed
		}
		r.tell(Event{Phase: verifyPhase, Task: f.ID, Host: f.Host, State: state, Message: f.Found})
	}
}

func (r *Site) findings() report.Findings {
	r.verified.mu.Lock()
	defer r.verified.mu.Unlock()
	return slices.Clone(r.verified.findings)
}

// An UnhealthyError says that looking at a cluster found what is not as it should be.
type UnhealthyError struct {
	Findings report.Findings
	// Shown says that whoever reads the error has seen the findings: it does not list them again.
	Shown bool
}

// Error lists what failed.
func (e *UnhealthyError) Error() string {
	text := "the cluster is not healthy: " + e.Findings.Summary()
	if e.Shown {
		return text
	}
	for _, f := range e.Findings {
		if f.State == report.Failed {
			text += "\n  " + strings.TrimSpace(f.ID+" "+f.Host) + ": " + strings.ReplaceAll(f.Found, "\n", "\n    ")
		}
	}
	return text
}

// Hint says where there is more.
func (e *UnhealthyError) Hint() string {
	if e.Shown {
		return "what to do is said above; kkbundle support-bundle collects the logs"
	}
	for _, f := range e.Findings {
		if f.State == report.Failed && f.Fix != "" {
			return f.Fix + "; kkbundle status looks again, kkbundle support-bundle collects the logs"
		}
	}
	return "kkbundle status looks again, kkbundle support-bundle collects the logs"
}

// errNothing says that this cluster has nothing that a task would prove.
var errNothing = errors.New("there is nothing to prove")

// verifying makes a task of the phase gather instead of stopping the run: an error is a finding of the task's name.
func verifying(task Task) Task {
	name, do, done := task.Name, task.Do, task.Done
	task.Do = func(ctx context.Context, t *Target) error {
		err := do(ctx, t)
		if ctx.Err() != nil {
			return err
		}
		if errors.Is(err, errNothing) {
			return nil
		}
		t.run.found(judged(name, t.Name, err))
		return nil
	}
	if done == nil {
		return task
	}
	task.Done = func(ctx context.Context, t *Target) (bool, error) {
		ok, err := done(ctx, t)
		switch {
		case ctx.Err() != nil:
			return ok, err
		case errors.Is(err, errNothing):
			return true, nil
		case err != nil:
			t.run.found(judged(name, t.Name, err))
			return true, nil
		case ok:
			t.run.found(finding(name, t.Name, report.OK, "it was proven before, for the same nodes"))
		}
		return ok, nil
	}
	return task
}

// waiting is a task that gives the cluster time to be so. What did not come about is for the survey to say.
func waiting(name string, longest time.Duration, look func(ctx context.Context, t *Target) error) Task {
	return onFirst(name, func(ctx context.Context, t *Target) error {
		v, most := t.run.verified, longest
		v.mu.Lock()
		if len(v.waits) > 0 {
			most = time.Second // it waits for what did not come about before
		}
		v.mu.Unlock()
		err := eventually(ctx, most, func(ctx context.Context) error { return look(ctx, t) })
		if ctx.Err() != nil || err == nil {
			return err
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.waits == nil {
			v.waits = map[string]error{}
		}
		v.waits[name] = err
		return nil
	})
}

func onFirst(name string, do func(ctx context.Context, t *Target) error) Task {
	return Task{Name: name, Roles: []manifest.Role{manifest.RoleControlPlane}, Where: First, Do: do}
}

// verifyTasks prove that the cluster works. They change nothing that lasts. Without a pod network, which is then the
// operator's to bring, there is less that can work.
func verifyTasks(c *manifest.Cluster) []Task {
	tasks := []Task{waiting(lookNodes, nodesWait, func(ctx context.Context, t *Target) error { return t.nodesAreReady(ctx) })}
	images := onFirst("verify-images", func(ctx context.Context, t *Target) error { return t.imagesAreBundled(ctx) })
	proofs := append([]Task{joinProofTask(), images}, securityChecks()...)
	if c.CNI.Type != manifest.NetworkNone {
		tasks = append(tasks, waiting(lookPods, podsWait, func(ctx context.Context, t *Target) error { return t.podsAreReady(ctx) }))
		dns := Task{
			Name:  "verify-dns",
			Roles: []manifest.Role{manifest.RoleCluster},
			Do: func(ctx context.Context, t *Target) error {
				return eventually(ctx, dnsWait, t.dnsAnswers)
			},
		}
		proofs = append([]Task{dns, onFirst("verify-outside-names", outsideNames), networkTask(), volumesTask()}, proofs...)
	}
	if isPaired(c) {
		proofs = append(proofs, verifyRegistryTask())
	}
	tasks = append(tasks, onFirst("verify-cluster", surveyTask))
	for _, one := range proofs {
		tasks = append(tasks, verifying(one))
	}
	return append(tasks, Task{Name: "verify-result", Where: Here, Do: func(_ context.Context, t *Target) error {
		if list := t.run.findings(); !list.Healthy() {
			return &UnhealthyError{Findings: list}
		}
		return nil
	}})
}

// momentary are the findings about a component that answers one question late where the machines have much to do, as they have
// when a cluster has just been made.
func momentary() []string { return []string{lookAPI, lookEtcd, lookAgreement, lookLeases} }

// surveyTask looks at everything that can be seen without making anything. What may be so for a moment is looked at again.
func surveyTask(ctx context.Context, t *Target) error {
	var list report.Findings
	var err error
	_ = eventually(ctx, settleWait, func(context.Context) error { // a survey that was begun is finished, however long it takes
		var s *survey
		s, err = t.run.survey(ctx, t)
		list = s.findings()
		if slices.ContainsFunc(list, func(f report.Finding) bool { return f.State == report.Failed && slices.Contains(momentary(), f.ID) }) {
			return &UnhealthyError{Findings: list}
		}
		return nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		list = append(list, judged("verify-cluster", t.Name, err))
	}
	v := t.run.verified
	v.mu.Lock()
	for _, name := range []string{lookNodes, lookPods} {
		said := slices.ContainsFunc(list, func(f report.Finding) bool { return f.ID == name && f.State == report.Failed })
		if wait := v.waits[name]; wait != nil && !said {
			list = append(list, judged(name, "", wait))
		}
	}
	v.mu.Unlock()
	t.run.found(list...)
	return nil
}

// outsideNames asks the cluster's DNS for a name that nobody has (RFC 6761), where every node has a nameserver: that there is
// none is an answer of theirs.
func outsideNames(ctx context.Context, t *Target) error {
	for _, node := range t.run.connected(manifest.RoleCluster) {
		has, err := node.hasNameserver(ctx)
		if err != nil {
			return err
		}
		if !has {
			return errNothing // the cluster's DNS is told not to ask anybody
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	server := nth(t.run.cluster.Kubernetes.ServiceCIDR[0], dnsServiceIndex)
	_, err := t.resolver(net.JoinHostPort(server.String(), "53")).LookupHost(ctx, "kkbundle.invalid.")
	var answer *net.DNSError
	if err == nil || errors.As(err, &answer) && answer.IsNotFound {
		return nil
	}
	t.run.found(finding("verify-outside-names", "", report.Warning, fmt.Sprintf("the nameservers that CoreDNS asks do not answer: %v", err)))
	return errNothing // it was said
}
