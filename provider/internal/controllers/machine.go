package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
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
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// Nodes finds a machine's node in its workload cluster and gives it the machine's providerID.
type Nodes interface {
	// Identify returns a *NodeError unless the node has the providerID afterwards.
	Identify(ctx context.Context, cluster types.NamespacedName, node Node) error
}

// A Node is what a machine's node is found by, and the providerID that it gets.
type Node struct {
	Name       string // of the machine; the node has it if the bootstrap data says so
	Addresses  []string
	ProviderID string
}

// A MachineReconciler takes a host of the pool for each KKMachine, and gives it back.
type MachineReconciler struct {
	client.Client
	Live     client.Reader
	Nodes    Nodes
	Recorder events.EventRecorder
	Timing   Timing
}

// SetupWithManager adds the reconciler to a manager.
func (r *MachineReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, o controller.Options) error {
	ofCluster, err := util.ClusterToTypedObjectsMapper(mgr.GetClient(), &infrav1.KKMachineList{}, mgr.GetScheme())
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&infrav1.KKMachine{}).WithOptions(o).
		Owns(&infrav1.KKInstance{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(util.MachineToInfrastructureMapFunc(infrav1.GroupVersion.WithKind("KKMachine")))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(ofCluster)).
		Watches(&infrav1.KKHost{}, handler.EnqueueRequestsFromMapFunc(r.ofHost)).
		Complete(r)
}

// ofHost returns the machine that has the host. If nobody has it, those that look for a host.
func (r *MachineReconciler) ofHost(ctx context.Context, o client.Object) []ctrl.Request {
	h, ok := o.(*infrav1.KKHost)
	if !ok {
		return nil
	}
	if h.Spec.Consumer != nil {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{
			Namespace: h.Namespace, Name: h.Spec.Consumer.Machine,
		}}}
	}
	var all infrav1.KKMachineList
	if err := r.List(ctx, &all, client.InNamespace(h.Namespace)); err != nil {
		return nil
	}
	var requests []ctrl.Request
	for _, m := range all.Items {
		if !conditions.IsTrue(&m, infrav1.HostClaimedCondition) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&m)})
		}
	}
	return requests
}

