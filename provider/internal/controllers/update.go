package controllers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
	"github.com/kkbundle/kkbundle/provider/internal/jobs"
)

// jobUpdate brings a host to another version in place.
const jobUpdate = "update"

// The parts of an update.
const (
	partDrain  = "drain"
	partHost   = "host"
	partReturn = "return"
)

// partMessage says what is done on a host.
func partMessage(part, host string) string {
	switch part {
	case partDrain:
		return "the node on host " + host + " is being drained"
	case partReturn:
		return "the node on host " + host + " is to come back"
	}
	return "at work on host " + host
}

// drainLimit is the longest time that a run waits until a node is drained, and backLimit until it is ready again. The
// next run goes on.
const (
	drainLimit = 10 * time.Minute
	backLimit  = 10 * time.Minute
)

// A NodeUpdater takes pods off a node before the work on its host, and lets them onto it again. Cluster API itself
// drains no node that is updated in place.
type NodeUpdater interface {
	// Vacate returns once the node has no pods that could run elsewhere. A node that has the version needs no work.
	Vacate(ctx context.Context, cluster types.NamespacedName, node Node, version string) error
	// Restore returns once the node is ready with the version, and takes pods.
	Restore(ctx context.Context, cluster types.NamespacedName, node Node, version string) error
}

// ToUpdate reports whether an update of a host was asked for that is not done. Spec and annotation alone say so:
// conditions are lost when the object is moved.
func ToUpdate(i *infrav1.KKInstance) bool {
	return i.Spec.Update != nil && i.Annotations[infrav1.UpdatedAnnotation] != i.Spec.Update.ID
}

// update begins the run that brings the host to the version of the instance.
func (w *instanceWork) update(ctx context.Context) (ctrl.Result, error) {
	for _, kind := range phaseConditions() {
		setCondition(w.i, kind, true, infrav1.DoneReason, "")
	}
	w.i.Status.State = infrav1.InstanceUpdating
	if wait := w.untilNextAttempt(); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	in, err := w.bundled(ctx)
	if err != nil {
		return w.lackingForUpdate(err)
	}
	if in.document, err = w.patchDocument(ctx); err != nil {
		return w.lackingForUpdate(err)
	}
	node, err := w.node(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	setCondition(w.i, infrav1.UpdatedCondition, false, infrav1.WaitingReason, "begins")
	setAnnotation(w.i, blockMoveAnnotation, "")
	if err := w.patch(ctx); err != nil {
		return ctrl.Result{}, err
	}
	prepare, do := w.updateJob(in, node)
	w.pool.Start(w.key, jobUpdate, prepare, do)
	return noResult()
}

// lackingForUpdate writes that an input is missing. Other errors are those of the API server.
func (w *instanceWork) lackingForUpdate(err error) (ctrl.Result, error) {
	var missing *MissingError
	var version *versionError
	reason := infrav1.MissingReason
	switch {
	case errors.As(err, &version):
		reason = infrav1.VersionMissingReason
	case errors.As(err, &missing):
	default:
		return ctrl.Result{}, err
	}
	if conditions.GetMessage(w.i, infrav1.UpdatedCondition) != err.Error() {
		w.Recorder.Eventf(w.i, nil, corev1.EventTypeWarning, eventFailed, jobUpdate, "%s", err)
	}
	setCondition(w.i, infrav1.UpdatedCondition, false, reason, err.Error())
	return ctrl.Result{RequeueAfter: w.Timing.Look}, nil
}

// node returns what the machine's node is found by.
func (w *instanceWork) node(ctx context.Context) (Node, error) {
	var h infrav1.KKHost
	if err := w.Live.Get(ctx, types.NamespacedName{Namespace: w.i.Namespace, Name: w.i.Spec.HostName}, &h); err != nil {
		return Node{}, err
	}
	return Node{
		Name: w.i.Name, ProviderID: idOf(w.i.Namespace, w.i.Name),
		Addresses: hosts.InternalAddresses(h.Spec.Address, h.Spec.InternalIPv4, h.Spec.InternalIPv6),
	}, nil
}

// updateJob returns what gets the bundle, and the work on the node and its host.
func (w *instanceWork) updateJob(in inputs, node Node) (jobs.Prepare, jobs.Func) {
	// A job outlives the reconciliation, so it has no part of w but its key and spec.
	r, key, spec := w.InstanceReconciler, w.key, w.i.Spec.DeepCopy()
	cluster := types.NamespacedName{Namespace: key.Namespace, Name: spec.ClusterName}
	file, prepare := r.bring(in)
	return prepare, func(ctx context.Context, reached func(string)) (any, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, r.Timing.Run, fmt.Errorf("the run took longer than %s", r.Timing.Run))
		defer cancel()
		result := provisionResult{brought: spec}
		if err := r.stillOurs(ctx, key, spec.HostName); err != nil {
			return result, err
		}
		work := hosts.Work{Host: in.host, Cluster: in.cluster, Bundle: *file, Document: in.document}
		var err error
		if result.done, err = r.Operator.CheckUpgrade(ctx, work); err != nil {
			return result, err // before the drain: a host that is not reached, or refused, keeps its pods
		}
		reached(partDrain)
		if err := within(ctx, drainLimit, func(ctx context.Context) error {
			return r.Updater.Vacate(ctx, cluster, node, in.cluster.Version)
		}); err != nil {
			return result, err
		}
		reached(partHost)
		result.done, err = r.Operator.Upgrade(ctx, work, spec.Update.Patches)
		if err != nil {
			return result, err
		}
		reached(partReturn)
		return result, within(ctx, backLimit, func(ctx context.Context) error {
			return r.Updater.Restore(ctx, cluster, node, in.cluster.Version)
		})
	}
}

