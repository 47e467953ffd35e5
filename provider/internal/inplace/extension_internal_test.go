package inplace

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// objects is a client of an API server that has one object of a kind.
type objects struct {
	client.Client
	machine  clusterv1.Machine
	cluster  clusterv1.Cluster
	infra    infrav1.KKCluster
	bundles  map[string]infrav1.KKBundle
	instance infrav1.KKInstance
}

func (o *objects) Get(_ context.Context, key client.ObjectKey, to client.Object, _ ...client.GetOption) error {
	switch to := to.(type) {
	case *clusterv1.Machine:
		o.machine.DeepCopyInto(to)
	case *clusterv1.Cluster:
		o.cluster.DeepCopyInto(to)
	case *infrav1.KKCluster:
		o.infra.DeepCopyInto(to)
	case *infrav1.KKInstance:
		o.instance.DeepCopyInto(to)
	case *infrav1.KKBundle:
		b, ok := o.bundles[key.Name]
		if !ok {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "kkbundles"}, key.Name)
		}
		b.DeepCopyInto(to)
	default:
		return fmt.Errorf("a %T was not to be read", to)
	}
	return nil
}

func (o *objects) Update(_ context.Context, from client.Object, _ ...client.UpdateOption) error {
	from.(*infrav1.KKInstance).DeepCopyInto(&o.instance)
	return nil
}

// TestCorrected: until an update is done, it is asked for anew with what the KKCluster has; afterwards nothing is.
func TestCorrected(t *testing.T) {
	t.Parallel()
	o := &objects{machine: machineOf("v2", "KKMachine", infrav1.GroupVersion.Group)}
	o.machine.Annotations = map[string]string{clusterv1.UpdateInProgressAnnotation: ""}
	o.infra.Spec.BundleRef.Name, o.infra.Spec.Registry.Address = "next", "wrong.site"
	bundle := infrav1.KKBundle{Status: infrav1.KKBundleStatus{Versions: []string{"v2"}}}
	o.bundles = map[string]infrav1.KKBundle{"next": bundle, "right": bundle}
	o.instance.ObjectMeta = metav1.ObjectMeta{Name: "m", Annotations: map[string]string{infrav1.ProvisionedAnnotation: "x"}}
	ask := func(want string) {
		t.Helper()
		e := &Extension{Client: o, Live: o}
		got, err := e.update(t.Context(), types.NamespacedName{Name: "m"})
		if err != nil || (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	has := func(bundle, registry string) {
		t.Helper()
		if s := o.instance.Spec; s.BundleRef.Name != bundle || s.Registry.Address != registry || s.Update == nil || s.Version != "v2" {
			t.Errorf("the instance has %+v, want %s and %s", s, bundle, registry)
		}
	}
	ask("is asked for v2")
	has("next", "wrong.site")
	ask("waits for its turn")
	o.infra.Spec.Registry.Address = "right.site"
	ask("is asked for v2")
	has("next", "right.site")
	o.infra.Spec.BundleRef.Name = "right"
	ask("is asked for v2")
	has("right", "right.site")
	o.infra.Spec.BundleRef.Name = "none"
	ask("there is no KKBundle none")
	has("right", "right.site")
	o.instance.Annotations[infrav1.UpdatedAnnotation] = o.instance.Spec.Update.ID
	ask("")
	has("right", "right.site")
}
