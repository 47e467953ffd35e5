package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/patch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// A HostReconciler writes the state of hosts, and marks Machines on hosts that shall be emptied. It never takes a host
// from its machine.
type HostReconciler struct{ client.Client }

// SetupWithManager adds the reconciler to a manager.
func (r *HostReconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).For(&infrav1.KKHost{}).WithOptions(o).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.ofSecret), builder.OnlyMetadata).
		Watches(&infrav1.KKMachine{}, handler.EnqueueRequestsFromMapFunc(r.ofMachine)).
		Complete(r)
}

func (r *HostReconciler) ofSecret(ctx context.Context, o client.Object) []ctrl.Request {
	var all infrav1.KKHostList
	if err := r.List(ctx, &all, client.InNamespace(o.GetNamespace())); err != nil {
		return nil
	}
	var requests []ctrl.Request
	for _, h := range all.Items {
		if slices.Contains(hostSecrets(&h), o.GetName()) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&h)})
		}
	}
	return requests
}

func (r *HostReconciler) ofMachine(_ context.Context, o client.Object) []ctrl.Request {
	m, ok := o.(*infrav1.KKMachine)
	if !ok || m.Spec.HostName == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.HostName}}}
}

// Reconcile writes a host's state.
func (r *HostReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	h := &infrav1.KKHost{}
	if err := r.Get(ctx, req.NamespacedName, h); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	helper, err := patch.NewHelper(h, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	missing, err := r.missing(ctx, h)
	if err == nil && h.Spec.Unschedulable && h.Spec.Consumer != nil {
		err = r.markMachine(ctx, h)
	}
	state(h, missing)
	return ctrl.Result{}, errors.Join(err,
		client.IgnoreNotFound(helper.Patch(ctx, h,
			patch.WithOwnedConditions{Conditions: []string{infrav1.AvailableCondition}})))
}

// state writes the state and the condition.
func state(h *infrav1.KKHost, missing string) {
	available := func(state string, ok bool, reason, message string) {
		h.Status.State = state
		setCondition(h, infrav1.AvailableCondition, ok, reason, message)
	}
	switch {
	case h.Annotations[infrav1.QuarantineAnnotation] != "":
		available(infrav1.HostQuarantined, false, infrav1.QuarantinedReason, fmt.Sprintf("%s; clean the host with kkbundle reset, then remove the annotation %s",
			h.Annotations[infrav1.QuarantineAnnotation], infrav1.QuarantineAnnotation))
	case h.Spec.Consumer != nil:
		available(infrav1.HostInUse, false, infrav1.TakenReason, fmt.Sprintf("KKMachine %s of cluster %s has the host", h.Spec.Consumer.Machine, h.Spec.Consumer.Cluster))
	case h.Spec.Unschedulable:
		available(infrav1.HostUnschedulable, false, infrav1.UnschedulableReason, "spec.unschedulable is set")
	case missing != "":
		available(infrav1.HostAvailable, true, infrav1.MissingReason, missing)
	default:
		available(infrav1.HostAvailable, true, infrav1.DoneReason, "")
	}
}

// missing returns a message about a Secret that the host names and that is not there.
func (r *HostReconciler) missing(ctx context.Context, h *infrav1.KKHost) (message string, err error) {
	for _, name := range hostSecrets(h) {
		var s corev1.Secret
		switch err := r.Get(ctx, types.NamespacedName{Namespace: h.Namespace, Name: name}, &s); {
		case apierrors.IsNotFound(err):
			message = fmt.Sprintf("KKHost %s: spec.ssh: Secret %s is not in namespace %s; create it", h.Name, name, h.Namespace)
		case err != nil:
			return "", err
		}
	}
	return message, nil
}

// A LoginReconciler has clusterctl move the Secrets of hosts along, and keeps those of hosts in use from being deleted.
// It lets go of those that no host in use needs: because it is free, names another Secret, or is gone.
type LoginReconciler struct {
	client.Client
	Live client.Reader
}

// SetupWithManager adds the reconciler to a manager.
func (r *LoginReconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).Named("login").WithOptions(o).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.ofSecret), builder.OnlyMetadata).
		Watches(&infrav1.KKHost{}, handler.EnqueueRequestsFromMapFunc(r.ofHost)).
		Complete(r)
}

