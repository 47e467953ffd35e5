package controllers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/hosts"
	"github.com/kkbundle/kkbundle/provider/internal/jobs"
)

// Kinds of jobs.
const (
	jobProvision = "provision"
	jobClean     = "clean"
)

// A Timing has the times of the work on hosts.
type Timing struct {
	// Backoff is the pause after the first failed run; it doubles up to MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Quarantine is the time after which a host that cannot be cleaned is given up.
	Quarantine time.Duration
	// Run is the longest time of one run, Pull that of the download of its bundle before.
	Run, Pull time.Duration
	// Look is the pause before missing objects, and nodes, are looked for again.
	Look time.Duration
}

// DefaultTiming returns the times of the manager.
func DefaultTiming() Timing {
	return Timing{
		Backoff: 15 * time.Second, MaxBackoff: 10 * time.Minute, Quarantine: 15 * time.Minute,
		Run: 2 * time.Hour, Pull: 4 * time.Hour, Look: 15 * time.Second,
	}
}

// pause returns the pause after a number of failed runs.
func (t Timing) pause(failed int32) time.Duration {
	p := t.Backoff
	for range failed - 1 {
		if p *= 2; p >= t.MaxBackoff {
			return t.MaxBackoff
		}
	}
	return p
}

// failedAttempts is the number of failed runs after which an instance is called failed. Runs go on: the reason may be
// removed.
const failedAttempts = 5

// An InstanceReconciler works on hosts: it prepares them, runs the bootstrap data, and cleans them.
type InstanceReconciler struct {
	client.Client
	// Live reads objects from the API server: what decides about work on a host must not be old.
	Live     client.Reader
	Operator *hosts.Operator
	Updater  NodeUpdater
	Recorder events.EventRecorder
	Timing   Timing
	// Places is the number of hosts provisioned at a time, and of those cleaned beside them.
	Places int

	pool *jobs.Pool[types.NamespacedName]
}

// SetupWithManager adds the reconciler and its jobs to a manager.
func (r *InstanceReconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	changed := make(chan event.GenericEvent)
	r.pool = jobs.New(r.Places, []string{jobProvision, jobClean, jobUpdate}, func(key types.NamespacedName) {
		meta := metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
		changed <- event.GenericEvent{Object: &infrav1.KKInstance{ObjectMeta: meta}}
	})
	// The channel is read until the manager has stopped: a job that tells its end must not wait for ever.
	if err := mgr.Add(runnable(func(ctx context.Context) error {
		err := r.pool.Run(ctx)
		go func() {
			for range changed {
			}
		}()
		return err
	})); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&infrav1.KKInstance{}).WithOptions(o).
		WatchesRawSource(source.Channel(changed, &handler.EnqueueRequestForObject{},
			source.WithBufferSize[client.Object, ctrl.Request](1024))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.ofCluster)).
		Watches(&infrav1.KKBundle{}, handler.EnqueueRequestsFromMapFunc(r.ofBundle)).
		Complete(r)
}

// A runnable needs the leader's lease, as the controllers do.
type runnable func(context.Context) error

func (r runnable) Start(ctx context.Context) error { return r(ctx) }

func (r *InstanceReconciler) ofCluster(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requests(ctx, o.GetNamespace(),
		func(i *infrav1.KKInstance) bool { return i.Spec.ClusterName == o.GetName() })
}

func (r *InstanceReconciler) ofBundle(ctx context.Context, o client.Object) []ctrl.Request {
	return r.requests(ctx, o.GetNamespace(), func(i *infrav1.KKInstance) bool {
		return i.Spec.BundleRef.Name == o.GetName() && i.Annotations[infrav1.ProvisionedAnnotation] == ""
	})
}

func (r *InstanceReconciler) requests(ctx context.Context, namespace string,
	want func(*infrav1.KKInstance) bool,
) []ctrl.Request {
	var all infrav1.KKInstanceList
	if err := r.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil
	}
	var requests []ctrl.Request
	for _, i := range all.Items {
		if want(&i) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&i)})
		}
	}
	return requests
}

