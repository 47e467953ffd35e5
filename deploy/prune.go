package deploy

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
)

// String returns kind, namespace and name.
func (o Object) String() string {
	return o.Kind + " " + strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
}

func (o Object) unstructured() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(o.APIVersion)
	u.SetKind(o.Kind)
	u.SetNamespace(o.Namespace)
	u.SetName(o.Name)
	return u
}

// served returns an object in a version that the API server has, since the recorded one can have ended.
func (c *cluster) served(o Object) *unstructured.Unstructured {
	u := o.unstructured()
	gvk := u.GroupVersionKind()
	if _, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version); meta.IsNoMatchError(err) {
		if mapping, err := c.mapper.RESTMapping(gvk.GroupKind()); err == nil {
			u.SetGroupVersionKind(mapping.GroupVersionKind)
		}
	}
	return u
}

// identity returns a text for an object that does not depend on its version and on how its namespace was written.
// namespace is that of objects without one.
func (c *cluster) identity(o *unstructured.Unstructured, namespace string) (string, error) {
	o = o.DeepCopy()
	if _, err := c.resource(o, namespace); err != nil {
		return "", err
	}
	return key(o, ""), nil
}

// orphans names the releases and objects of YAML that an earlier version of the bundle had and this one lacks, and with
// Prune removes them. It reports whether the record changed.
func (r *run) orphans(ctx context.Context) (changed bool, err error) {
	now, err := r.identities()
	if err != nil {
		return false, err
	}
	if r.claimed, err = r.claims(r.others); err != nil {
		return false, err
	}
	for _, p := range slices.Clone(r.record.Parts) {
		left, err := r.orphansOf(ctx, p, now)
		if err != nil {
			return changed, &PartError{p.String(), err}
		}
		i := slices.IndexFunc(r.record.Parts, func(other Part) bool { return other.String() == p.String() })
		switch {
		case left == nil:
			r.record.Parts = slices.Delete(r.record.Parts, i, i+1)
		case len(left.Objects) != len(p.Objects):
			r.record.Parts[i] = *left
		default:
			continue
		}
		if changed = true; r.DryRun {
			continue
		}
		if err := r.write(ctx, r.record); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// orphansOf returns the part without its removed objects, nil if no object of it is left.
func (r *run) orphansOf(ctx context.Context, p Part, now map[string]bool) (left *Part, err error) {
	gone := !slices.ContainsFunc(r.steps, func(s *step) bool { return s.name() == p.String() })
	if gone && p.Chart != "" {
		return r.orphanRelease(ctx, p)
	}
	kept := p
	kept.Objects = nil
	for _, o := range slices.Backward(p.Objects) { // as Remove does
		identity, err := r.identity(r.served(o), p.Namespace)
		switch {
		case meta.IsNoMatchError(err): // without its definition, it is gone
		case err != nil:
			return nil, err
		case now[identity]:
			if !gone {
				kept.Objects = append(kept.Objects, o)
			}
		default:
			stays, err := r.orphan(ctx, p, o)
			if err != nil {
				return nil, err
			}
			if stays {
				kept.Objects = append(kept.Objects, o)
			}
		}
	}
	slices.Reverse(kept.Objects)
	if gone && len(kept.Objects) == 0 {
		return nil, nil
	}
	return &kept, nil
}

// identities returns the identities of all objects of this version, also of charts.
func (r *run) identities() (map[string]bool, error) {
	set := map[string]bool{}
	for _, p := range r.previews {
		objects, err := kube.ParseManifest(p.objects.text)
		if err != nil {
			return nil, &PartError{p.step.name(), err}
		}
		for _, o := range objects {
			identity, err := r.identity(o, p.step.Namespace)
			if meta.IsNoMatchError(err) {
				continue // a dry run before its definition
			}
			if err != nil {
				return nil, &PartError{p.step.name(), err}
			}
			set[identity] = true
		}
	}
	return set, nil
}

const staysUntil = "; it stays until deploy --prune or deploy remove"

// orphanRelease returns the part if its release stays.
func (r *run) orphanRelease(ctx context.Context, p Part) (*Part, error) {
	if !r.Prune {
		r.warn(p.String(), "this version of the bundle has no such release"+staysUntil)
		return &p, nil
	}
	kept, err := r.uninstall(ctx, p, removing{dryRun: r.DryRun, logger: r.Logger})
	switch {
	case err != nil:
		return nil, err
	case kept != "":
		r.warn(p.String(), "the release stays: "+string(kept))
	default:
		r.removed(p.String(), "release "+p.String())
	}
	return nil, nil
}

// orphan reports whether an object stays.
func (r *run) orphan(ctx context.Context, p Part, o Object) (stays bool, err error) {
	if !r.Prune {
		r.warn(p.String(), o.String()+" is no longer in its YAML"+staysUntil)
		return true, nil
	}
	if o.Kind == kindNamespace {
		r.warn(p.String(), o.String()+" is no longer in its YAML; it stays until deploy remove")
		return true, nil
	}
	kept, err := r.deleteObject(ctx, o, removing{namespace: p.Namespace, claimed: r.claimed, dryRun: r.DryRun})
	switch {
	case err != nil:
		return true, err
	case kept != "":
		r.warn(p.String(), o.String()+" stays: "+string(kept))
		return kept == keptData, nil
	}
	r.removed(p.String(), o.String())
	return false, nil
}

func (r *run) removed(part, what string) {
	r.report.Removed = append(r.report.Removed, what)
	if r.DryRun {
		r.say(part, what+" would be removed")
		return
	}
	r.say(part, what+" removed")
}

// A keepReason says why an object stays; "" if it does not.
type keepReason string

const (
	keptData    keepReason = "it may hold data"
	keptTaken   keepReason = "another program made it since"
	keptClaimed keepReason = "another bundle has it, too"
)

// removing is how parts are removed.
type removing struct {
	namespace string          // of objects without one
	claimed   map[string]bool // identities of the objects of other bundles
	dryRun    bool
	logger    *slog.Logger
}

// claims returns the identities of the objects of YAML in records.
func (c *cluster) claims(list []*Record) (map[string]bool, error) {
	set := map[string]bool{}
	for _, one := range list {
		for _, p := range one.Parts {
			for _, o := range p.Objects {
				identity, err := c.identity(c.served(o), p.Namespace)
				if meta.IsNoMatchError(err) {
					continue // without its definition, it is gone
				}
				if err != nil {
					return nil, &ObjectError{o.String(), err}
				}
				set[identity] = true
			}
		}
	}
	return set, nil
}

// uninstall removes a release that deploy made, and returns the reason if it keeps the release.
func (c *cluster) uninstall(ctx context.Context, p Part, how removing) (kept keepReason, err error) {
	o := charts.InstallOptions{Cluster: c.shared, Namespace: p.Namespace, Release: p.Release, Logger: how.logger}
	own, err := charts.IsOwn(ctx, o)
	if err != nil || how.dryRun && own {
		return "", err
	}
	if !own {
		return keptTaken, nil
	}
	_, err = charts.Uninstall(ctx, o)
	return "", err
}

// deleteObject deletes an object that deploy applied, and returns the reason if it keeps the object.
func (c *cluster) deleteObject(ctx context.Context, o Object, how removing) (kept keepReason, err error) {
	switch o.Kind {
	case kindDefinition, "PersistentVolumeClaim", "PersistentVolume":
		return keptData, nil
	}
	target := c.served(o)
	client, err := c.resource(target, how.namespace) // which completes the target
	if meta.IsNoMatchError(err) {
		return "", nil // without its definition, it is gone
	}
	if err != nil {
		return "", &ObjectError{o.String(), err}
	}
	if how.claimed[key(target, "")] {
		return keptClaimed, nil
	}
	live, err := client.Get(ctx, o.Name, metav1.GetOptions{})
	if err == nil && !isApplied(live) {
		return keptTaken, nil
	}
	if err == nil {
		background, uid := metav1.DeletePropagationBackground, live.GetUID()
		options := metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid}}
		if how.dryRun {
			options.DryRun = []string{metav1.DryRunAll}
		}
		err = client.Delete(ctx, o.Name, options)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return "", &ObjectError{o.String(), err}
	}
	return "", nil
}

// isApplied reports whether deploy applied an object that exists.
func isApplied(live *unstructured.Unstructured) bool {
	return slices.ContainsFunc(live.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == kube.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply
	})
}