// Reconcile brings a KKMachine to its host.
func (r *MachineReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	m := &infrav1.KKMachine{}
	if err := r.Get(ctx, req.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	machine, err := util.GetOwnerMachine(ctx, r.Client, m.ObjectMeta)
	if err != nil && !apierrors.IsNotFound(err) {
		return ctrl.Result{}, err
	}
	name := m.Labels[clusterv1.ClusterNameLabel]
	if machine != nil {
		name = machine.Spec.ClusterName
	}
	cluster, err := clusterByName(ctx, r, m.Namespace, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	isPaused, requeue, err := paused.EnsurePausedCondition(ctx, r.Client, cluster, m)
	if err != nil || isPaused || requeue {
		return ctrl.Result{}, err
	}
	helper, err := patch.NewHelper(m, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	w := &machineWork{MachineReconciler: r, m: m, machine: machine, cluster: cluster, helper: helper}
	if m.DeletionTimestamp.IsZero() {
		result, err = w.reconcile(ctx)
	} else {
		result, err = w.delete(ctx)
	}
	return result, errors.Join(err, client.IgnoreNotFound(w.patch(ctx)))
}

type machineWork struct {
	*MachineReconciler
	m       *infrav1.KKMachine
	machine *clusterv1.Machine // nil until the KKMachine has an owner
	cluster *clusterv1.Cluster
	helper  *patch.Helper
}

func (w *machineWork) patch(ctx context.Context) error {
	return w.helper.Patch(ctx, w.m, patch.WithOwnedConditions{Conditions: []string{
		infrav1.ReadyCondition, infrav1.HostClaimedCondition, infrav1.ProvisionedCondition,
		infrav1.NodeIdentifiedCondition,
	}})
}

// waits writes why the machine is not ready.
func (w *machineWork) waits(kind, reason, message string) {
	setCondition(w.m, kind, false, reason, message)
	setCondition(w.m, infrav1.ReadyCondition, false, reason, message)
}

func (w *machineWork) reconcile(ctx context.Context) (ctrl.Result, error) {
	if controllerutil.AddFinalizer(w.m, infrav1.MachineFinalizer) {
		if err := w.patch(ctx); err != nil {
			return ctrl.Result{}, err
		}
		var err error
		if w.helper, err = patch.NewHelper(w.m, w.Client); err != nil {
			return ctrl.Result{}, err
		}
	}
	switch {
	case w.machine == nil:
		w.waits(infrav1.HostClaimedCondition, infrav1.WaitingReason, "no Machine owns the KKMachine yet")
	case w.cluster == nil:
		w.waits(infrav1.HostClaimedCondition, infrav1.MissingReason, fmt.Sprintf("there is no Cluster %s", w.machine.Spec.ClusterName))
	case !ptr.Deref(w.cluster.Status.Initialization.InfrastructureProvisioned, false):
		w.waits(infrav1.HostClaimedCondition, infrav1.WaitingReason, fmt.Sprintf("the infrastructure of Cluster %s is not ready yet", w.cluster.Name))
	case w.machine.Spec.Bootstrap.DataSecretName == nil:
		w.waits(infrav1.HostClaimedCondition, infrav1.WaitingReason, fmt.Sprintf("Machine %s has no bootstrap data yet", w.machine.Name))
	default:
		return w.withHost(ctx)
	}
	return noResult()
}

// withHost makes sure of the host and of the work on it.
func (w *machineWork) withHost(ctx context.Context) (ctrl.Result, error) {
	h, err := w.claim(ctx)
	if err != nil || h == nil {
		return ctrl.Result{}, err
	}
	setCondition(w.m, infrav1.HostClaimedCondition, true, infrav1.DoneReason, "")
	w.m.Spec.HostName = h.Name
	w.m.Status.FailureDomain = h.Spec.FailureDomain
	w.m.Status.Addresses = addresses(w.m.Name, h)
	i, err := w.instance(ctx, h)
	if err != nil || i == nil {
		return ctrl.Result{}, err
	}
	if !conditions.IsTrue(i, infrav1.ReadyCondition) {
		w.waits(infrav1.ProvisionedCondition,
			cmp.Or(conditions.GetReason(i, infrav1.ReadyCondition), infrav1.WaitingReason), firstFalse(i))
		return noResult()
	}
	setCondition(w.m, infrav1.ProvisionedCondition, true, infrav1.DoneReason, "")
	w.m.Spec.ProviderID = providerID(w.m)
	w.m.Status.Initialization.Provisioned = ptr.To(true)
	return w.identify(ctx, h)
}

// firstFalse returns which phase of an instance is not done, and why.
func firstFalse(i *infrav1.KKInstance) string {
	for _, kind := range phaseConditions() {
		if c := conditions.Get(i, kind); c != nil && c.Status != metav1.ConditionTrue {
			return kind + ": " + c.Message
		}
	}
	return conditions.GetMessage(i, infrav1.ReadyCondition)
}

// providerID returns the machine's providerID. It names the machine and not the host: a machine that replaces another
// one on the same host must not be taken for it.
func providerID(m *infrav1.KKMachine) string { return idOf(m.Namespace, m.Name) }

func idOf(namespace, name string) string { return "kk:///" + namespace + "/" + name }

func addresses(name string, h *infrav1.KKHost) []clusterv1.MachineAddress {
	all := []clusterv1.MachineAddress{{Type: clusterv1.MachineHostName, Address: name}}
	for _, a := range hosts.InternalAddresses(h.Spec.Address, h.Spec.InternalIPv4, h.Spec.InternalIPv6) {
		all = append(all, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: a})
	}
	return all
}

// claim returns the machine's host, which it takes from the pool if it has none. nil means that it has to wait.
func (w *machineWork) claim(ctx context.Context) (*infrav1.KKHost, error) {
	var all infrav1.KKHostList
	// An old cache could lack the machine's own claim, and it would take a second host.
	for _, from := range []client.Reader{w.Client, w.Live} {
		if err := from.List(ctx, &all, client.InNamespace(w.m.Namespace)); err != nil {
			return nil, err
		}
		for i := range all.Items {
			if h := &all.Items[i]; hasConsumer(h, w.m.Name) {
				return h, nil // also if the controller was killed before it could write the host's name
			}
		}
	}
	if w.m.Spec.ProviderID != "" {
		w.waits(infrav1.HostClaimedCondition, infrav1.TakenReason,
			fmt.Sprintf("KKHost %s is not the machine's any more, or is gone; delete the Machine", w.m.Spec.HostName))
		return nil, nil //nolint:nilnil // waits
	}
	n, err := w.need()
	if err != nil {
		w.waits(infrav1.HostClaimedCondition, infrav1.InvalidReason, fmt.Sprintf("KKMachine %s: spec.hostSelector: %s", w.m.Name, err))
		return nil, nil //nolint:nilnil // waits
	}
	h, why := n.choose(all.Items)
	if h == nil {
		message := fmt.Sprintf("no KKHost in namespace %s is free and fits: %s; add a KKHost, free one, or lower the replicas", w.m.Namespace, why)
		if conditions.GetMessage(w.m, infrav1.HostClaimedCondition) != message {
			w.Recorder.Eventf(w.m, nil, corev1.EventTypeWarning, infrav1.NoHostReason, eventClaimed, "%s", message)
		}
		w.waits(infrav1.HostClaimedCondition, infrav1.NoHostReason, message)
		return nil, nil //nolint:nilnil // waits
	}
	// The resource version decides: of several machines that want the host, the API server lets one write.
	h = h.DeepCopy()
	h.Spec.Consumer = &infrav1.Consumer{Cluster: w.cluster.Name, Machine: w.m.Name}
	controllerutil.AddFinalizer(h, infrav1.HostFinalizer)
	if err := w.Update(ctx, h); err != nil {
		return nil, err
	}
	w.Recorder.Eventf(w.m, h, corev1.EventTypeNormal, eventClaimed, eventClaimed, "took KKHost %s", h.Name)
	return h, nil
}

func (w *machineWork) role() infrav1.Role {
	if util.IsControlPlaneMachine(w.machine) {
		return infrav1.RoleControlPlane
	}
	return infrav1.RoleWorker
}

func (w *machineWork) need() (need, error) {
	n, err := needOf(&w.m.Spec)
	if len(n.roles) == 0 {
		n.roles = []infrav1.Role{w.role()}
	}
	n.owner = ownerKey(w.m.Labels)
	// chosen by the control plane's provider, which does not know where hosts are free
	if w.role() == infrav1.RoleControlPlane {
		n.preferredDomain = w.machine.Spec.FailureDomain
	} else {
		n.failureDomain = w.machine.Spec.FailureDomain
	}
	return n, err
}

// instance returns the machine's KKInstance, which it makes if there is none. nil means that it has to wait.
func (w *machineWork) instance(ctx context.Context, h *infrav1.KKHost) (*infrav1.KKInstance, error) {
	i := &infrav1.KKInstance{}
	err := w.Get(ctx, client.ObjectKeyFromObject(w.m), i)
	if err == nil && !metav1.IsControlledBy(i, w.m) {
		w.waits(infrav1.ProvisionedCondition, infrav1.WaitingReason, fmt.Sprintf("KKInstance %s of an earlier KKMachine of this name is still being deleted", i.Name))
		return nil, nil //nolint:nilnil // waits
	}
	if !apierrors.IsNotFound(err) {
		return i, err
	}
	var infra infrav1.KKCluster
	if err := w.Get(ctx, types.NamespacedName{Namespace: w.m.Namespace, Name: w.cluster.Spec.InfrastructureRef.Name},
		&infra); err != nil {
		return nil, err
	}
	network := w.cluster.Spec.ClusterNetwork
	i = &infrav1.KKInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.m.Namespace, Name: w.m.Name, Labels: w.m.Labels},
		Spec: infrav1.KKInstanceSpec{
			HostName: h.Name, ClusterName: w.cluster.Name, Role: w.role(), Version: w.machine.Spec.Version,
			BootstrapSecretName: *w.machine.Spec.Bootstrap.DataSecretName, BundleRef: infra.Spec.BundleRef,
			Registry: infra.Spec.Registry,
			PodCIDR:  network.Pods.String(), ServiceCIDR: network.Services.String(),
			ContainerManager: w.m.Spec.ContainerManager, Repository: w.m.Spec.Repository,
		},
	}
	if i.Spec.Version == "" {
		w.waits(infrav1.ProvisionedCondition, infrav1.InvalidReason, fmt.Sprintf("Machine %s: spec.version is empty; set the version of Kubernetes", w.machine.Name))
		return nil, nil //nolint:nilnil // waits
	}
	markAdopted(w.m, i, time.Now())
	if err := controllerutil.SetControllerReference(w.m, i, w.Scheme()); err != nil {
		return nil, err
	}
	return i, w.Create(ctx, i)
}