// Reconcile brings a host's job and the object together.
func (r *InstanceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	i := &infrav1.KKInstance{}
	if err := r.Get(ctx, req.NamespacedName, i); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := clusterByName(ctx, r, i.Namespace, i.Spec.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	isPaused, requeue, err := paused.EnsurePausedCondition(ctx, r.Client, cluster, i)
	if err != nil || requeue {
		return ctrl.Result{}, err
	}
	w := &instanceWork{InstanceReconciler: r, i: i, cluster: cluster, key: req.NamespacedName}
	job, has := r.pool.Look(req.NamespacedName)
	if has && !job.Done {
		if w.helper, err = patch.NewHelper(i, r.Client); err != nil {
			return ctrl.Result{}, err
		}
		if !i.DeletionTimestamp.IsZero() && job.Kind != jobClean {
			r.pool.Cancel(req.NamespacedName)
		}
		w.show(job)
		return ctrl.Result{}, w.patch(ctx)
	}
	if err := w.refresh(ctx); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if has {
		// The object is written before the job is forgotten: a job's outcome is never lost, at worst it is written
		// twice.
		if err := errors.Join(w.record(ctx, job), w.patch(ctx)); err != nil {
			return ctrl.Result{}, err
		}
		r.pool.Forget(req.NamespacedName)
		return ctrl.Result{RequeueAfter: time.Millisecond}, nil
	}
	delete(w.i.Annotations, blockMoveAnnotation) // no job: nothing keeps clusterctl from moving the instance
	switch {
	case isPaused:
	case w.i.DeletionTimestamp.IsZero():
		result, err = w.provision(ctx)
	default:
		result, err = w.clean(ctx)
	}
	return result, errors.Join(err, w.patch(ctx))
}

// instanceWork is one reconciliation of an instance.
type instanceWork struct {
	*InstanceReconciler
	i       *infrav1.KKInstance
	cluster *clusterv1.Cluster // nil if it is gone
	key     types.NamespacedName
	helper  *patch.Helper
}

// refresh reads the instance from the API server. The cached one may be older than its last job: it lacks the attempts
// and annotations that decide whether and when the next run begins.
func (w *instanceWork) refresh(ctx context.Context) (err error) {
	w.i = &infrav1.KKInstance{}
	if err := w.Live.Get(ctx, w.key, w.i); err != nil {
		return err
	}
	w.helper, err = patch.NewHelper(w.i, w.Client)
	return err
}

func phaseConditions() []string {
	return []string{
		infrav1.BootstrapCondition, infrav1.RepositoryCondition, infrav1.BinaryCondition,
		infrav1.ContainerManagerCondition, infrav1.ProvisioningCondition,
	}
}

// conditionOf returns the condition of a phase.
func conditionOf(phase string) string {
	return phaseConditions()[max(0, slices.Index(hosts.Phases(), phase))]
}

// patch writes the instance, with the summary of its conditions.
func (w *instanceWork) patch(ctx context.Context) error {
	w.summarize()
	err := w.helper.Patch(ctx, w.i,
		patch.WithOwnedConditions{Conditions: append(phaseConditions(), infrav1.ReadyCondition,
			infrav1.CleanedCondition, infrav1.UpdatedCondition)})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	w.helper, err = patch.NewHelper(w.i, w.Client)
	return err
}

func (w *instanceWork) summarize() {
	kinds := phaseConditions()
	if conditions.Has(w.i, infrav1.CleanedCondition) {
		kinds = []string{infrav1.CleanedCondition}
	}
	for _, kind := range kinds {
		if c := conditions.Get(w.i, kind); c == nil {
			return
		} else if c.Status != metav1.ConditionTrue || kind == infrav1.CleanedCondition {
			reason := c.Reason
			if kind == infrav1.CleanedCondition && c.Status == metav1.ConditionTrue {
				reason = infrav1.DeletingReason
			}
			setCondition(w.i, infrav1.ReadyCondition, false, reason, c.Message)
			return
		}
	}
	setCondition(w.i, infrav1.ReadyCondition, true, infrav1.DoneReason, "")
}

// show writes a job's progress into the conditions.
func (w *instanceWork) show(job jobs.State) {
	if job.Kind == jobClean {
		w.i.Status.State = infrav1.InstanceCleaning
		setCondition(w.i, infrav1.CleanedCondition, false, infrav1.RunningReason, "host "+w.i.Spec.HostName+" is being cleaned")
		return
	}
	if job.Kind == jobUpdate {
		w.showUpdate(job)
		return
	}
	w.i.Status.State = infrav1.InstanceBootstrapping
	reason, message := infrav1.RunningReason, "at work on host "+w.i.Spec.HostName
	switch {
	case !job.Ready:
		reason, message = infrav1.WaitingReason, fmt.Sprintf("waits until KKBundle %s is here", w.i.Spec.BundleRef.Name)
	case !job.Began:
		reason, message = infrav1.WaitingReason, fmt.Sprintf("waits for one of %d places; others are at work on their hosts", w.Places)
	}
	w.phases(job.Phase, reason, message)
}

// phases sets the conditions: those before the phase are true, that of the phase has the reason, and those behind it
// wait.
func (w *instanceWork) phases(phase, reason, message string) {
	at := conditionOf(phase)
	past := true
	for _, kind := range phaseConditions() {
		switch {
		case kind == at:
			past = false
			setCondition(w.i, kind, false, reason, message)
		case past:
			setCondition(w.i, kind, true, infrav1.DoneReason, "")
		default:
			setCondition(w.i, kind, false, infrav1.WaitingReason, "after "+at)
		}
	}
}

// provisioned writes that all is done. The annotation alone says so: conditions are lost when the object is moved.
func (w *instanceWork) provisioned() {
	w.i.Status.State, w.i.Status.Attempts, w.i.Status.NextAttempt = infrav1.InstanceRunning, 0, nil
	for _, kind := range phaseConditions() {
		setCondition(w.i, kind, true, infrav1.DoneReason, "")
	}
}

// provision begins the run that makes the host a node, unless that is done or something is missing.
func (w *instanceWork) provision(ctx context.Context) (ctrl.Result, error) {
	if controllerutil.AddFinalizer(w.i, infrav1.InstanceFinalizer) {
		if err := w.patch(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	if w.i.Annotations[infrav1.ProvisionedAnnotation] != "" {
		if ToUpdate(w.i) {
			return w.update(ctx)
		}
		w.provisioned()
		return noResult()
	}
	if wait := w.untilNextAttempt(); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if w.i.Status.State == "" {
		w.i.Status.State = infrav1.InstancePending
	}
	in, err := w.inputs(ctx)
	if err != nil {
		return w.lacking(err)
	}
	in.cleanFirst = w.mayCleanFirst()
	w.phases("", infrav1.WaitingReason, "begins")
	setAnnotation(w.i, blockMoveAnnotation, "")
	if w.i.Annotations[infrav1.BegunAnnotation] == "" {
		setAnnotation(w.i, infrav1.BegunAnnotation, time.Now().UTC().Format(time.RFC3339))
	}
	if err := w.patch(ctx); err != nil { // before the run: it must be known that something may be on the host
		return ctrl.Result{}, err
	}
	prepare, do := w.provisionJob(in)
	w.pool.Start(w.key, jobProvision, prepare, do)
	return noResult()
}

func (w *instanceWork) untilNextAttempt() time.Duration {
	if w.i.Status.NextAttempt == nil {
		return 0
	}
	return time.Until(w.i.Status.NextAttempt.Time)
}

// lacking writes that an input is missing or wrong. Other errors are those of the API server.
func (w *instanceWork) lacking(err error) (ctrl.Result, error) {
	var missing *MissingError
	var version *versionError
	switch {
	case errors.As(err, &version):
		w.phases(hosts.PhaseBinary, infrav1.VersionMissingReason, version.Error())
	case errors.As(err, &missing):
		w.phases("", infrav1.MissingReason, missing.Error())
	default:
		return ctrl.Result{}, err
	}
	w.Recorder.Eventf(w.i, nil, corev1.EventTypeWarning, eventFailed, jobProvision, "%s", err)
	return ctrl.Result{RequeueAfter: w.Timing.Look}, nil
}

// mayCleanFirst reports whether the host is cleaned before the next run: the bootstrap data failed on it twice, and
// nothing of the cluster is lost by a new start. A control plane that joins may be a member of etcd already; its
// Machine is to be replaced instead.
func (w *instanceWork) mayCleanFirst() bool {
	c := conditions.Get(w.i, infrav1.ProvisioningCondition)
	if w.i.Status.Attempts < 2 || c == nil || c.Reason != infrav1.FailedReason {
		return false
	}
	initialized := w.cluster != nil && ptr.Deref(w.cluster.Status.Initialization.ControlPlaneInitialized, false)
	return w.i.Spec.Role == infrav1.RoleWorker || !initialized
}

// A versionError means that a bundle does not have a version.
type versionError struct{ message string }

func (e *versionError) Error() string { return e.message }

// inputs is all that a run needs.
type inputs struct {
	host       hosts.Host
	cluster    hosts.Cluster
	bundle     hosts.Bundle
	digest     string
	document   []byte
	cleanFirst bool
}

type provisionResult struct {
	done   hosts.Done
	digest string // of the document
	// brought is what an update has brought the host to.
	brought *infrav1.KKInstanceSpec
}

// provisionJob returns what gets the bundle, which other hosts may wait for, too, and the work on the host.
func (w *instanceWork) provisionJob(in inputs) (jobs.Prepare, jobs.Func) {
	// A job outlives the reconciliation, so it has no part of w but its key and spec.
	r, key, name := w.InstanceReconciler, w.key, w.i.Spec.HostName
	file, prepare := r.bring(in)
	return prepare, func(ctx context.Context, reached func(string)) (any, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, r.Timing.Run, fmt.Errorf("the run took longer than %s", r.Timing.Run))
		defer cancel()
		var result provisionResult
		if err := r.stillOurs(ctx, key, name); err != nil {
			return result, err
		}
		if in.cleanFirst {
			if _, err := r.Operator.Clean(ctx, in.host, in.cluster); err != nil {
				return result, err
			}
		}
		sum := sha256.Sum256(in.document)
		result.digest = "sha256:" + hex.EncodeToString(sum[:])
		var err error
		result.done, err = r.Operator.Provision(ctx,
			hosts.Work{Host: in.host, Cluster: in.cluster, Bundle: *file, Document: in.document}, reached)
		return result, err
	}
}

// bring returns the file of a bundle, which is there after prepare.
func (r *InstanceReconciler) bring(in inputs) (file *hosts.File, prepare jobs.Prepare) {
	file = &hosts.File{Trust: in.bundle.Trust, RequireSignature: in.bundle.RequireSignature}
	return file, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, r.Timing.Pull, fmt.Errorf("%s was not here after %s", in.bundle.Source, r.Timing.Pull))
		defer cancel()
		file.Path, err = r.Operator.Pull(ctx, in.bundle, in.digest)
		return err
	}
}

