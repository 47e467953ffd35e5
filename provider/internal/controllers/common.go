// Package controllers reconciles the objects of the provider. The work on hosts is done by jobs; no reconciler waits
// for a host.
package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// Labels and annotations of clusterctl, whose package would bring all of clusterctl along.
const (
	moveLabel           = "clusterctl.cluster.x-k8s.io/move"
	blockMoveAnnotation = "clusterctl.cluster.x-k8s.io/block-move"
)

// Reasons of events.
const (
	eventClaimed     = "HostClaimed"
	eventReleased    = "HostReleased"
	eventProvisioned = "Provisioned"
	eventFailed      = "RunFailed"
	eventQuarantined = "HostQuarantined"
	eventInspected   = "BundleRead"
)

// A noteRecorder keeps events below the length of the API server, which refuses longer ones.
type noteRecorder struct{ events.EventRecorder }

const maxNote = 1000 // bytes; the API server wants less than 1024

// Eventf implements events.EventRecorder.
//
//nolint:revive // client-go's arguments
func (r noteRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	if text := fmt.Sprintf(note, args...); len(text) > maxNote {
		note, args = "%s...", []any{strings.ToValidUTF8(text[:maxNote-len("...")], "")}
	}
	r.EventRecorder.Eventf(regarding, related, kind, reason, action, note, args...)
}

// setCondition sets a condition that is true or false.
func setCondition(o conditions.Setter, kind string, ok bool, reason, message string) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	conditions.Set(o, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message})
}

// clusterByName returns a Cluster, or nil if there is none.
func clusterByName(ctx context.Context, c client.Reader, namespace, name string) (*clusterv1.Cluster, error) {
	var cluster clusterv1.Cluster
	err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &cluster)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	return &cluster, err
}

// A MissingError means that an object is not there, or lacks what it should have.
type MissingError struct{ Message string }

func (e *MissingError) Error() string { return e.Message }

// secretOf returns the Secret that a field of an object names.
func secretOf(ctx context.Context, c client.Reader, namespace, field string,
	ref *infrav1.LocalRef,
) (*corev1.Secret, error) {
	var s corev1.Secret
	err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, &s)
	if apierrors.IsNotFound(err) {
		return nil, &MissingError{fmt.Sprintf("%s: Secret %s is not in namespace %s; create it, or name another one", field, ref.Name, namespace)}
	}
	return &s, err
}

// optionalSecret is secretOf for a field that may be empty. Without it the Secret has no data.
func optionalSecret(ctx context.Context, c client.Reader, namespace, field string,
	ref *infrav1.LocalRef,
) (*corev1.Secret, error) {
	if ref == nil {
		return &corev1.Secret{}, nil
	}
	return secretOf(ctx, c, namespace, field, ref)
}

// hostSecrets returns the names of the Secrets that it takes to reach a host.
func hostSecrets(h *infrav1.KKHost) []string {
	names := []string{h.Spec.SSH.SecretRef.Name}
	if ref := h.Spec.SSH.KnownHostsRef; ref != nil {
		names = append(names, ref.Name)
	}
	for _, b := range h.Spec.SSH.Bastions {
		if b.SecretRef != nil {
			names = append(names, b.SecretRef.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ownerKey identifies what a machine belongs to, across its replacements: the control plane, or a MachineDeployment or
// MachineSet.
func ownerKey(labels map[string]string) string {
	cluster := labels[clusterv1.ClusterNameLabel]
	for _, label := range []string{
		clusterv1.MachineControlPlaneNameLabel, clusterv1.MachineDeploymentNameLabel,
		clusterv1.MachineSetNameLabel,
	} {
		if name := labels[label]; name != "" {
			return cluster + "/" + name
		}
	}
	return cluster
}

// hasConsumer reports whether the machine of this name has the host.
func hasConsumer(h *infrav1.KKHost, machine string) bool {
	return h.Spec.Consumer != nil && h.Spec.Consumer.Machine == machine
}

// setMoved sets or removes the label by which clusterctl moves an object that no Cluster owns, and reports whether that
// changed it.
func setMoved(o client.Object, want bool) bool {
	labels := o.GetLabels()
	if _, has := labels[moveLabel]; has == want {
		return false
	}
	if want {
		if labels == nil {
			labels = map[string]string{}
		}
		labels[moveLabel] = ""
	} else {
		delete(labels, moveLabel)
	}
	o.SetLabels(labels)
	return true
}

func setAnnotation(o client.Object, name, value string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	o.SetAnnotations(annotations)
}

// noResult is the result of a reconciler that waits for an event.
func noResult() (ctrl.Result, error) { return ctrl.Result{}, nil }
