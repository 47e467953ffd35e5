package network

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	extensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const multusName = "multus"

// multus adds to the primary pod network: its plugin calls that network's, as in
// https://github.com/k8snetworkplumbingwg/multus-cni/blob/v4.2.4/deployments/multus-daemonset.yml.
func multus() Network {
	return Network{
		Name: manifest.NetworkMultus, Title: "multus", Adds: true,
		Images: []string{multusName}, Manifest: multusManifest,
		Agents:  []string{"kube-multus-ds", "kube-multus-ds-amd64"},
		Configs: []string{"00-multus.conf", "00-multus.conflist"},
		Leaves:  Leaves{Paths: []string{"/opt/cni/bin/multus", "/opt/cni/bin/passthru"}}, // by install_multus of v4.2
	}
}

// attachments returns the custom resource definition of further networks
// (https://github.com/k8snetworkplumbingwg/multi-net-spec).
func attachments() *extensionsv1.CustomResourceDefinition {
	text := extensionsv1.JSONSchemaProps{Type: "string"}
	return &extensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "network-attachment-definitions.k8s.cni.cncf.io"},
		Spec: extensionsv1.CustomResourceDefinitionSpec{
			Group: "k8s.cni.cncf.io", Scope: extensionsv1.NamespaceScoped,
			Names: extensionsv1.CustomResourceDefinitionNames{
				Plural: "network-attachment-definitions", Singular: "network-attachment-definition",
				Kind: "NetworkAttachmentDefinition", ShortNames: []string{"net-attach-def"},
			},
			Versions: []extensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &extensionsv1.CustomResourceValidation{OpenAPIV3Schema: &extensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]extensionsv1.JSONSchemaProps{
						"apiVersion": text, "kind": text, "metadata": {Type: "object"},
						"spec": {Type: "object", Properties: map[string]extensionsv1.JSONSchemaProps{"config": text}},
					},
				}},
			}},
		},
	}
}

// multusManifest contains no network configuration: the plugin's image generates 00-multus.conf from the other
// configurations in the directory, and again when they change. The runtime uses the file whose name sorts first.
func multusManifest(c *manifest.Cluster) ([]byte, error) {
	image, err := catalog.ImageRef(c, multusName)
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{Name: multusName, Namespace: kube.SystemNamespace}
	labels := map[string]string{"name": multusName}
	allow := func(groups, resources []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: groups, Resources: resources, Verbs: verbs}
	}
	return kube.YAML(
		attachments(),
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: multusName},
			Rules: []rbacv1.PolicyRule{
				allow([]string{"k8s.cni.cncf.io"}, []string{"network-attachment-definitions"}, "get", "list", "watch"),
				allow([]string{""}, []string{"pods", "pods/status"}, "get", "list", "update", "watch"),
				allow([]string{"", "events.k8s.io"}, []string{"events"}, "create", "patch", "update"),
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: multusName},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: multusName},
			Subjects: []rbacv1.Subject{{
				Kind: rbacv1.ServiceAccountKind, Name: multusName,
				Namespace: kube.SystemNamespace,
			}},
		},
		&appsv1.DaemonSet{
			ObjectMeta: meta,
			Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: multusPod(image)},
			},
		},
	)
}

func multusPod(image string) corev1.PodSpec {
	mount := func(name, path string) corev1.VolumeMount {
		return corev1.VolumeMount{Name: name, MountPath: "/host" + path}
	}
	container := func(name, command string, requests corev1.ResourceRequirements, args ...string) corev1.Container {
		return corev1.Container{
			Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{command}, Args: args,
			Resources:                requests,
			SecurityContext:          &corev1.SecurityContext{Privileged: new(true)},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts: []corev1.VolumeMount{
				mount("cni", "/etc/cni/net.d"),
				mount("plugins", "/opt/cni/bin"),
			},
		}
	}
	return corev1.PodSpec{
		HostNetwork:                   true,
		ServiceAccountName:            multusName,
		PriorityClassName:             "system-node-critical",
		TerminationGracePeriodSeconds: new(int64(10)),
		Tolerations: []corev1.Toleration{
			{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
			{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		},
		InitContainers: []corev1.Container{container("install", "/install_multus", kube.Requests("10m", "15Mi"),
			"--type", "thin")},
		Containers: []corev1.Container{container(
			"multus", "/thin_entrypoint", kube.Requests("50m", "50Mi"),
			"--multus-conf-file=auto", "--multus-autoconfig-dir=/host/etc/cni/net.d",
			"--cni-conf-dir=/host/etc/cni/net.d",
		)},
		Volumes: []corev1.Volume{
			kube.HostVolume("cni", "/etc/cni/net.d", ""),
			kube.HostVolume("plugins", "/opt/cni/bin", ""),
		},
	}
}