// identify gives the node the providerID. Cluster API finds the Machine's node by it.
func (w *machineWork) identify(ctx context.Context, h *infrav1.KKHost) (ctrl.Result, error) {
	if conditions.IsTrue(w.m, infrav1.NodeIdentifiedCondition) || w.machine.Status.NodeRef.IsDefined() {
		setCondition(w.m, infrav1.NodeIdentifiedCondition, true, infrav1.DoneReason, "")
		setCondition(w.m, infrav1.ReadyCondition, true, infrav1.DoneReason, "")
		return noResult()
	}
	node := Node{
		Name: w.m.Name, ProviderID: w.m.Spec.ProviderID,
		Addresses: hosts.InternalAddresses(h.Spec.Address, h.Spec.InternalIPv4, h.Spec.InternalIPv6),
	}
	err := w.Nodes.Identify(ctx, client.ObjectKeyFromObject(w.cluster), node)
	if err != nil {
		w.waits(infrav1.NodeIdentifiedCondition, infrav1.NodeNotFoundReason, err.Error())
		return ctrl.Result{RequeueAfter: w.Timing.Look}, nil
	}
	setCondition(w.m, infrav1.NodeIdentifiedCondition, true, infrav1.DoneReason, "")
	setCondition(w.m, infrav1.ReadyCondition, true, infrav1.DoneReason, "")
	return noResult()
}