// stillOurs returns an error unless the machine has the host, as the API server says.
func (r *InstanceReconciler) stillOurs(ctx context.Context, key types.NamespacedName, host string) error {
	var h infrav1.KKHost
	if err := r.Live.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: host}, &h); err != nil {
		return err
	}
	if !hasConsumer(&h, key.Name) {
		return &MissingError{fmt.Sprintf("KKHost %s is not the host of KKMachine %s any more", host, key.Name)}
	}
	return nil
}

// inputs reads what the run needs that makes the host a node.
func (w *instanceWork) inputs(ctx context.Context) (in inputs, err error) {
	if in, err = w.bundled(ctx); err != nil {
		return in, err
	}
	data, err := secretOf(ctx, w, w.i.Namespace, "KKInstance "+w.i.Name+": spec.bootstrapSecretName", &infrav1.LocalRef{Name: w.i.Spec.BootstrapSecretName})
	if err != nil {
		return in, err
	}
	if in.document = data.Data["value"]; len(in.document) == 0 {
		return in, &MissingError{fmt.Sprintf("Secret %s has no bootstrap data under the key value", data.Name)}
	}
	return in, nil
}

// bundled reads what a run with the instance's bundle needs.
func (w *instanceWork) bundled(ctx context.Context) (in inputs, err error) {
	if in.host, err = w.host(ctx); err != nil {
		return in, err
	}
	spec := w.i.Spec
	var b infrav1.KKBundle
	switch err := w.Get(ctx, types.NamespacedName{Namespace: w.i.Namespace, Name: spec.BundleRef.Name}, &b); {
	case apierrors.IsNotFound(err):
		return in, &MissingError{fmt.Sprintf("KKCluster of %s: spec.bundleRef: there is no KKBundle %s in namespace %s; create it", spec.ClusterName, spec.BundleRef.Name, w.i.Namespace)}
	case err != nil:
		return in, err
	}
	if !conditions.IsTrue(&b, infrav1.ReadyCondition) {
		return in, &MissingError{fmt.Sprintf("KKBundle %s is not ready: %s", b.Name, conditions.GetMessage(&b, infrav1.ReadyCondition))}
	}
	if err := versionIn(&b, spec.Version); err != nil {
		return in, err
	}
	in.digest = b.Status.Digest
	if in.bundle, err = bundleSource(ctx, w.Client, &b); err != nil {
		return in, err
	}
	in.cluster = w.clusterSettings()
	registry, err := optionalSecret(ctx, w, w.i.Namespace, "KKCluster of "+spec.ClusterName+": spec.registry.secretRef", spec.Registry.SecretRef)
	if err != nil {
		return in, err
	}
	in.cluster.Registry = hosts.Registry{
		Address: spec.Registry.Address, Username: string(registry.Data[infrav1.SecretUsername]),
		Password: string(registry.Data[infrav1.SecretPassword]), CA: registry.Data[infrav1.SecretCA],
	}
	return in, nil
}

