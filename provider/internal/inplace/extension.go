package inplace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	runtimehooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/controllers"
	"github.com/kkbundle/kkbundle/provider/internal/patches"
)

// An Extension answers Cluster API's questions about updates in place.
type Extension struct {
	Client client.Client
	// Live reads objects from the API server: an old cache must not say that an update is done.
	Live client.Reader
}

// Server returns the server of the extension.
func (e *Extension) Server(o server.Options) (*server.Server, error) {
	o.Catalog = runtimecatalog.New()
	if err := runtimehooksv1.AddToCatalog(o.Catalog); err != nil {
		return nil, err
	}
	s, err := server.New(o)
	if err != nil {
		return nil, err
	}
	for _, h := range []server.ExtensionHandler{
		{Hook: runtimehooksv1.CanUpdateMachine, Name: "can-update-machine", HandlerFunc: e.CanUpdateMachine},
		{Hook: runtimehooksv1.CanUpdateMachineSet, Name: "can-update-machine-set", HandlerFunc: e.CanUpdateMachineSet},
		{Hook: runtimehooksv1.UpdateMachine, Name: "update-machine", HandlerFunc: e.UpdateMachine},
	} {
		if err := s.AddExtensionHandler(h); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// answer writes the status of an answer.
func answer(to runtimehooksv1.ResponseObject, err error) {
	to.SetStatus(runtimehooksv1.ResponseStatusSuccess)
	if err != nil {
		to.SetStatus(runtimehooksv1.ResponseStatusFailure)
		to.SetMessage(err.Error())
	}
}

// CanUpdateMachine answers which changes of a control plane its host can be brought to.
func (e *Extension) CanUpdateMachine(_ context.Context, q *runtimehooksv1.CanUpdateMachineRequest,
	a *runtimehooksv1.CanUpdateMachineResponse,
) {
	var err error
	a.MachinePatch, a.BootstrapConfigPatch, err = canUpdate(q.Current, q.Desired)
	answer(a, err)
}

// CanUpdateMachineSet answers which changes of workers their hosts can be brought to.
func (e *Extension) CanUpdateMachineSet(_ context.Context, q *runtimehooksv1.CanUpdateMachineSetRequest,
	a *runtimehooksv1.CanUpdateMachineSetResponse,
) {
	var err error
	a.MachineSetPatch, a.BootstrapConfigTemplatePatch, err = canUpdateSet(q.Current, q.Desired)
	answer(a, err)
}

// askAgain is the time in seconds after which Cluster API asks again.
const askAgain = 5

// UpdateMachine asks for an update of a machine's host, unless that was done, and tells how far it is. A failure is
// told like the rest: it is in the Machine's condition then, and the controllers repeat the run.
func (e *Extension) UpdateMachine(ctx context.Context, q *runtimehooksv1.UpdateMachineRequest,
	a *runtimehooksv1.UpdateMachineResponse,
) {
	message, err := e.update(ctx, client.ObjectKeyFromObject(&q.Desired.Machine))
	answer(a, err)
	if err == nil && message != "" {
		a.SetMessage(message)
		a.SetRetryAfterSeconds(askAgain)
	}
}

// update returns what an update waits for, "" if it is done. What a host is brought to is read from the API server: a
// request needs no login, and only names a Machine here.
func (e *Extension) update(ctx context.Context, key types.NamespacedName) (message string, err error) {
	m := &clusterv1.Machine{}
	if err := e.Live.Get(ctx, key, m); err != nil {
		return "", err
	}
	if _, ok := m.Annotations[clusterv1.UpdateInProgressAnnotation]; !ok || !isOurs(m.Spec.InfrastructureRef, "KKMachine") {
		return "", fmt.Errorf("Machine %s is none of this provider's that Cluster API updates in place", m.Name) //nolint:staticcheck // Machine is a kind
	}
	config, err := e.config(ctx, m)
	if err != nil {
		return "", fmt.Errorf("the bootstrap configuration of Machine %s: %w", m.Name, err)
	}
	to := infrav1.Update{Patches: patches.Directory(&config.Spec)}
	if len(patches.Files(&config.Spec)) > 0 {
		to.Config = config.Name
	}
	if to.ID, err = idOf(m.Spec.Version, &config.Spec); err != nil {
		return "", err
	}
	var i infrav1.KKInstance
	name := types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.InfrastructureRef.Name}
	switch err := e.Live.Get(ctx, name, &i); {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("Machine %s has no KKInstance %s; delete the Machine", m.Name, m.Spec.InfrastructureRef.Name) //nolint:staticcheck // Machine is a kind
	case err != nil:
		return "", err
	case !i.DeletionTimestamp.IsZero():
		return fmt.Sprintf("KKInstance %s is being deleted", i.Name), nil
	case i.Annotations[infrav1.ProvisionedAnnotation] == "":
		return fmt.Sprintf("KKInstance %s is not provisioned yet", i.Name), nil
	}
	asked := i.Spec.Update != nil && i.Spec.Update.ID == to.ID
	if asked && !controllers.ToUpdate(&i) {
		return "", nil
	}
	infra, err := e.infra(ctx, m)
	if err != nil {
		return "", err
	}
	// until the update is done, a KKCluster that is corrected counts
	if !asked || i.Spec.BundleRef != infra.Spec.BundleRef || !reflect.DeepEqual(i.Spec.Registry, infra.Spec.Registry) {
		return e.ask(ctx, &i, infra, m.Spec.Version, to)
	}
	if c := conditions.Get(&i, infrav1.UpdatedCondition); c != nil && c.Message != "" {
		return c.Message, nil
	}
	return fmt.Sprintf("KKInstance %s waits for its turn", i.Name), nil
}

// config returns the KubeadmConfig of a Machine; an empty one if it has another kind of bootstrap data.
func (e *Extension) config(ctx context.Context, m *clusterv1.Machine) (*bootstrapv1.KubeadmConfig, error) {
	ref := m.Spec.Bootstrap.ConfigRef
	if ref.APIGroup != bootstrapv1.GroupVersion.Group || ref.Kind != "KubeadmConfig" {
		return &bootstrapv1.KubeadmConfig{}, nil
	}
	return controllers.KubeadmConfig(ctx, e.Live, types.NamespacedName{Namespace: m.Namespace, Name: ref.Name})
}

// infra returns the KKCluster of a Machine.
func (e *Extension) infra(ctx context.Context, m *clusterv1.Machine) (*infrav1.KKCluster, error) {
	var cluster clusterv1.Cluster
	key := types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.ClusterName}
	if err := e.Live.Get(ctx, key, &cluster); err != nil {
		return nil, err
	}
	var infra infrav1.KKCluster
	key.Name = cluster.Spec.InfrastructureRef.Name
	return &infra, e.Live.Get(ctx, key, &infra)
}

