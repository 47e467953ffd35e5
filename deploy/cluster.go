package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
)

// decodeJSON keeps whole numbers whole.
func decodeJSON(data []byte, into *map[string]any) error {
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return nil
	}
	return utiljson.Unmarshal(data, into)
}

// cluster is a connection to the API server.
type cluster struct {
	shared *charts.Cluster
	kube   kubernetes.Interface
	any    dynamic.Interface
	mapper meta.ResettableRESTMapper
	// version is that of the API server.
	version string
}

// connect connects and reads the API server's version, so that an unreachable one is the first error.
func connect(ctx context.Context, config *rest.Config, logger *slog.Logger) (*cluster, error) {
	shared, err := charts.Connect(ctx, config, logger)
	if err != nil {
		return nil, err
	}
	c := &cluster{shared: shared}
	if c.kube, err = kubernetes.NewForConfig(shared.Config()); err != nil {
		return nil, err
	}
	if c.any, err = dynamic.NewForConfig(shared.Config()); err != nil {
		return nil, err
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(shared.Discovery())
	version, err := shared.Discovery().ServerVersion()
	if err != nil {
		return nil, &UnreachableError{config.Host, err}
	}
	if c.version = version.GitVersion; c.version == "" {
		return nil, &UnreachableError{config.Host, errNoAPI}
	}
	return c, nil
}

// errNoAPI means that something answers that is not Kubernetes: another port, or a page to sign in.
var errNoAPI = errors.New("what answers there has no version of Kubernetes")

// resource returns the client of an object, and sets its namespace if the object has none and needs one.
func (c *cluster) resource(o *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	gvk := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		o.SetNamespace("")
		return c.any.Resource(mapping.Resource), nil
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	return c.any.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
}

// applying is how objects are applied.
type applying struct {
	namespace string // of objects without one
	force     bool   // takes over fields of other managers
	dryRun    bool
}

func (a applying) options() metav1.ApplyOptions {
	o := metav1.ApplyOptions{FieldManager: kube.FieldManager, Force: a.force}
	if a.dryRun {
		o.DryRun = []string{metav1.DryRunAll}
	}
	return o
}

// apply applies an object on the server. before is nil if it did not exist.
func (c *cluster) apply(ctx context.Context, o *unstructured.Unstructured,
	how applying,
) (before, after *unstructured.Unstructured, err error) {
	client, err := c.resource(o, how.namespace)
	if err != nil {
		return nil, nil, &ObjectError{kube.Describe(o), err}
	}
	before, err = client.Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		before, err = nil, nil
	}
	if err == nil {
		after, err = client.Apply(ctx, o.GetName(), o, how.options())
	}
	if err != nil {
		return nil, nil, &ObjectError{kube.Describe(o), err}
	}
	return before, after, nil
}

// applyAll applies objects in order and returns the number of those that changed. Definitions are awaited before the
// first object of another kind.
func (c *cluster) applyAll(ctx context.Context, objects kube.Manifest, how applying) (changed int, err error) {
	var definitions []string
	for _, o := range objects {
		if o.GetKind() == kindDefinition {
			definitions = append(definitions, o.GetName())
		} else if len(definitions) > 0 && o.GetKind() != kindNamespace {
			if err := c.established(ctx, definitions); err != nil {
				return changed, err
			}
			definitions = nil
		}
		before, after, err := c.apply(ctx, o, how)
		if err != nil {
			return changed, err
		}
		if before == nil || before.GetResourceVersion() != after.GetResourceVersion() {
			changed++
		}
	}
	return changed, c.established(ctx, definitions)
}

const (
	kindDefinition = "CustomResourceDefinition"
	kindNamespace  = "Namespace"
)

// established waits until the API server serves the definitions.
func (c *cluster) established(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	const patience = time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the API server did not establish it within "+
		patience.String()))
	defer cancel()
	for _, name := range names {
		for !c.isEstablished(ctx, name) {
			select {
			case <-ctx.Done():
				return &ObjectError{kindDefinition + " " + name, context.Cause(ctx)}
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	c.mapper.Reset()
	return nil
}

func (c *cluster) isEstablished(ctx context.Context, name string) bool {
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind(kindDefinition)
	client, err := c.resource(definition, "")
	if err != nil {
		return false
	}
	live, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	for _, one := range conditions {
		if m, ok := one.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
			return true
		}
	}
	return false
}

// Labels of what deploy makes besides releases.
const (
	// ManagedLabel marks objects of kkbundle.
	ManagedLabel = "app.kubernetes.io/managed-by"
	// NameLabel has the name of the bundle that an object was made for.
	NameLabel = "kkbundle.io/deploy"
	managedBy = "kkbundle"
)

func labelsOf(name string) map[string]string {
	return map[string]string{ManagedLabel: managedBy, NameLabel: name}
}

// isOf reports whether deploy made a namespace for the bundle of a name.
func isOf(namespace *corev1.Namespace, bundle string) bool {
	return namespace.Labels[NameLabel] == bundle && namespace.Labels[ManagedLabel] == managedBy
}

// ensureNamespace creates a namespace with our labels. It reports whether it did: an existing one stays as it is.
func (c *cluster) ensureNamespace(ctx context.Context, name string, labels,
	annotations map[string]string,
) (live *corev1.Namespace, made bool, err error) {
	namespaces := c.kube.CoreV1().Namespaces()
	live, err = namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		live, err = namespaces.Create(ctx, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations},
		}, metav1.CreateOptions{FieldManager: kube.FieldManager})
		made = err == nil
		if apierrors.IsAlreadyExists(err) {
			live, err = namespaces.Get(ctx, name, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, false, &ObjectError{kindNamespace + " " + name, err}
	}
	return live, made, nil
}

// applyPullSecret makes the secret that pods of a namespace pull with, and reports whether that changed anything.
func (c *cluster) applyPullSecret(ctx context.Context, namespace, name, bundle string,
	dockerConfig []byte,
) (bool, error) {
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labelsOf(bundle)},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: dockerConfig},
	}
	data, err := json.Marshal(secret)
	if err != nil {
		return false, err
	}
	secrets := c.kube.CoreV1().Secrets(namespace)
	before, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		before, err = nil, nil
	}
	var after *corev1.Secret
	if err == nil {
		after, err = secrets.Patch(ctx, name, types.ApplyPatchType, data,
			metav1.PatchOptions{FieldManager: kube.FieldManager, Force: new(true)})
	}
	if err != nil {
		return false, &ObjectError{fmt.Sprintf("Secret %s/%s", namespace, name), err}
	}
	return before == nil || before.ResourceVersion != after.ResourceVersion, nil
}
