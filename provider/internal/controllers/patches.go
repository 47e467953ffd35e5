package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
	"github.com/kkbundle/kkbundle/provider/internal/patches"
)

// KubeadmConfig reads a KubeadmConfig. A client caches no objects that are read like this.
func KubeadmConfig(ctx context.Context, from client.Reader, key types.NamespacedName) (
	*bootstrapv1.KubeadmConfig, error,
) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(bootstrapv1.GroupVersion.WithKind("KubeadmConfig"))
	if err := from.Get(ctx, key, u); err != nil {
		return nil, err
	}
	var config bootstrapv1.KubeadmConfig
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &config)
	return &config, err
}

// patchDocument returns the document of cloud-init that writes kubeadm's patches of an update, nil without.
func (w *instanceWork) patchDocument(ctx context.Context) ([]byte, error) {
	name := w.i.Spec.Update.Config
	if name == "" {
		return nil, nil
	}
	config, err := KubeadmConfig(ctx, w.Live, types.NamespacedName{Namespace: w.i.Namespace, Name: name})
	if apierrors.IsNotFound(err) {
		return nil, &MissingError{fmt.Sprintf("KubeadmConfig %s is not there any more; delete the Machine to replace it", name)}
	}
	if err != nil {
		return nil, err
	}
	var files []map[string]any
	for _, f := range patches.Files(&config.Spec) {
		content := f.Content
		if secret := f.ContentFrom.Secret; secret.Name != "" {
			s, err := secretOf(ctx, w.Live, w.i.Namespace, "KubeadmConfig "+name+", file "+f.Path, &infrav1.LocalRef{Name: secret.Name})
			if err != nil {
				return nil, err
			}
			data, ok := s.Data[secret.Key]
			if !ok {
				return nil, &MissingError{fmt.Sprintf("KubeadmConfig %s, file %s: Secret %s has no key %s; add it", name, f.Path, secret.Name, secret.Key)}
			}
			content = string(data)
		}
		file := map[string]any{"path": f.Path, "content": content}
		for key, value := range map[string]string{"owner": f.Owner, "permissions": f.Permissions, "encoding": string(f.Encoding)} {
			if value != "" {
				file[key] = value
			}
		}
		files = append(files, file)
	}
	data, err := yaml.Marshal(map[string]any{"write_files": files})
	return append([]byte("## template: jinja\n#cloud-config\n"), data...), err
}
