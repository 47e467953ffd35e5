package inplace

import (
	"context"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Name is that of the ExtensionConfig.
const Name = "kkbundle-provider"

// A Registration keeps the ExtensionConfig by which Cluster API knows the extension. It is no part of the components
// that clusterctl applies: Cluster API refuses one while its feature RuntimeSDK is off, and nothing else of the
// provider must be missing for that.
type Registration struct {
	Client client.Client
	Live   client.Reader
	// Service is the Service of the extension, and Secret has the certificate that signs its own.
	Service runtimev1.ServiceReference
	Secret  string
	// Pause is the time between two looks.
	Pause time.Duration
}

// Start looks for the ExtensionConfig again and again. Whoever has the leader's lease does it.
func (r *Registration) Start(ctx context.Context) error {
	var last string
	for {
		said := ""
		if err := r.register(ctx); err != nil {
			said = err.Error()
		}
		if said != "" && said != last {
			ctrl.LoggerFrom(ctx).Info("there are no upgrades in place; machines are replaced", "why", said)
		}
		last = said
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.Pause):
		}
	}
}

func (r *Registration) register(ctx context.Context) error {
	const ca = runtimev1.InjectCAFromSecretAnnotation
	want := &runtimev1.ExtensionConfig{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name,
			// clusterctl does not remove it with the provider, as it was not made by it; the label only tells people
			// whose it is.
			Labels:      map[string]string{clusterv1.ProviderNameLabel: "infrastructure-kkbundle"},
			Annotations: map[string]string{ca: r.Service.Namespace + "/" + r.Secret},
		},
		Spec: runtimev1.ExtensionConfigSpec{ClientConfig: runtimev1.ClientConfig{Service: r.Service}},
	}
	var is runtimev1.ExtensionConfig
	switch err := r.Live.Get(ctx, client.ObjectKeyFromObject(want), &is); {
	case apierrors.IsNotFound(err):
		return r.Client.Create(ctx, want)
	case err != nil:
		return err
	case reflect.DeepEqual(is.Spec.ClientConfig.Service, r.Service) && is.Annotations[ca] == want.Annotations[ca]:
		return nil
	}
	is.Spec.ClientConfig.Service = r.Service
	is.Spec.ClientConfig.URL = ""
	if is.Annotations == nil {
		is.Annotations = map[string]string{}
	}
	is.Annotations[ca] = want.Annotations[ca]
	return r.Client.Update(ctx, &is)
}