func (w *instanceWork) clusterSettings() hosts.Cluster {
	s := w.i.Spec
	return hosts.Cluster{
		Name: s.ClusterName, Version: s.Version, PodCIDR: s.PodCIDR, ServiceCIDR: s.ServiceCIDR,
		Runtime: s.ContainerManager.Type, Packages: s.Repository.Packages,
	}
}

// versionIn returns an error unless a bundle has a version.
func versionIn(b *infrav1.KKBundle, version string) error {
	if slices.Contains(b.Status.Versions, version) {
		return nil
	}
	return &versionError{fmt.Sprintf("version %s is not in KKBundle %s (%s %s), which has %s; name a bundle with this one in the KKCluster and delete the Machine, or name a version that it has",
		version, b.Name, b.Status.Name, b.Status.Version, listing(b.Status.Versions))}
}

// host reads the host, and the Secrets that it takes to reach it.
func (w *instanceWork) host(ctx context.Context) (hosts.Host, error) {
	var h infrav1.KKHost
	name := w.i.Spec.HostName
	switch err := w.Live.Get(ctx, types.NamespacedName{Namespace: w.i.Namespace, Name: name}, &h); {
	case apierrors.IsNotFound(err):
		return hosts.Host{}, &MissingError{fmt.Sprintf("there is no KKHost %s in namespace %s; create it again, or delete the Machine", name, w.i.Namespace)}
	case err != nil:
		return hosts.Host{}, err
	case !hasConsumer(&h, w.i.Name):
		return hosts.Host{}, &MissingError{fmt.Sprintf("KKHost %s: spec.consumer is not KKMachine %s; delete the Machine", name, w.i.Name)}
	}
	return w.reach(ctx, &h)
}

