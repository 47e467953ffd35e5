package controllers

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

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
	document := bytes.NewBufferString("## template: jinja\n#cloud-config\nwrite_files:\n")
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
		if err := addFile(document, f, content); err != nil {
			return nil, err
		}
	}
	return document.Bytes(), nil
}

// addFile adds a file to the list of a document. A text is a block of lines as in the bootstrap data that Cluster API
// makes: quotes and folded lines would be found in templates.
func addFile(document *bytes.Buffer, f bootstrapv1.File, content string) error {
	keys := map[string]string{"path": f.Path}
	encoding := string(f.Encoding)
	text := !strings.ContainsFunc(content, func(r rune) bool {
		return r == utf8.RuneError || !unicode.IsPrint(r) && !strings.ContainsRune("\t\r\n", r)
	})
	if !text {
		keys["content"] = base64.StdEncoding.EncodeToString([]byte(content))
		encoding = strings.TrimPrefix(encoding+"+b64", "+")
	}
	for key, value := range map[string]string{"owner": f.Owner, "permissions": f.Permissions, "encoding": encoding} {
		if value != "" {
			keys[key] = value
		}
	}
	data, err := yaml.Marshal(keys)
	if err != nil {
		return err
	}
	at := "- "
	for line := range strings.Lines(string(data)) {
		document.WriteString(at + line)
		at = "  "
	}
	if !text {
		return nil
	}
	end := "+" // all line ends stay
	if !strings.HasSuffix(content, "\n") {
		content, end = content+"\n", "-"
	}
	document.WriteString("  content: |2" + end + "\n")
	for line := range strings.Lines(content) {
		document.WriteString("    " + line)
	}
	return nil
}