// delete waits until the host is clean or in quarantine.
func (w *machineWork) delete(ctx context.Context) (ctrl.Result, error) {
	var i infrav1.KKInstance
	switch err := w.Live.Get(ctx, client.ObjectKeyFromObject(w.m), &i); {
	case err == nil && metav1.IsControlledBy(&i, w.m):
		if i.DeletionTimestamp.IsZero() {
			if err := w.Delete(ctx, &i); client.IgnoreNotFound(err) != nil {
				return ctrl.Result{}, err
			}
		}
		message := fmt.Sprintf("host %s is being cleaned", i.Spec.HostName)
		if c := conditions.Get(&i, infrav1.CleanedCondition); c != nil && c.Message != "" {
			message = c.Message
		}
		w.waits(infrav1.ProvisionedCondition, infrav1.DeletingReason, message)
		return ctrl.Result{RequeueAfter: w.Timing.Look}, nil
	case err == nil: // the host is that instance's, and must not be freed without it
		w.waits(infrav1.ProvisionedCondition, infrav1.DeletingReason, fmt.Sprintf("KKInstance %s belongs to another KKMachine of this name; delete that instance, and its host is cleaned", i.Name))
		return ctrl.Result{RequeueAfter: w.Timing.Look}, nil
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, err
	}
	// No instance was ever made for a host that still is the machine's: there is nothing on it.
	var all infrav1.KKHostList
	if err := w.Live.List(ctx, &all, client.InNamespace(w.m.Namespace)); err != nil {
		return ctrl.Result{}, err
	}
	for n := range all.Items {
		if h := &all.Items[n]; hasConsumer(h, w.m.Name) {
			free(h)
			if err := w.Update(ctx, h); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	controllerutil.RemoveFinalizer(w.m, infrav1.MachineFinalizer)
	return noResult()
}
