// Package kube reads and changes the objects of an API server with kubectl. It uses Kubernetes' own types. The caller
// decides where kubectl runs and with which credentials. Decoding ignores unknown fields.
package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kkbundle/kkbundle/internal/capped"
)

// A Command is one call of kubectl.
type Command struct {
	Args []string
	// Stdin is the input, nil for none.
	Stdin []byte
	// Quiet keeps long output out of the log unless the command fails.
	Quiet bool
	// Patience limits the time without output; 0 leaves the limit to the caller.
	Patience time.Duration
}

// A Client talks to an API server.
type Client struct {
	// Kubectl runs a command and returns its output.
	Kubectl func(ctx context.Context, c Command) ([]byte, error)
}

// Run runs kubectl and returns its output.
func (c Client) Run(ctx context.Context, args ...string) ([]byte, error) {
	return c.Kubectl(ctx, Command{Args: args})
}

func (c Client) run(ctx context.Context, args ...string) error {
	_, err := c.Run(ctx, args...)
	return err
}

// Get decodes the output of kubectl get. With --ignore-not-found, kubectl prints nothing about a missing object, and
// into stays as it is.
func (c Client) Get(ctx context.Context, into any, args ...string) error {
	args = append([]string{"get"}, args...)
	data, err := c.Kubectl(ctx, Command{Args: append(args, "--output=json"), Quiet: true})
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 && slices.Contains(args, "--ignore-not-found") {
		return nil
	}
	if err := capped.JSON(data, capped.MaxValues, into); err != nil {
		return fmt.Errorf("output of kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// An Object is a pointer to one of Kubernetes' types.
type Object interface {
	metav1.Object
	runtime.Object
}

// List gets objects of several kinds. Objects of kinds that are not Kubernetes' own are *metav1.PartialObjectMetadata.
func (c Client) List(ctx context.Context, args ...string) ([]Object, error) {
	var list struct {
		Items []anyKind `json:"items"`
	}
	if err := c.Get(ctx, &list, args...); err != nil {
		return nil, err // items that are not decoded have no object
	}
	objects := make([]Object, 0, len(list.Items))
	for _, item := range list.Items {
		objects = append(objects, item.Object)
	}
	return objects, nil
}

// anyKind decodes an object into the type of its kind.
type anyKind struct{ Object }

// UnmarshalJSON implements json.Unmarshaler.
func (k *anyKind) UnmarshalJSON(data []byte) error {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(data, &kind); err != nil {
		return err
	}
	k.Object = &metav1.PartialObjectMetadata{}
	if o, err := scheme.Scheme.New(kind.GroupVersionKind()); err == nil {
		if known, ok := o.(Object); ok {
			k.Object = known
		}
	}
	return json.Unmarshal(data, k.Object)
}

// ConfigMap gets a ConfigMap.
func (c Client) ConfigMap(ctx context.Context, namespace, name string, args ...string) (corev1.ConfigMap, error) {
	var m corev1.ConfigMap
	err := c.Get(ctx, &m, append([]string{"configmap", name, "--namespace=" + namespace}, args...)...)
	return m, err
}

// PatchConfigMap replaces one value of a ConfigMap.
func (c Client) PatchConfigMap(ctx context.Context, namespace, name, key, value string) error {
	patch, err := json.Marshal(map[string]map[string]string{"data": {key: value}})
	if err != nil {
		return fmt.Errorf("patch of ConfigMap %s/%s: %w", namespace, name, err)
	}
	return c.run(ctx, "patch", "configmap", name, "--namespace="+namespace, "--type=merge", "--patch="+string(patch))
}

// An Apply holds the options of apply.
type Apply struct {
	// Manager owns the fields by server-side apply; "" applies on the client.
	Manager string
	// Force takes over fields that another manager owns.
	Force bool
	// Namespace is for objects without one; "" means that every object names its own.
	Namespace string
}

// Apply applies YAML or JSON.
func (c Client) Apply(ctx context.Context, objects []byte, how Apply) error {
	args := []string{"apply"}
	if how.Manager != "" {
		args = append(args, "--server-side")
		if how.Force {
			args = append(args, "--force-conflicts")
		}
		args = append(args, "--field-manager="+how.Manager)
	}
	args = append(args, "--filename=-")
	if how.Namespace != "" {
		args = append(args, "--namespace="+how.Namespace)
	}
	_, err := c.Kubectl(ctx, Command{Args: args, Stdin: objects})
	return err
}

// StorageClasses lists the cluster's storage classes.
func (c Client) StorageClasses(ctx context.Context) ([]storagev1.StorageClass, error) {
	var list storagev1.StorageClassList
	err := c.Get(ctx, &list, "storageclasses")
	return list.Items, err
}

// Replicas returns the number of ready and of wanted pods of a Deployment, 0 if d is nil.
func Replicas(d *appsv1.Deployment) (ready, want int) {
	if d == nil {
		return 0, 0
	}
	if d.Spec.Replicas != nil {
		want = int(*d.Spec.Replicas)
	}
	return int(d.Status.ReadyReplicas), want
}

// Holder returns the holder of a lease and the time of its last renewal, zero values if l is nil or not held.
func Holder(l *coordinationv1.Lease) (name string, renewed time.Time) {
	if l == nil || l.Spec.HolderIdentity == nil {
		return "", time.Time{}
	}
	if l.Spec.RenewTime != nil {
		renewed = l.Spec.RenewTime.Time
	}
	return *l.Spec.HolderIdentity, renewed
}
