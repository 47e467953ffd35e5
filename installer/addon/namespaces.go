package addon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// NamespacesTask hardens the namespaces of addons: pods get no API token by default and, if the pod network enforces
// policies, accept connections from their own namespace only, until a NetworkPolicy allows more.
func NamespacesTask(c *manifest.Cluster) task.Task {
	data, err := kube.YAML(NamespaceDefaults(c)...)
	stamp := marks.Namespaces.File(fmt.Appendf(nil, "%x\n", sha256.Sum256(data)))
	return task.Task{
		Name:  "namespaces",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if err != nil {
				return false, err
			}
			return t.HasFiles(ctx, stamp)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err != nil {
				return err
			}
			if err := t.Kube().Apply(ctx, data, kube.Apply{Manager: kube.FieldManager}); err != nil {
				return err
			}
			return t.Write(ctx, stamp)
		},
	}
}

// NamespaceDefaults returns the objects of NamespacesTask. Kubernetes' own namespaces have none.
func NamespaceDefaults(c *manifest.Cluster) []runtime.Object {
	names := []string{"default"}
	for _, a := range c.Addons {
		if !strings.HasPrefix(a.Namespace, "kube-") {
			names = append(names, a.Namespace)
		}
	}
	var objects []runtime.Object
	for i, name := range names {
		if slices.Index(names, name) != i {
			continue
		}
		if name != "default" {
			objects = append(objects, kube.NamespaceObject(name))
		}
		objects = append(objects, &corev1.ServiceAccount{
			ObjectMeta:                   metav1.ObjectMeta{Name: "default", Namespace: name},
			AutomountServiceAccountToken: new(false),
		})
		if name != "default" && network.All().Primary(c).EnforcesIn(c) {
			objects = append(objects, &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "kkbundle-same-namespace", Namespace: name},
				Spec: networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
					Ingress: []networkingv1.NetworkPolicyIngressRule{{
						From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}},
					}},
				},
			})
		}
	}
	return objects
}
