package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

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

// Verifying makes a task of the phase gather instead of stopping the run: an error is a finding of the task's name.
func Verifying(step task.Task) task.Task {
	name, do, done := step.Name, step.Do, step.Done
	step.Do = func(ctx context.Context, t *task.Host) error {
		err := do(ctx, t)
		if ctx.Err() != nil {
			return err
		}
		if errors.Is(err, errNothing) {
			return nil
		}
		t.Site.AddFindings(Judged(name, t.Name, err))
		return nil
	}
	if done == nil {
		return step
	}
	step.Done = func(ctx context.Context, t *task.Host) (bool, error) {
		ok, err := done(ctx, t)
		switch {
		case ctx.Err() != nil:
			return ok, err
		case errors.Is(err, errNothing):
			return true, nil
		case err != nil:
			t.Site.AddFindings(Judged(name, t.Name, err))
			return true, nil
		case ok:
			t.Site.AddFindings(Finding(name, t.Name, report.OK, "it was proven before, for the same nodes"))
		}
		return ok, nil
	}
	return step
}

// Waiting is a task that gives the cluster time to be so. What did not come about is for the survey to say.
func Waiting(name string, longest time.Duration, look func(ctx context.Context, t *task.Host) error) task.Task {
	return OnFirst(name, func(ctx context.Context, t *task.Host) error {
		v, most := t.Site.Verified, longest
		v.Mu.Lock()
		if len(v.Waits) > 0 {
			most = time.Second // it waits for what did not come about before
		}
		v.Mu.Unlock()
		err := task.Eventually(ctx, most, func(ctx context.Context) error { return look(ctx, t) })
		if ctx.Err() != nil || err == nil {
			return err
		}
		v.Mu.Lock()
		defer v.Mu.Unlock()
		if v.Waits == nil {
			v.Waits = map[string]error{}
		}
		v.Waits[name] = err
		return nil
	})
}

func OnFirst(name string, do func(ctx context.Context, t *task.Host) error) task.Task {
	return task.Task{Name: name, Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, Do: do}
}

// momentary are the findings about a component that answers one question late where the machines have much to do, as they have
// when a cluster has just been made.
func momentary() []string { return []string{LookAPI, lookEtcd, lookAgreement, LookLeases} }

// SurveyTask looks at everything that can be seen without making anything. What may be so for a moment is looked at again.
func SurveyTask(ctx context.Context, t *task.Host) error {
	var list report.Findings
	var err error
	_ = task.Eventually(ctx, settleWait, func(context.Context) error { // a survey that was begun is finished, however long it takes
		var s *Survey
		s, err = Look(ctx, t.Site, t)
		list = s.Findings()
		if slices.ContainsFunc(list, func(f report.Finding) bool { return f.State == report.Failed && slices.Contains(momentary(), f.ID) }) {
			return &UnhealthyError{Findings: list}
		}
		return nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		list = append(list, Judged("verify-cluster", t.Name, err))
	}
	v := t.Site.Verified
	v.Mu.Lock()
	for _, name := range []string{LookNodes, LookPods} {
		said := slices.ContainsFunc(list, func(f report.Finding) bool { return f.ID == name && f.State == report.Failed })
		if wait := v.Waits[name]; wait != nil && !said {
			list = append(list, Judged(name, "", wait))
		}
	}
	v.Mu.Unlock()
	t.Site.AddFindings(list...)
	return nil
}

// OutsideNames asks the cluster's DNS for a name that nobody has (RFC 6761), where every node has a nameserver: that there is
// none is an answer of theirs.
func OutsideNames(ctx context.Context, t *task.Host) error {
	for _, node := range t.Site.Connected(manifest.RoleCluster) {
		has, err := addon.HasNameserver(ctx, node)
		if err != nil {
			return err
		}
		if !has {
			return errNothing // the cluster's DNS is told not to ask anybody
		}
	}
	ctx, cancel := context.WithTimeout(ctx, task.LookTimeout)
	defer cancel()
	server := task.NthAddress(t.Site.Cluster.Kubernetes.ServiceCIDR[0], kube.DNSServiceIndex)
	_, err := resolver(t, net.JoinHostPort(server.String(), "53")).LookupHost(ctx, "kkbundle.invalid.")
	var answer *net.DNSError
	if err == nil || errors.As(err, &answer) && answer.IsNotFound {
		return nil
	}
	t.Site.AddFindings(Finding("verify-outside-names", "", report.Warning, fmt.Sprintf("the nameservers that CoreDNS asks do not answer: %v", err)))
	return errNothing // it was said
}
