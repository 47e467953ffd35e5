package deploy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// An UnreachableError means the API server does not answer, or does not accept the kubeconfig's credentials.
type UnreachableError struct {
	Server string
	Err    error
}

// Error names the API server and the reason.
func (e *UnreachableError) Error() string { return fmt.Sprintf("API server %s: %v", e.Server, e.Err) }

// Unwrap returns the reason.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *UnreachableError) Hint() string {
	if apierrors.IsUnauthorized(e.Err) {
		return "renew the credentials of the kubeconfig; kubectl get --raw /version tries them"
	}
	var network net.Error
	var address *url.Error
	if errors.As(e.Err, &network) || errors.As(e.Err, &address) || errors.Is(e.Err, errNoAPI) {
		return "check the server in the kubeconfig, --context and the network: kubectl get --raw /version must answer"
	}
	return ""
}

// An ObjectError is the API server's refusal of an object.
type ObjectError struct {
	Object string
	Err    error
}

// Error names the object and the reason.
func (e *ObjectError) Error() string { return e.Object + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *ObjectError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *ObjectError) Hint() string { return remedy(e.Err) }

// A PartError is a failed release, or YAML that could not be applied.
type PartError struct {
	Part string
	Err  error
}

// Error names the release and the reason.
func (e *PartError) Error() string { return e.Part + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *PartError) Unwrap() error { return e.Err }

// Hint returns the remedy.
func (e *PartError) Hint() string { return remedy(e.Err) }

// remedy returns what to do about a refusal of the API server. Helm passes some on as text only.
func remedy(err error) string {
	message := err.Error()
	switch {
	case errors.Is(err, errTerminating), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause),
		strings.Contains(message, "because it is being terminated"):
		return "wait until the namespace is gone (kubectl get namespace), then run the same command again; if it stays, look for finalizers"
	case strings.Contains(message, "exceeded quota"):
		return "raise the ResourceQuota that the message names, or lower the requests with values (--set, --values)"
	case strings.Contains(message, "field is immutable"), strings.Contains(message, "are forbidden: Forbidden") &&
		strings.Contains(message, "updates to"),
		strings.Contains(message, "updates to statefulset spec for fields other than"):
		return "Kubernetes cannot change this field of an existing object: delete the object (kubectl delete), then run the same command again"
	case apierrors.IsForbidden(err), strings.Contains(message, "is forbidden: User"):
		return "give the user of the kubeconfig the verb and resource that the message names, with a Role or ClusterRole and a binding"
	case apierrors.IsConflict(err):
		return "another program owns these fields: leave them to it, or take them over with --force-conflicts"
	case meta.IsNoMatchError(err), strings.Contains(message, "no matches for kind"):
		return "the cluster does not know this kind: install its definition first, as an earlier entry of deploy"
	case strings.Contains(message, "invalid ownership metadata"):
		return "the object exists and belongs to something else: delete it, choose another release name, or take it over as Helm's documentation says"
	case isConnectionLost(err):
		return "the API server does not answer: run the same command again when it does; finished releases stay"
	}
	return ""
}

// isConnectionLost reports whether the API server did not answer. Helm passes some errors on as text only.
func isConnectionLost(err error) bool {
	var request *url.Error
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return errors.As(err, &request) && !late || strings.Contains(err.Error(), "connection refused")
}

// A MissingError lists images that the objects name and the bundle lacks. Nothing was changed.
type MissingError struct{ Images []string }

// Error has a line for each image.
func (e *MissingError) Error() string {
	return fmt.Sprintf("the bundle lacks images that would be deployed:\n  %s", strings.Join(e.Images, "\n  "))
}

// Hint returns the remedy.
func (*MissingError) Hint() string {
	return "list them under images of the manifest, or give the values to deploy in the manifest, and build again; names under excludeImages are left alone"
}

// A TakenError means a release belongs to somebody else.
type TakenError struct {
	Release, By string
}

// Error names the release and its owner.
func (e *TakenError) Error() string {
	return fmt.Sprintf("release %s exists and was installed by %s", e.Release, e.By)
}

// Hint returns the remedy.
func (e *TakenError) Hint() string {
	return "take it over with --adopt, or write another release name or namespace into the manifest"
}

// A BusyError means the helm command changes a release, or began to and did not end.
type BusyError struct {
	Release string
	// Status is the state of the release as Helm names it.
	Status string
}

// Error names the release and its state.
func (e *BusyError) Error() string {
	return fmt.Sprintf("release %s: the helm command is at work (%s)", e.Release, e.Status)
}

// Hint returns the remedy.
func (e *BusyError) Hint() string {
	return "wait for the helm command; if it was killed, take the release over with --adopt"
}

// A LockedError means another run deploys into the cluster.
type LockedError struct{ Who, Since string }

// Error names the other run.
func (e *LockedError) Error() string {
	return fmt.Sprintf("locked by another run: %s deploys into this cluster since %s", e.Who, e.Since)
}

// Hint returns the remedy.
func (*LockedError) Hint() string {
	return "wait for the other run; the lock of a run that was killed ends a minute after it"
}

// An UnknownError means nothing of that name is deployed.
type UnknownError struct {
	Name  string
	Known []string
}

// Error lists the names that are deployed.
func (e *UnknownError) Error() string {
	known := "nothing is"
	if len(e.Known) > 0 {
		known = strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("no bundle %s is deployed in this cluster; deployed: %s", e.Name, known)
}
