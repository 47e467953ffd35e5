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

// An UnhealthyError is a cluster with failed checks.
type UnhealthyError struct {
	Findings report.Findings
	// Shown means that the findings were printed: the error does not list them again.
	Shown bool
}

// Error lists the failed checks.
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

// Hint returns the remedy of the first failed check, and commands that show more.
func (e *UnhealthyError) Hint() string {
	if e.Shown {
		return "see the remedies above; kkbundle support-bundle collects the logs"
	}
	for _, f := range e.Findings {
		if f.State == report.Failed && f.Fix != "" {
			return f.Fix + "; kkbundle status looks again, kkbundle support-bundle collects the logs"
		}
	}
	return "kkbundle status looks again, kkbundle support-bundle collects the logs"
}

// errNothing means that a task has nothing to prove in this cluster.
var errNothing = errors.New("there is nothing to prove")

// AsFindings turns the errors of a task into findings of the task's name, so that the run goes on.
func AsFindings(step task.Task) task.Task {
	name, do, done := step.Name, step.Do, step.Done
	step.Do = func(ctx context.Context, t *task.Host) error {
		err := do(ctx, t)
		if ctx.Err() != nil {
			return err
		}
		if errors.Is(err, errNothing) {
			return nil
		}
		t.Site.AddFindings(ErrorFinding(name, t.Name, err))
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
			t.Site.AddFindings(ErrorFinding(name, t.Name, err))
			return true, nil
		case ok:
			t.Site.AddFindings(NewFinding(name, t.Name, report.OK, "proven before, for the same nodes"))
		}
		return ok, nil
	}
	return step
}

// WaitTask returns a task that waits for a condition. The survey reports a condition that was not met.
func WaitTask(name string, longest time.Duration, look func(ctx context.Context, t *task.Host) error) task.Task {
	return LeadTask(name, func(ctx context.Context, t *task.Host) error {
		v, most := t.Site.Verified, longest
		v.Mu.Lock()
		if len(v.Waits) > 0 {
			most = time.Second // an earlier condition, which this one depends on, was not met
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

// LeadTask returns a task of the first control plane.
func LeadTask(name string, do func(ctx context.Context, t *task.Host) error) task.Task {
	return task.Task{Name: name, Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, Do: do}
}

// momentary returns the checks of components that may answer one question late on a busy machine.
func momentary() []string { return []string{CheckAPI, checkEtcd, checkAgreement, CheckLeases} }

// SurveyTask surveys the cluster without creating anything. It repeats the survey while a momentary check fails.
func SurveyTask(ctx context.Context, t *task.Host) error {
	var list report.Findings
	var err error
	// a survey is always finished, even after settleWait
	_ = task.Eventually(ctx, settleWait, func(context.Context) error {
		var s *Survey
		s, err = NewSurvey(ctx, t.Site, t)
		list = s.Findings()
		if slices.ContainsFunc(list,
			func(f report.Finding) bool { return f.State == report.Failed && slices.Contains(momentary(), f.ID) }) {
			return &UnhealthyError{Findings: list}
		}
		return nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		list = append(list, ErrorFinding("verify-cluster", t.Name, err))
	}
	v := t.Site.Verified
	v.Mu.Lock()
	for _, name := range []string{CheckNodes, CheckPods} {
		said := slices.ContainsFunc(list,
			func(f report.Finding) bool { return f.ID == name && f.State == report.Failed })
		if wait := v.Waits[name]; wait != nil && !said {
			list = append(list, ErrorFinding(name, "", wait))
		}
	}
	v.Mu.Unlock()
	t.Site.AddFindings(list...)
	return nil
}

// OutsideNames asks the cluster's DNS for a name that never exists (RFC 6761), if CoreDNS forwards to nameservers.
// "No such name" is an answer of the nameservers.
func OutsideNames(ctx context.Context, t *task.Host) error {
	forwards, err := addon.Forwards(ctx, t)
	if err != nil {
		return err
	}
	if !forwards {
		return errNothing
	}
	ctx, cancel := context.WithTimeout(ctx, task.LookTimeout)
	defer cancel()
	server := task.NthAddress(t.Site.Cluster.Kubernetes.ServiceCIDR[0], kube.DNSServiceIndex)
	_, err = resolver(t, net.JoinHostPort(server.String(), "53")).LookupHost(ctx, "kkbundle.invalid.")
	var answer *net.DNSError
	if err == nil || errors.As(err, &answer) && answer.IsNotFound {
		return nil
	}
	t.Site.AddFindings(NewFinding("verify-outside-names", "", report.Warning,
		fmt.Sprintf("the nameservers that CoreDNS asks do not answer: %v", err)))
	return errNothing // the warning reports it
}