// firstUse reports whether a host's key may be accepted: none is known yet.
func firstUse(h *infrav1.KKHost) bool {
	return h.Spec.SSH.TrustOnFirstUse && strings.TrimSpace(h.Annotations[infrav1.HostKeyAnnotation]) == ""
}

// reach returns a host with its login. The host's Secrets must be held first: a host that was worked on must be reached
// again to be cleaned.
func (w *instanceWork) reach(ctx context.Context, h *infrav1.KKHost) (hosts.Host, error) {
	c := w.Client
	field := "KKHost " + h.Name + ": spec.ssh"
	login, err := secretOf(ctx, c, h.Namespace, field+".secretRef", &h.Spec.SSH.SecretRef)
	if err != nil {
		return hosts.Host{}, err
	}
	if !controllerutil.ContainsFinalizer(login, infrav1.LoginFinalizer) {
		return hosts.Host{}, &MissingError{fmt.Sprintf("%s.secretRef: Secret %s is not held yet", field, login.Name)}
	}
	known, err := optionalSecret(ctx, c, h.Namespace, field+".knownHostsRef", h.Spec.SSH.KnownHostsRef)
	if err != nil {
		return hosts.Host{}, err
	}
	out := hosts.Host{
		Name: w.i.Name, Owner: w.i.Namespace + "/" + w.i.Spec.ClusterName + "/" + w.i.Name, InternalIPv4: h.Spec.InternalIPv4, InternalIPv6: h.Spec.InternalIPv6,
		KnownHosts: slices.Concat(known.Data[infrav1.SecretKnownHosts], []byte("\n"), []byte(h.Annotations[infrav1.HostKeyAnnotation])),
		AcceptNew:  firstUse(h),
	}
	if out.Login, err = loginOf(login, h.Spec.Address, h.Spec.SSH.User, h.Spec.SSH.Port, field+".secretRef"); err != nil {
		return hosts.Host{}, err
	}
	for n, b := range h.Spec.SSH.Bastions {
		secret := login
		at := fmt.Sprintf("%s.bastions[%d].secretRef", field, n)
		if b.SecretRef != nil {
			if secret, err = secretOf(ctx, c, h.Namespace, at, b.SecretRef); err != nil {
				return hosts.Host{}, err
			}
		}
		hop, err := loginOf(secret, b.Address, b.User, b.Port, at)
		if err != nil {
			return hosts.Host{}, err
		}
		hop.SudoPassword = nil
		out.Bastions = append(out.Bastions, hop)
	}
	return out, nil
}

