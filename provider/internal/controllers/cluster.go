package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// A ClusterReconciler makes sure of what a cluster's machines need: the endpoint, the bundle and the registry.
type ClusterReconciler struct {
	client.Client
	Timing Timing
}

const defaultAPIPort = 6443

// SetupWithManager adds the reconciler to a manager.
func (r *ClusterReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, o controller.Options) error {
	kind := infrav1.GroupVersion.WithKind("KKCluster")
	return ctrl.NewControllerManagedBy(mgr).For(&infrav1.KKCluster{}).WithOptions(o).
		Watches(&clusterv1.Cluster{},
			handler.EnqueueRequestsFromMapFunc(util.ClusterToInfrastructureMapFunc(ctx, kind, mgr.GetClient(),
				&infrav1.KKCluster{}))).
		Watches(&infrav1.KKHost{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace)).
		Watches(&infrav1.KKBundle{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace)).
		Watches(&infrav1.KKMachine{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace)).
		Complete(r)
}

func (r *ClusterReconciler) inNamespace(ctx context.Context, o client.Object) []ctrl.Request {
	var all infrav1.KKClusterList
	if err := r.List(ctx, &all, client.InNamespace(o.GetNamespace())); err != nil {
		return nil
	}
	var requests []ctrl.Request
	for _, c := range all.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&c)})
	}
	return requests
}

// Reconcile writes whether machines can be made.
func (r *ClusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	c := &infrav1.KKCluster{}
	if err := r.Get(ctx, req.NamespacedName, c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, c.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	isPaused, requeue, err := paused.EnsurePausedCondition(ctx, r.Client, cluster, c)
	if err != nil || isPaused || requeue {
		return ctrl.Result{}, err
	}
	helper, err := patch.NewHelper(c, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	if c.DeletionTimestamp.IsZero() {
		result, err = r.reconcile(ctx, c, cluster)
	} else {
		err = r.delete(ctx, c, cluster)
	}
	return result, errors.Join(err,
		client.IgnoreNotFound(helper.Patch(ctx, c,
			patch.WithOwnedConditions{Conditions: []string{infrav1.ReadyCondition}})))
}

// delete waits for the cluster's machines. Cluster API deletes them first; this is for a KKCluster that is deleted by
// hand.
func (r *ClusterReconciler) delete(ctx context.Context, c *infrav1.KKCluster, cluster *clusterv1.Cluster) error {
	name := c.Labels[clusterv1.ClusterNameLabel]
	if cluster != nil {
		name = cluster.Name
	}
	if name != "" {
		var machines infrav1.KKMachineList
		if err := r.List(ctx, &machines, client.InNamespace(c.Namespace),
			client.MatchingLabels{clusterv1.ClusterNameLabel: name}); err != nil {
			return err
		}
		if n := len(machines.Items); n > 0 {
			setCondition(c, infrav1.ReadyCondition, false, infrav1.DeletingReason, fmt.Sprintf("%d KKMachines are left, such as %s", n, machines.Items[0].Name))
			return nil
		}
	}
	controllerutil.RemoveFinalizer(c, infrav1.ClusterFinalizer)
	return nil
}

func (r *ClusterReconciler) reconcile(ctx context.Context, c *infrav1.KKCluster,
	cluster *clusterv1.Cluster,
) (ctrl.Result, error) {
	controllerutil.AddFinalizer(c, infrav1.ClusterFinalizer)
	var err error
	if c.Status.FailureDomains, err = r.failureDomains(ctx, c.Namespace); err != nil {
		return ctrl.Result{}, err
	}
	wait := func(reason, message string) (ctrl.Result, error) {
		setCondition(c, infrav1.ReadyCondition, false, reason, message)
		return ctrl.Result{RequeueAfter: r.Timing.Look}, nil
	}
	if cluster == nil {
		return wait(infrav1.WaitingReason, "no Cluster owns the KKCluster yet")
	}
	given := cluster.Spec.ControlPlaneEndpoint
	if c.Spec.ControlPlaneEndpoint.Host == "" && given.Host == "" {
		return wait(infrav1.EndpointMissingReason, fmt.Sprintf("KKCluster %s: spec.controlPlaneEndpoint is empty; set host to an unused address for kube-vip, to a balancer's, or to that of the only control plane", c.Name))
	}
	if c.Spec.ControlPlaneEndpoint.Host == "" {
		c.Spec.ControlPlaneEndpoint = infrav1.APIEndpoint{Host: given.Host, Port: given.Port}
	}
	if c.Spec.ControlPlaneEndpoint.Port == 0 {
		c.Spec.ControlPlaneEndpoint.Port = defaultAPIPort
	}
	var missing *MissingError
	if err := r.sources(ctx, c); errors.As(err, &missing) {
		return wait(infrav1.MissingReason, missing.Error())
	} else if err != nil {
		return ctrl.Result{}, err
	}
	c.Status.Initialization.Provisioned = ptr.To(true)
	setCondition(c, infrav1.ReadyCondition, true, infrav1.DoneReason, "")
	return noResult()
}

// sources checks the bundle and the registry's Secret, and has clusterctl move them along.
func (r *ClusterReconciler) sources(ctx context.Context, c *infrav1.KKCluster) error {
	var b infrav1.KKBundle
	switch err := r.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.BundleRef.Name}, &b); {
	case apierrors.IsNotFound(err):
		return &MissingError{fmt.Sprintf("KKCluster %s: spec.bundleRef: there is no KKBundle %s in namespace %s; create it", c.Name, c.Spec.BundleRef.Name, c.Namespace)}
	case err != nil:
		return err
	}
	moved := []client.Object{&b}
	for _, one := range []struct {
		field string
		ref   *infrav1.LocalRef
	}{
		{"KKCluster " + c.Name + ": spec.registry.secretRef", c.Spec.Registry.SecretRef},
		{"KKBundle " + b.Name + ": spec.secretRef", b.Spec.SecretRef},
		{"KKBundle " + b.Name + ": spec.trust.secretRef", b.Spec.Trust.SecretRef},
	} {
		if one.ref == nil {
			continue
		}
		s, err := secretOf(ctx, r, c.Namespace, one.field, one.ref)
		if err != nil {
			return err
		}
		moved = append(moved, s)
	}
	for _, o := range moved {
		before, ok := o.DeepCopyObject().(client.Object)
		if !ok || !setMoved(o, true) {
			continue
		}
		if err := r.Patch(ctx, o, client.MergeFrom(before)); err != nil {
			return err
		}
	}
	if !conditions.IsTrue(&b, infrav1.ReadyCondition) {
		return &MissingError{fmt.Sprintf("KKBundle %s is not ready: %s", b.Name, conditions.GetMessage(&b, infrav1.ReadyCondition))}
	}
	return nil
}

// failureDomains returns those of the namespace's hosts.
func (r *ClusterReconciler) failureDomains(ctx context.Context, namespace string) ([]clusterv1.FailureDomain, error) {
	var all infrav1.KKHostList
	if err := r.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	controlPlane := map[string]bool{}
	for _, h := range all.Items {
		if name := h.Spec.FailureDomain; name != "" {
			controlPlane[name] = controlPlane[name] || len(h.Spec.Roles) == 0 ||
				slices.Contains(h.Spec.Roles, infrav1.RoleControlPlane)
		}
	}
	var domains []clusterv1.FailureDomain
	for _, name := range slices.Sorted(maps.Keys(controlPlane)) {
		domains = append(domains, clusterv1.FailureDomain{Name: name, ControlPlane: ptr.To(controlPlane[name])})
	}
	return domains, nil
}
