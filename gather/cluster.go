package gather

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// pageSize is the number of objects in one answer of the API server.
const pageSize = 500

// maxObjects bounds the objects of one namespace.
const maxObjects = 20_000

// A clusterReader reads one cluster.
type clusterReader struct {
	result  Result
	cluster *charts.Cluster
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	charts  map[string]digest.Digest // the content of each file of a chart
}

// Cluster returns what runs in a cluster: the images of all pods and of what makes pods, and the Helm releases with
// their values. Of the namespaces it also writes the objects that no release, no controller and no Kubernetes made, as
// YAML. Without namespaces it looks at all but those of Kubernetes itself, and writes no objects. Secrets are never
// written.
func Cluster(ctx context.Context, config *rest.Config, namespaces []string, logger *slog.Logger) (Result, error) {
	cluster, err := charts.Connect(ctx, config, logger)
	if err != nil {
		return Result{}, err
	}
	r := &clusterReader{cluster: cluster, charts: map[string]digest.Digest{}}
	if r.kube, err = kubernetes.NewForConfig(cluster.Config()); err != nil {
		return Result{}, err
	}
	if r.dynamic, err = dynamic.NewForConfig(cluster.Config()); err != nil {
		return Result{}, err
	}
	all := namespaces
	if len(namespaces) == 0 {
		if all, err = r.namespaces(ctx); err != nil {
			return Result{}, err
		}
	}
	for _, namespace := range all {
		if _, err := r.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); err != nil {
			return Result{}, fmt.Errorf("namespace %s: %w", namespace, err)
		}
		if err := r.images(ctx, namespace); err != nil {
			return Result{}, fmt.Errorf("images in namespace %s: %w", namespace, err)
		}
	}
	releases, err := charts.Releases(ctx, cluster, all)
	if err != nil {
		return Result{}, err
	}
	for _, release := range releases {
		r.release(release)
	}
	for _, namespace := range namespaces {
		if err := r.objects(ctx, namespace); err != nil {
			return Result{}, fmt.Errorf("objects in namespace %s: %w", namespace, err)
		}
	}
	r.result.tidy()
	return r.result, nil
}

func (r *clusterReader) note(format string, args ...any) {
	r.result.Notes = append(r.result.Notes, fmt.Sprintf(format, args...))
}

// ofKubernetes reports whether a namespace is one of Kubernetes itself.
func ofKubernetes(namespace string) bool {
	return namespace == metav1.NamespaceSystem || namespace == metav1.NamespacePublic ||
		namespace == corev1.NamespaceNodeLease
}

func (r *clusterReader) namespaces(ctx context.Context) ([]string, error) {
	var names []string
	err := list(ctx, r.dynamic.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")),
		func(o *unstructured.Unstructured) error {
			if !ofKubernetes(o.GetName()) {
				names = append(names, o.GetName())
			}
			return nil
		})
	return names, err
}