func loginOf(s *corev1.Secret, address, user string, port int32, field string) (hosts.Login, error) {
	l := hosts.Login{
		Address: address, User: user, Port: port,
		Key: s.Data[infrav1.SecretPrivateKey], Password: s.Data[infrav1.SecretPassword],
		SudoPassword: s.Data[infrav1.SecretSudoPassword],
	}
	if len(l.Key) == 0 && len(l.Password) == 0 {
		return l, &MissingError{fmt.Sprintf("%s: Secret %s has neither %s nor %s; add one", field, s.Name, infrav1.SecretPrivateKey, infrav1.SecretPassword)}
	}
	return l, nil
}

// clean begins the run that cleans the host of a deleted instance, and lets the instance go when that is not needed.
func (w *instanceWork) clean(ctx context.Context) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(w.i, infrav1.InstanceFinalizer) {
		return noResult()
	}
	if w.i.Annotations[infrav1.BegunAnnotation] == "" { // no run ever began: there is nothing on the host
		return ctrl.Result{}, w.release(ctx, "")
	}
	if w.i.Annotations[infrav1.CleaningAnnotation] == "" {
		setAnnotation(w.i, infrav1.CleaningAnnotation, time.Now().UTC().Format(time.RFC3339))
		w.i.Status.Attempts, w.i.Status.NextAttempt = 0, nil
	}
	w.i.Status.State = infrav1.InstanceCleaning
	if wait := w.untilNextAttempt(); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	var h infrav1.KKHost
	switch err := w.Live.Get(ctx, types.NamespacedName{Namespace: w.i.Namespace, Name: w.i.Spec.HostName}, &h); {
	case apierrors.IsNotFound(err):
		w.Recorder.Eventf(w.i, nil, corev1.EventTypeWarning, eventReleased, jobClean, "KKHost %s is gone: nobody has cleaned that host", w.i.Spec.HostName)
		controllerutil.RemoveFinalizer(w.i, infrav1.InstanceFinalizer)
		return noResult()
	case err != nil:
		return ctrl.Result{}, err
	case !hasConsumer(&h, w.i.Name): // released before the finalizer was removed; the host may be another's by now
		controllerutil.RemoveFinalizer(w.i, infrav1.InstanceFinalizer)
		return noResult()
	}
	host, err := w.reach(ctx, &h)
	var missing *MissingError
	if errors.As(err, &missing) {
		return ctrl.Result{RequeueAfter: time.Millisecond}, w.notCleaned(ctx, infrav1.MissingReason, missing)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	setCondition(w.i, infrav1.CleanedCondition, false, infrav1.RunningReason, "host "+h.Name+" is being cleaned")
	setAnnotation(w.i, blockMoveAnnotation, "")
	if err := w.patch(ctx); err != nil {
		return ctrl.Result{}, err
	}
	r, key, settings := w.InstanceReconciler, w.key, w.clusterSettings()
	w.pool.Start(w.key, jobClean, nil, func(ctx context.Context, _ func(string)) (any, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, r.Timing.Run, fmt.Errorf("the run took longer than %s", r.Timing.Run))
		defer cancel()
		if err := r.stillOurs(ctx, key, h.Name); err != nil {
			return provisionResult{}, err
		}
		done, err := r.Operator.Clean(ctx, host, settings)
		return provisionResult{done: done}, err
	})
	return noResult()
}

