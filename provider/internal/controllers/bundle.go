package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// A BundleReconciler reads what bundles have.
type BundleReconciler struct {
	client.Client
	Operator *hosts.Operator
	Recorder events.EventRecorder
	Timing   Timing
}

const (
	// rereadAfter is the time after which a bundle is read again: a tag may name another one.
	rereadAfter = 10 * time.Minute
	// inspectLimit is the longest time of reading a bundle's manifests.
	inspectLimit = 5 * time.Minute
)

// SetupWithManager adds the reconciler to a manager.
func (r *BundleReconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).For(&infrav1.KKBundle{}).WithOptions(o).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.ofSecret), builder.OnlyMetadata).
		Complete(r)
}

func (r *BundleReconciler) ofSecret(ctx context.Context, o client.Object) []ctrl.Request {
	var all infrav1.KKBundleList
	if err := r.List(ctx, &all, client.InNamespace(o.GetNamespace())); err != nil {
		return nil
	}
	var requests []ctrl.Request
	for _, b := range all.Items {
		for _, ref := range []*infrav1.LocalRef{b.Spec.SecretRef, b.Spec.Trust.SecretRef} {
			if ref != nil && ref.Name == o.GetName() && !conditions.IsTrue(&b, infrav1.ReadyCondition) {
				requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&b)})
			}
		}
	}
	return requests
}

// Reconcile reads a bundle, unless it was read a short time ago.
func (r *BundleReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	b := &infrav1.KKBundle{}
	if err := r.Get(ctx, req.NamespacedName, b); err != nil || !b.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, errors.Join(client.IgnoreNotFound(err), r.tidy(ctx))
	}
	if ready := conditions.Get(b, infrav1.ReadyCondition); ready != nil && ready.ObservedGeneration == b.Generation &&
		conditions.IsTrue(b, infrav1.ReadyCondition) && b.Status.ReadAt != nil {
		if left := rereadAfter - time.Since(b.Status.ReadAt.Time); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
	}
	before := client.MergeFrom(b.DeepCopy())
	result := r.read(ctx, b)
	// At once: a bundle that is ready and whose versions are not written yet would have none.
	return result, errors.Join(client.IgnoreNotFound(r.Status().Patch(ctx, b, before)), r.tidy(ctx))
}

// unusedAfter is the time after which a pulled bundle that no KKBundle names goes: a run that waits for its place may
// still want it.
const unusedAfter = 24 * time.Hour

// tidy removes the pulled bundles that no KKBundle names any more.
func (r *BundleReconciler) tidy(ctx context.Context) error {
	var all infrav1.KKBundleList
	if err := r.List(ctx, &all); err != nil {
		return err
	}
	var digests []string
	for _, b := range all.Items {
		digests = append(digests, b.Status.Digest)
	}
	return r.Operator.Keep(digests, time.Now().Add(-unusedAfter))
}

func (r *BundleReconciler) read(ctx context.Context, b *infrav1.KKBundle) ctrl.Result {
	ctx, cancel := context.WithTimeout(ctx, inspectLimit)
	defer cancel()
	source, err := bundleSource(ctx, r.Client, b)
	var c hosts.Contents
	if err == nil {
		c, err = r.Operator.Inspect(ctx, source)
	}
	switch {
	case err != nil:
	case !c.HasCluster:
		err = &MissingError{fmt.Sprintf("KKBundle %s: %s has no cluster file, so it lacks what hosts need; build it from a manifest with cluster", b.Name, b.Spec.Source)}
	case len(c.Versions) == 0:
		err = &MissingError{fmt.Sprintf("KKBundle %s: %s has no version of Kubernetes; build it from a manifest with cluster", b.Name, b.Spec.Source)}
	}
	if err != nil {
		reason, message := reasonOf(err)
		if conditions.GetMessage(b, infrav1.ReadyCondition) != message {
			r.Recorder.Eventf(b, nil, corev1.EventTypeWarning, reason, eventInspected, "%s", message)
		}
		// A bundle that was read stays ready while its registry is away. Another source begins anew.
		before := conditions.Get(b, infrav1.ReadyCondition)
		away := reason == infrav1.FailedReason || reason == infrav1.UnreachableReason
		known := before != nil && before.Status == metav1.ConditionTrue && before.ObservedGeneration == b.Generation
		setCondition(b, infrav1.ReadyCondition, away && known, reason, message)
		return ctrl.Result{RequeueAfter: max(r.Timing.Look, r.Timing.MaxBackoff/10)}
	}
	if b.Status.Digest != c.Digest {
		r.Recorder.Eventf(b, nil, corev1.EventTypeNormal, eventInspected, eventInspected, "%s %s has Kubernetes %s", c.Name, c.Version, listing(c.Versions))
	}
	b.Status.Name, b.Status.Version, b.Status.Digest, b.Status.Versions = c.Name, c.Version, c.Digest, c.Versions
	now := metav1.Now()
	b.Status.ReadAt = &now
	setCondition(b, infrav1.ReadyCondition, true, infrav1.DoneReason, "")
	return ctrl.Result{RequeueAfter: rereadAfter}
}

// bundleSource returns a bundle's address with what it takes to read it.
func bundleSource(ctx context.Context, c client.Reader, b *infrav1.KKBundle) (hosts.Bundle, error) {
	login, err := optionalSecret(ctx, c, b.Namespace, "KKBundle "+b.Name+": spec.secretRef", b.Spec.SecretRef)
	if err != nil {
		return hosts.Bundle{}, err
	}
	trust, err := optionalSecret(ctx, c, b.Namespace, "KKBundle "+b.Name+": spec.trust.secretRef", b.Spec.Trust.SecretRef)
	if err != nil {
		return hosts.Bundle{}, err
	}
	keys := trust.Data[infrav1.SecretTrust]
	if b.Spec.Trust.SecretRef != nil && len(keys) == 0 {
		return hosts.Bundle{}, &MissingError{fmt.Sprintf("KKBundle %s: spec.trust.secretRef: Secret %s has no %s; add the public keys", b.Name, trust.Name, infrav1.SecretTrust)}
	}
	return hosts.Bundle{
		Source: b.Spec.Source, Username: string(login.Data[infrav1.SecretUsername]),
		Password: string(login.Data[infrav1.SecretPassword]),
		CA:       login.Data[infrav1.SecretCA], Trust: keys,
		RequireSignature: b.Spec.Trust.RequireSignature || len(keys) > 0,
	}, nil
}
