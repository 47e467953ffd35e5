package deploy

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
)

// errTerminating means somebody deletes a namespace that a part needs.
var errTerminating = errors.New("it is being terminated")

// ownership returns an error if the part is a release that belongs to somebody else.
func (p *preview) ownership() error {
	switch {
	case p.foreign:
		return &TakenError{p.step.name(), "somebody else, with Helm"}
	case p.pending != "":
		return &BusyError{p.step.name(), p.pending}
	}
	return nil
}

// checkNamespaces returns an error for each namespace that is being deleted.
func (r *run) checkNamespaces(ctx context.Context) error {
	seen := map[string]bool{}
	var errs []error
	for _, p := range r.previews {
		for _, name := range p.namespaces() {
			if seen[name] {
				continue
			}
			seen[name] = true
			live, err := r.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if err == nil && live.DeletionTimestamp != nil {
				err = errTerminating
			}
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, &ObjectError{kindNamespace + " " + name, err})
			}
		}
	}
	return errors.Join(errs...)
}

// checkConflicts asks the API server which fields of YAML other programs own, and returns all of them. Other refusals
// are left to the change itself: an earlier part can have made them void by then.
func (r *run) checkConflicts(ctx context.Context) error {
	if r.Force {
		return nil
	}
	var errs []error
	for _, p := range r.previews {
		if p.step.Chart != "" {
			continue
		}
		objects, err := kube.ParseManifest(p.objects.text)
		if err != nil {
			return &PartError{p.step.name(), err}
		}
		for _, o := range objects {
			_, _, err := r.apply(ctx, o, applying{namespace: p.step.Namespace, dryRun: true})
			if apierrors.IsConflict(err) {
				errs = append(errs, &PartError{p.step.name(), err})
			} else if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}