// record writes the outcome of a job.
func (w *instanceWork) record(ctx context.Context, job jobs.State) error {
	delete(w.i.Annotations, blockMoveAnnotation)
	result, _ := job.Value.(provisionResult)
	if met(job) {
		if err := w.keepKeys(ctx, result.done.KnownHosts); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(job.Err, jobs.ErrCancelled), errors.Is(job.Err, context.Canceled):
		return nil
	case job.Kind == jobClean && job.Err != nil:
		reason, _ := reasonOf(job.Err)
		return w.notCleaned(ctx, reason, job.Err)
	case job.Kind == jobClean:
		setCondition(w.i, infrav1.CleanedCondition, true, infrav1.DoneReason, "")
		return w.release(ctx, "")
	case job.Kind == jobUpdate:
		w.recordUpdate(job)
		return nil
	case job.Err != nil:
		reason, message := reasonOf(job.Err)
		w.ended(reason)
		if w.i.Status.State = infrav1.InstancePending; w.i.Status.Attempts >= failedAttempts {
			w.i.Status.State = infrav1.InstanceFailed
			message += fmt.Sprintf(" (%d runs failed; delete the Machine to take another host)", w.i.Status.Attempts)
		}
		w.phases(job.Phase, reason, message)
		w.Recorder.Eventf(w.i, nil, corev1.EventTypeWarning, eventFailed, jobProvision, "host %s, %s: %s", w.i.Spec.HostName, conditionOf(job.Phase), message)
		return nil
	}
	setAnnotation(w.i, infrav1.ProvisionedAnnotation, result.digest)
	w.provisioned()
	w.Recorder.Eventf(w.i, nil, corev1.EventTypeNormal, eventProvisioned, jobProvision, "host %s runs Kubernetes %s", w.i.Spec.HostName, w.i.Spec.Version)
	return nil
}

// ended counts a run that did not succeed, and sets the time of the next one. A run that found another one at work,
// such as that of a killed manager, has failed at nothing: the next one follows soon.
func (w *instanceWork) ended(reason string) {
	pause := w.Timing.pause(1)
	if reason != infrav1.BusyReason {
		w.i.Status.Attempts++
		pause = w.Timing.pause(w.i.Status.Attempts)
	}
	w.i.Status.NextAttempt = ptr.To(metav1.NewTime(time.Now().Add(pause)))
}

// met reports whether a job's run has met the host. One that has not may have met a bastion, whose key alone must not
// end the first use.
func met(job jobs.State) bool {
	var f *hosts.Failure
	switch {
	case job.Err == nil:
		return true
	case errors.As(job.Err, &f):
		return !f.Unreachable()
	}
	return job.Phase != ""
}

