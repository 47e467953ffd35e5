package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/kkbundle/kkbundle/provider/internal/hosts"
)

// ClientOptions returns the options of the manager's client. Secrets are read when they are needed and never kept.
func ClientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}}
}

// Controllers are all reconcilers of the provider.
type Controllers struct {
	Operator *hosts.Operator
	Nodes    Nodes
	Updater  NodeUpdater
	Timing   Timing
	// Places is the number of hosts provisioned at a time, and of those cleaned beside them.
	Places int
}

// SetupWithManager adds the reconcilers to a manager.
func (c Controllers) SetupWithManager(ctx context.Context, mgr ctrl.Manager, o controller.Options) error {
	cl, live, recorder := mgr.GetClient(), mgr.GetAPIReader(), noteRecorder{mgr.GetEventRecorder("kkbundle-provider")}
	for _, add := range []func() error{
		func() error {
			return (&InstanceReconciler{
				Client: cl, Live: live, Operator: c.Operator, Updater: c.Updater, Recorder: recorder,
				Timing: c.Timing, Places: c.Places,
			}).SetupWithManager(mgr, o)
		},
		func() error {
			return (&MachineReconciler{
				Client: cl, Live: live, Nodes: c.Nodes, Recorder: recorder, Timing: c.Timing,
			}).SetupWithManager(ctx, mgr, o)
		},
		func() error { return (&ClusterReconciler{Client: cl, Timing: c.Timing}).SetupWithManager(ctx, mgr, o) },
		func() error {
			return (&BundleReconciler{
				Client: cl, Operator: c.Operator, Recorder: recorder, Timing: c.Timing,
			}).SetupWithManager(mgr, o)
		},
		func() error { return (&HostReconciler{Client: cl}).SetupWithManager(mgr, o) },
		func() error { return (&LoginReconciler{Client: cl, Live: live}).SetupWithManager(mgr, o) },
		func() error { return (&TemplateReconciler{Client: cl}).SetupWithManager(mgr, o) },
	} {
		if err := add(); err != nil {
			return err
		}
	}
	return nil
}