// ask writes an update into the instance, with the bundle and the registry that its cluster has now. An update that is
// being done is done first, as a host is brought to one thing at a time.
func (e *Extension) ask(ctx context.Context, i *infrav1.KKInstance, infra *infrav1.KKCluster, version string,
	to infrav1.Update,
) (string, error) {
	var b infrav1.KKBundle
	key := types.NamespacedName{Namespace: infra.Namespace, Name: infra.Spec.BundleRef.Name}
	switch err := e.Live.Get(ctx, key, &b); {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("KKCluster %s: there is no KKBundle %s; create it", infra.Name, infra.Spec.BundleRef.Name), nil
	case err != nil:
		return "", err
	case !slices.Contains(b.Status.Versions, version):
		return fmt.Sprintf("version %s is not in KKBundle %s, which has %s; name a bundle with it in KKCluster %s",
			version, b.Name, strings.Join(b.Status.Versions, ", "), infra.Name), nil
	}
	i.Spec.Update, i.Spec.Version = &to, version
	i.Spec.BundleRef, i.Spec.Registry = infra.Spec.BundleRef, infra.Spec.Registry
	// with the resource version that was read: nobody has changed the instance since
	switch err := e.Client.Update(ctx, i); {
	case apierrors.IsConflict(err):
		return fmt.Sprintf("KKInstance %s is just being written", i.Name), nil
	case err != nil:
		return "", err
	}
	return fmt.Sprintf("KKInstance %s is asked for %s", i.Name, version), nil
}

// idOf returns what tells an update from others: the version, and a digest of all that is brought about.
func idOf(version string, config *bootstrapv1.KubeadmConfigSpec) (string, error) {
	data, err := json.Marshal([]any{
		version, config.ClusterConfiguration, patches.Directory(config), patches.Files(config),
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return version + "-" + hex.EncodeToString(sum[:6]), nil
}