// list calls each with the objects of a resource, page by page.
func list(ctx context.Context, of dynamic.ResourceInterface, each func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := of.List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if err := each(&page.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// podSpecs has the place of the pod's specification in each kind that makes pods.
func podSpecs() map[schema.GroupVersionResource][]string {
	template := []string{"spec", "template", "spec"}
	return map[schema.GroupVersionResource][]string{
		{Version: "v1", Resource: "pods"}:                        {"spec"},
		{Group: "apps", Version: "v1", Resource: "deployments"}:  template,
		{Group: "apps", Version: "v1", Resource: "statefulsets"}: template,
		{Group: "apps", Version: "v1", Resource: "daemonsets"}:   template,
		{Group: "batch", Version: "v1", Resource: "jobs"}:        template,
		{Group: "batch", Version: "v1", Resource: "cronjobs"}:    {"spec", "jobTemplate", "spec", "template", "spec"},
		{Version: "v1", Resource: "replicationcontrollers"}:      template,
		{Group: "apps", Version: "v1", Resource: "replicasets"}:  template,
	}
}

// images adds the images of a namespace's pods, and of what makes pods: it may have none at present.
func (r *clusterReader) images(ctx context.Context, namespace string) error {
	seen := map[string]bool{}
	for resource, place := range podSpecs() {
		err := list(ctx, r.dynamic.Resource(resource).Namespace(namespace), func(o *unstructured.Unstructured) error {
			if resource.Resource == "replicasets" && metav1.GetControllerOf(o) != nil {
				return nil // an old one of a Deployment
			}
			spec, _, _ := unstructured.NestedMap(o.Object, place...)
			var pod corev1.PodSpec
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod); err != nil {
				return fmt.Errorf("%s %s: %w", resource.Resource, o.GetName(), err)
			}
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				if !seen[c.Image] {
					r.image(c.Image, namespace+"/"+o.GetName())
				}
				seen[c.Image] = true
			}
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (r *clusterReader) image(text, of string) {
	ref, err := manifest.Image{Name: text}.Ref()
	if err != nil {
		r.note("%s: %q is no reference of an image, and was left out", of, text)
		return
	}
	r.result.Bundle.Images = append(r.result.Bundle.Images, manifest.Image{Name: ref})
}

// release adds a Helm release: its chart, its values and how deploy installs it.
func (r *clusterReader) release(one charts.Release) {
	name := one.Namespace + "/" + one.Name
	var values []string
	if one.Values != nil {
		file := path.Join("values", one.Namespace+"-"+one.Name+".yaml")
		values = []string{file}
		r.result.Files = append(r.result.Files, File{Path: file, Data: one.Values, Private: true})
		r.note("%s: values of release %s, which may have passwords; the bundle carries them", file, name)
	}
	if one.Archive == nil {
		r.note("release %s: the cluster does not keep %s of chart %s %s; add it to charts with its repo, and to deploy: {chart: %s, release: %s, namespace: %s, values: [%s]}",
			name, one.Lost, one.Chart, one.Version, one.Chart, one.Name, one.Namespace, strings.Join(values, ", "))
		return
	}
	file := path.Join("charts", one.Chart+"-"+one.Version+".tgz")
	if have, ok := r.charts[file]; ok && have != one.Content {
		r.note("release %s: its chart %s %s is another one than that of a release before, and was left out; give one of them another version",
			name, one.Chart, one.Version)
		return
	}
	r.charts[file] = one.Content
	at := slices.IndexFunc(r.result.Bundle.Charts, func(c manifest.Chart) bool { return c.Path == file })
	if at < 0 {
		at = len(r.result.Bundle.Charts)
		r.result.Bundle.Charts = append(r.result.Bundle.Charts, manifest.Chart{Path: file})
		r.result.Files = append(r.result.Files, File{Path: file, Data: one.Archive})
	}
	chart := &r.result.Bundle.Charts[at]
	chart.Values = append(chart.Values, values...)
	r.result.Bundle.Deploy = append(r.result.Bundle.Deploy, manifest.Addon{
		Chart: one.Chart, Release: one.Name, Namespace: one.Namespace, Values: values,
	})
}

// objects adds the objects of a namespace as YAML.
func (r *clusterReader) objects(ctx context.Context, namespace string) error {
	resources, err := r.resources()
	if err != nil {
		return err
	}
	documents := []map[string]any{{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace},
	}}
	secrets := 0
	for _, resource := range resources {
		err := list(ctx, r.dynamic.Resource(resource).Namespace(namespace), func(o *unstructured.Unstructured) error {
			switch {
			case isMade(o):
			case resource.Group == "" && resource.Resource == "secrets":
				secrets++
			case len(documents) > maxObjects:
				return fmt.Errorf("more than %d objects", maxObjects)
			default:
				strip(o)
				documents = append(documents, o.Object)
			}
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
			return fmt.Errorf("%s: %w", resource.Resource, err)
		}
	}
	if secrets > 0 {
		r.note("namespace %s: its Secrets were left out (%d): make them at the site", namespace, secrets)
	}
	if len(documents) == 1 {
		return nil
	}
	data, err := kube.Documents(documents...)
	if err != nil {
		return err
	}
	file := path.Join("manifests", namespace+".yaml")
	r.result.Files = append(r.result.Files, File{Path: file, Data: data, Private: true})
	r.note("%s: the objects of namespace %s, which may have passwords; the bundle carries them", file, namespace)
	r.result.Bundle.Manifests = append(r.result.Bundle.Manifests, manifest.YAML{Path: file})
	r.result.Bundle.Deploy = append(r.result.Bundle.Deploy, manifest.Addon{
		Release: r.freeRelease(namespace), Namespace: namespace, Manifests: []string{file},
	})
	return nil
}

// freeRelease returns a name for the objects of a namespace that no Helm release there has.
func (r *clusterReader) freeRelease(namespace string) string {
	name := namespace
	for slices.ContainsFunc(r.result.Bundle.Deploy, func(a manifest.Addon) bool {
		return a.Namespace == namespace && a.Release == name
	}) {
		name += "-objects"
	}
	return name
}

// resources returns the kinds of namespaced objects that can be listed and created, in the order of their names.
func (r *clusterReader) resources() ([]schema.GroupVersionResource, error) {
	lists, err := r.cluster.Discovery().ServerPreferredNamespacedResources()
	if err != nil && len(lists) == 0 {
		return nil, fmt.Errorf("kinds of the cluster: %w", err)
	}
	if err != nil {
		r.note("some kinds of the cluster cannot be listed and were left out: %v", err)
	}
	var all []schema.GroupVersionResource
	for _, l := range lists {
		version, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range l.APIResources {
			if slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "create") &&
				!strings.Contains(resource.Name, "/") && !isPassing(version.Group, resource.Name) {
				all = append(all, version.WithResource(resource.Name))
			}
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// isPassing reports whether objects of a kind come and go by themselves.
func isPassing(group, resource string) bool {
	switch group + "/" + resource {
	case "/events", "events.k8s.io/events", "/endpoints", "discovery.k8s.io/endpointslices", "coordination.k8s.io/leases",
		"/pods", "apps/controllerrevisions", "metrics.k8s.io/pods", "/bindings", "/podtemplates",
		"authorization.k8s.io/localsubjectaccessreviews":
		return true
	}
	return false
}

// isMade reports whether Helm, a controller or Kubernetes itself made an object.
func isMade(o *unstructured.Unstructured) bool {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	name := o.GetName()
	switch {
	case len(o.GetOwnerReferences()) > 0, o.GetDeletionTimestamp() != nil, annotations["meta.helm.sh/release-name"] != "",
		labels["owner"] == "helm" && o.GetKind() == "Secret":
		return true
	case o.GetKind() == "ConfigMap" && name == "kube-root-ca.crt",
		o.GetKind() == "ServiceAccount" && name == "default",
		o.GetKind() == "Service" && name == "kubernetes" && o.GetNamespace() == metav1.NamespaceDefault:
		return true
	}
	return false
}

// strip removes what the API server and its controllers write: another cluster writes its own.
func strip(o *unstructured.Unstructured) {
	for _, field := range []string{
		"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink",
	} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	annotations := maps.Clone(o.GetAnnotations())
	maps.DeleteFunc(annotations, func(key, _ string) bool {
		return key == corev1.LastAppliedConfigAnnotation || key == "deployment.kubernetes.io/revision" ||
			strings.HasPrefix(key, "pv.kubernetes.io/") || strings.HasPrefix(key, "volume.kubernetes.io/")
	})
	if o.SetAnnotations(annotations); len(annotations) == 0 {
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
	}
	switch o.GetKind() {
	case "Service":
		if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != corev1.ClusterIPNone {
			unstructured.RemoveNestedField(o.Object, "spec", "clusterIP")
			unstructured.RemoveNestedField(o.Object, "spec", "clusterIPs")
		}
	case "PersistentVolumeClaim":
		unstructured.RemoveNestedField(o.Object, "spec", "volumeName")
	case "Job":
		unstructured.RemoveNestedField(o.Object, "spec", "selector")
		for _, field := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
			for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name"} {
				unstructured.RemoveNestedField(o.Object, slices.Concat(field, []string{"labels", label})...)
			}
		}
	}
}
