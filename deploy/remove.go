package deploy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// RemoveOptions configure Remove.
type RemoveOptions struct {
	Cluster *rest.Config
	// Name is the name of the bundle.
	Name string
	// By names this run for a second one.
	By string
	// Confirm, if set, is asked before anything is removed.
	Confirm  func(*Record) error
	Progress func(Event)
	Logger   *slog.Logger
}

// remover is the state of Remove.
type remover struct {
	RemoveOptions
	*cluster
	record *Record
	others []*Record // of other bundles
	kept   []string
}

// Remove removes what Run made for a bundle, in reverse order: releases, objects of YAML, the admission policy, pull
// secrets, and namespaces that Run created and that are empty. It keeps custom resource definitions and volume
// claims, since they hold data, and returns what it kept. An interrupted run is continued by the next.
func Remove(ctx context.Context, o RemoveOptions) (kept []string, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := connect(ctx, o.Cluster, o.Logger)
	if err != nil {
		return nil, err
	}
	r := &remover{RemoveOptions: o, cluster: c}
	if err := r.find(ctx); err != nil {
		return nil, err
	}
	if o.Confirm != nil {
		if err := o.Confirm(r.record); err != nil {
			return nil, err
		}
	}
	held, unlock, err := c.lock(ctx, o.By)
	if err != nil {
		return nil, err
	}
	err = r.remove(held)
	if errors.Is(context.Cause(held), errLost) {
		err = errLost
	}
	unlock()
	if err != nil {
		return r.kept, err
	}
	return r.kept, r.last(ctx)
}

func (r *remover) find(ctx context.Context) error {
	list, err := r.records(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, one := range list {
		if known = append(known, one.Name); one.Name == r.Name {
			r.record = one
		} else {
			r.others = append(r.others, one)
		}
	}
	if r.record == nil {
		return &UnknownError{r.Name, known}
	}
	return nil
}

func (r *remover) remove(ctx context.Context) error {
	r.record.State = StateRemoving
	if err := r.write(ctx, r.record); err != nil {
		return err
	}
	claimed, err := r.claims(r.others)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(r.record.Parts) {
		err := r.part(ctx, p, removing{namespace: p.Namespace, claimed: claimed, logger: r.Logger})
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return &PartError{p.String(), err}
		}
		r.say(p.String(), "removed")
	}
	if r.record.Redirect != nil {
		if err := r.removePolicy(ctx, r.Name); err != nil {
			return err
		}
	}
	for _, namespace := range r.record.Pulls {
		name := "kkbundle.pull." + r.Name
		err := r.kube.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return &ObjectError{"Secret " + namespace + "/" + name, err}
		}
	}
	for _, namespace := range r.record.Namespaces {
		if err := r.namespace(ctx, namespace, 30*time.Second); err != nil {
			return err
		}
	}
	if len(r.record.SecretValues) > 0 {
		if err := r.forgetSecrets(ctx, r.Name); err != nil {
			return err
		}
	}
	return r.forget(ctx, r.Name)
}

// part removes a release, and the objects of YAML, last first. A part can have been YAML before it became a release.
func (r *remover) part(ctx context.Context, p Part, how removing) error {
	if p.Chart != "" {
		kept, err := r.uninstall(ctx, p, how)
		if err != nil {
			return err
		}
		if kept != "" {
			r.kept = append(r.kept, "release "+p.String()+": "+string(kept))
		}
	}
	for _, o := range slices.Backward(p.Objects) {
		if o.Kind == kindNamespace { // see namespace
			continue
		}
		kept, err := r.deleteObject(ctx, o, how)
		if err != nil {
			return err
		}
		if kept != "" {
			r.kept = append(r.kept, o.String()+": "+string(kept))
		}
	}
	return nil
}

// namespace deletes a namespace that deploy created, once it is empty. Pods end some time after their workloads.
func (r *remover) namespace(ctx context.Context, name string, patience time.Duration) error {
	live, err := r.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return &ObjectError{kindNamespace + " " + name, err}
	}
	if !isOf(live, r.Name) {
		r.kept = append(r.kept, kindNamespace+" "+name+": its labels say that it belongs to somebody else now")
		return nil
	}
	end := time.Now().Add(patience)
	for {
		left, err := r.contents(ctx, name)
		if err != nil {
			return &ObjectError{kindNamespace + " " + name, err}
		}
		if left == "" {
			break
		}
		if time.Now().After(end) {
			r.kept = append(r.kept, kindNamespace+" "+name+": it still has "+left)
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
	err = r.kube.CoreV1().Namespaces().Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return &ObjectError{kindNamespace + " " + name, err}
	}
	r.say("", "namespace "+name+" removed")
	return nil
}

// contents returns an object in a namespace that Kubernetes itself did not put there, "" if there is none.
func (r *remover) contents(ctx context.Context, namespace string) (string, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(r.shared.Discovery())
	if err != nil {
		return "", err // some of it is unknown
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return "", err
		}
		for _, kind := range list.APIResources {
			if isDerived(kind.Kind) {
				continue
			}
			found, err := r.any.Resource(gv.WithResource(kind.Name)).Namespace(namespace).List(ctx,
				metav1.ListOptions{Limit: 50})
			if err != nil {
				return "", fmt.Errorf("list %s: %w", kind.Name, err)
			}
			for i := range found.Items {
				if o := &found.Items[i]; !isKubernetesOwn(o) {
					return kind.Kind + " " + o.GetName(), nil
				}
			}
		}
	}
	return "", nil
}

// isDerived reports whether controllers derive the objects of a kind from others.
func isDerived(kind string) bool {
	return slices.Contains([]string{"Event", "Lease", "EndpointSlice", "Endpoints", "PodMetrics"}, kind)
}

// isKubernetesOwn reports whether controllers put an object into every namespace.
func isKubernetesOwn(o *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "ServiceAccount":
		return slices.Contains([]string{"default", "builder", "deployer"}, o.GetName())
	case "ConfigMap":
		return slices.Contains([]string{"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"},
			o.GetName())
	case "Secret":
		return o.Object["type"] == string(corev1.SecretTypeServiceAccountToken)
	}
	return false
}

// last removes the namespace of records after the last record.
func (r *remover) last(ctx context.Context) error {
	list, err := r.records(ctx)
	if err != nil || len(list) > 0 {
		return err
	}
	live, err := r.kube.CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return &ObjectError{kindNamespace + " " + Namespace, err}
	}
	if left, err := r.contents(ctx, Namespace); err != nil || left != "" || live.Labels[ManagedLabel] != managedBy {
		return err
	}
	err = r.kube.CoreV1().Namespaces().Delete(ctx, Namespace,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return &ObjectError{kindNamespace + " " + Namespace, err}
	}
	return nil
}

func (r *remover) say(part, message string) {
	if r.Progress != nil {
		r.Progress(Event{Part: part, Message: message})
	}
}