// within bounds a part of a run.
func within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return do(ctx)
}

// showUpdate writes an update's progress into its condition.
func (w *instanceWork) showUpdate(job jobs.State) {
	w.i.Status.State = infrav1.InstanceUpdating
	switch {
	case !job.Ready:
		setCondition(w.i, infrav1.UpdatedCondition, false, infrav1.WaitingReason, fmt.Sprintf("waits until KKBundle %s is here", w.i.Spec.BundleRef.Name))
	case !job.Began:
		setCondition(w.i, infrav1.UpdatedCondition, false, infrav1.WaitingReason, fmt.Sprintf("waits for one of %d places; others are at work on their hosts", w.Places))
	default:
		message := partMessage(job.Phase, w.i.Spec.HostName)
		setCondition(w.i, infrav1.UpdatedCondition, false, infrav1.RunningReason, message)
	}
}

// recordUpdate writes the outcome of an update. A failed one is repeated: the node stays as it is, without new pods.
func (w *instanceWork) recordUpdate(job jobs.State) {
	if job.Err != nil {
		reason, message := reasonOf(job.Err)
		w.ended(reason)
		if w.i.Status.Attempts >= failedAttempts {
			message += fmt.Sprintf(" (%d runs failed; delete the Machine to replace it)", w.i.Status.Attempts)
		}
		setCondition(w.i, infrav1.UpdatedCondition, false, reason, message)
		w.Recorder.Eventf(w.i, nil, corev1.EventTypeWarning, eventFailed, jobUpdate, "host %s: %s", w.i.Spec.HostName, message)
		return
	}
	w.i.Status.Attempts, w.i.Status.NextAttempt = 0, nil
	if result, _ := job.Value.(provisionResult); !reflect.DeepEqual(result.brought, &w.i.Spec) {
		return // asked for anew meanwhile: the next run is for that
	}
	setAnnotation(w.i, infrav1.UpdatedAnnotation, w.i.Spec.Update.ID)
	setCondition(w.i, infrav1.UpdatedCondition, true, infrav1.DoneReason, "")
	w.Recorder.Eventf(w.i, nil, corev1.EventTypeNormal, eventProvisioned, jobUpdate, "host %s runs Kubernetes %s", w.i.Spec.HostName, w.i.Spec.Version)
}