// ofSecret returns a Secret that is held or that a host names. There are many others.
func (r *LoginReconciler) ofSecret(ctx context.Context, o client.Object) []ctrl.Request {
	var all infrav1.KKHostList
	named := func(h infrav1.KKHost) bool { return slices.Contains(hostSecrets(&h), o.GetName()) }
	held := controllerutil.ContainsFinalizer(o, infrav1.LoginFinalizer)
	if err := r.List(ctx, &all, client.InNamespace(o.GetNamespace())); !held &&
		(err != nil || !slices.ContainsFunc(all.Items, named)) {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
}

// ofHost returns the Secrets of a host: of a changed one those that it named before, too.
func (r *LoginReconciler) ofHost(_ context.Context, o client.Object) (requests []ctrl.Request) {
	h, ok := o.(*infrav1.KKHost)
	if !ok {
		return nil
	}
	for _, name := range hostSecrets(h) {
		requests = append(requests,
			ctrl.Request{NamespacedName: types.NamespacedName{Namespace: h.Namespace, Name: name}})
	}
	return requests
}

// Reconcile holds a Secret, or lets go of it.
func (r *LoginReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var s corev1.Secret
	if err := r.Live.Get(ctx, req.NamespacedName, &s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var all infrav1.KKHostList
	if err := r.Live.List(ctx, &all, client.InNamespace(req.Namespace)); err != nil {
		return ctrl.Result{}, err
	}
	var named, used bool
	for _, h := range all.Items {
		if slices.Contains(hostSecrets(&h), s.Name) {
			named, used = true, used || h.Spec.Consumer != nil
		}
	}
	before := s.DeepCopy()
	if used && s.DeletionTimestamp.IsZero() {
		controllerutil.AddFinalizer(&s, infrav1.LoginFinalizer)
	} else if !used {
		controllerutil.RemoveFinalizer(&s, infrav1.LoginFinalizer)
	}
	setMoved(&s, named)
	if slices.Equal(before.Finalizers, s.Finalizers) && len(before.Labels) == len(s.Labels) {
		return noResult()
	}
	return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, &s))
}

// markMachine marks the Machine on a host to be deleted first when its owner is scaled down.
func (r *HostReconciler) markMachine(ctx context.Context, h *infrav1.KKHost) error {
	var m infrav1.KKMachine
	if err := r.Get(ctx, types.NamespacedName{Namespace: h.Namespace, Name: h.Spec.Consumer.Machine}, &m); err != nil {
		return client.IgnoreNotFound(err)
	}
	machine, err := util.GetOwnerMachine(ctx, r.Client, m.ObjectMeta)
	if err != nil || machine == nil {
		return client.IgnoreNotFound(err)
	}
	if _, ok := machine.Annotations[clusterv1.DeleteMachineAnnotation]; ok {
		return nil
	}
	before := client.MergeFrom(machine.DeepCopy())
	setAnnotation(machine, clusterv1.DeleteMachineAnnotation, "")
	return r.Patch(ctx, machine, before)
}

// A TemplateReconciler tells the cluster autoscaler what the hosts have that a template's machines can take.
type TemplateReconciler struct{ client.Client }

// SetupWithManager adds the reconciler to a manager.
func (r *TemplateReconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).For(&infrav1.KKMachineTemplate{}).WithOptions(o).
		Watches(&infrav1.KKHost{}, handler.EnqueueRequestsFromMapFunc(r.ofHost)).
		Complete(r)
}

func (r *TemplateReconciler) ofHost(ctx context.Context, o client.Object) []ctrl.Request {
	var all infrav1.KKMachineTemplateList
	if err := r.List(ctx, &all, client.InNamespace(o.GetNamespace())); err != nil {
		return nil
	}
	var requests []ctrl.Request
	for _, t := range all.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&t)})
	}
	return requests
}

// Reconcile writes a template's capacity: of each resource, what the smallest host has.
func (r *TemplateReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	t := &infrav1.KKMachineTemplate{}
	if err := r.Get(ctx, req.NamespacedName, t); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	n, err := needOf(&t.Spec.Template.Spec)
	if err != nil {
		return noResult() // the webhook has said so
	}
	var all infrav1.KKHostList
	if err := r.List(ctx, &all, client.InNamespace(t.Namespace)); err != nil {
		return ctrl.Result{}, err
	}
	helper, err := patch.NewHelper(t, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	t.Status.Capacity, t.Status.NodeInfo = smallest(n, all.Items)
	return ctrl.Result{}, client.IgnoreNotFound(helper.Patch(ctx, t))
}

// smallest returns what every host that fits has, and the architecture if it is the same everywhere.
func smallest(n need, all []infrav1.KKHost) (corev1.ResourceList, infrav1.NodeInfo) {
	var capacity corev1.ResourceList
	var arch []string
	for _, h := range all {
		if n.lacks(&h) != "" {
			continue
		}
		if arch = append(arch, h.Spec.Arch); len(arch) == 1 {
			capacity = h.Spec.Capacity.DeepCopy()
			continue
		}
		for name, least := range capacity {
			has, ok := h.Spec.Capacity[name]
			switch {
			case !ok:
				delete(capacity, name)
			case has.Cmp(least) < 0:
				capacity[name] = has
			}
		}
	}
	if len(arch) == 0 {
		return nil, infrav1.NodeInfo{}
	}
	info := infrav1.NodeInfo{OperatingSystem: "linux"}
	if arch = slices.Compact(slices.Sorted(slices.Values(arch))); len(arch) == 1 {
		info.Architecture = arch[0]
	}
	return capacity, info
}