// keepKeys keeps the keys of a host that were accepted on first use.
func (w *instanceWork) keepKeys(ctx context.Context, known []byte) error {
	if len(bytes.TrimSpace(known)) == 0 {
		return nil
	}
	var h infrav1.KKHost
	if err := w.Live.Get(ctx, types.NamespacedName{Namespace: w.i.Namespace, Name: w.i.Spec.HostName}, &h); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !firstUse(&h) || len(known) > maxKnownHosts {
		return nil
	}
	setAnnotation(&h, infrav1.HostKeyAnnotation, string(known))
	return w.Update(ctx, &h)
}

// maxKnownHosts is far above the lines of a host and its bastions.
const maxKnownHosts = 64 << 10

// reasonOf returns the reason of a condition, and the message.
func reasonOf(err error) (reason, message string) {
	var f *hosts.Failure
	var missing *MissingError
	switch {
	case errors.As(err, &missing):
		return infrav1.MissingReason, err.Error()
	case !errors.As(err, &f):
		return infrav1.FailedReason, err.Error()
	case f.Unreachable():
		reason = infrav1.UnreachableReason
	case f.Busy():
		reason = infrav1.BusyReason
	case f.Input():
		reason = infrav1.RefusedReason
	default:
		reason = infrav1.FailedReason
	}
	return reason, f.Error()
}

// notCleaned writes that the host is not clean. After some time it is given up; at once if kkbundle refuses it, as a
// repeated run would be refused, too.
func (w *instanceWork) notCleaned(ctx context.Context, reason string, err error) error {
	w.ended(reason)
	setCondition(w.i, infrav1.CleanedCondition, false, reason, err.Error())
	began, parseErr := time.Parse(time.RFC3339, w.i.Annotations[infrav1.CleaningAnnotation])
	var f *hosts.Failure
	refused := errors.As(err, &f) && f.Refused()
	if parseErr == nil && time.Since(began) < w.Timing.Quarantine && !refused {
		w.Recorder.Eventf(w.i, nil, corev1.EventTypeWarning, eventFailed, jobClean, "host %s is not clean: %s", w.i.Spec.HostName, err)
		return nil
	}
	w.i.Status.State = infrav1.InstanceQuarantined
	return w.release(ctx, err.Error())
}

// release puts the host back into the pool, or into quarantine for a reason, and lets the instance go. The finalizer
// goes last: a repeated release sees that the host is not the instance's any more.
func (w *instanceWork) release(ctx context.Context, quarantine string) error {
	var h infrav1.KKHost
	err := w.Live.Get(ctx, types.NamespacedName{Namespace: w.i.Namespace, Name: w.i.Spec.HostName}, &h)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && hasConsumer(&h, w.i.Name) {
		free(&h)
		if key := ownerKey(w.i.Labels); key != "" && w.i.Annotations[infrav1.BegunAnnotation] != "" {
			setAnnotation(&h, infrav1.LastOwnerAnnotation, key)
		}
		if quarantine != "" {
			setAnnotation(&h, infrav1.QuarantineAnnotation, capped(fmt.Sprintf("not cleaned after cluster %s: %s", w.i.Spec.ClusterName, quarantine)))
		}
		// with the resource version that was read: nobody has changed the host since
		if err := w.Update(ctx, &h); err != nil {
			return err
		}
		if quarantine != "" {
			w.Recorder.Eventf(&h, w.i, corev1.EventTypeWarning, eventQuarantined, jobClean, "%s", h.Annotations[infrav1.QuarantineAnnotation])
		} else {
			w.Recorder.Eventf(&h, w.i, corev1.EventTypeNormal, eventReleased, jobClean, "clean, and free again after cluster %s", w.i.Spec.ClusterName)
		}
	}
	controllerutil.RemoveFinalizer(w.i, infrav1.InstanceFinalizer)
	return nil
}

// free takes a host from its machine.
func free(h *infrav1.KKHost) {
	h.Spec.Consumer = nil
	controllerutil.RemoveFinalizer(h, infrav1.HostFinalizer)
}

// capped returns the beginning of a long text, for an annotation.
func capped(s string) string {
	const most = 2000
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
