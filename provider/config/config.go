// Package config makes what is applied to a management cluster: CRDs, permissions, webhooks and the manager, in one
// file for clusterctl.
//
//	go test ./config -update    # writes infrastructure-components.yaml and crd/ anew
package config

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/provider/internal/inplace"
	"github.com/kkbundle/kkbundle/provider/internal/webhooks"
)

//go:embed crd/*.yaml
var crds embed.FS

const (
	// Image is the manager's image. clusterctl can override it.
	Image = "ghcr.io/kkbundle/provider:dev"

	provider  = "infrastructure-kkbundle"
	namespace = "kkbundle-provider-system"
	name      = "kkbundle-provider"
	group     = "infrastructure.kkbundle.io"
	version   = "v1alpha1"
	coreGroup = "cluster.x-k8s.io"
	moveLabel = "clusterctl." + coreGroup + "/move"
	certName  = name + "-serving"
	service   = name + "-webhooks"

	extensionPort = 9444
)

// CRDs returns the custom resource definitions with the labels of Cluster API's contract.
func CRDs() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	err := fs.WalkDir(crds, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := crds.ReadFile(path)
		if err != nil {
			return err
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &crd.Object); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		labels := map[string]string{coreGroup + "/v1beta2": version, coreGroup + "/provider": provider}
		if kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural"); kind == "kkhosts" {
			labels[moveLabel] = "" // no Cluster owns them
		}
		crd.SetLabels(labels)
		all = append(all, crd)
		return nil
	})
	return all, err
}

// Components returns the file of clusterctl: one Namespace, and everything else in it.
func Components(image string) ([]byte, error) {
	all, err := CRDs()
	if err != nil {
		return nil, err
	}
	objects := []any{&corev1.Namespace{TypeMeta: kind("v1", "Namespace"), ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels()}}}
	for _, crd := range all {
		objects = append(objects, crd.Object)
	}
	objects = append(objects, permissions()...)
	objects = append(objects, certificate()...)
	objects = append(objects, Validating(), Mutating(), serviceOf(), deployment(image))
	var out bytes.Buffer
	for _, o := range objects {
		data, err := document(o)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "---\n%s", data)
	}
	return out.Bytes(), nil
}

// document returns an object as YAML, without the empty status that Go's types print.
func document(o any) ([]byte, error) {
	data, err := yaml.Marshal(o)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	return yaml.Marshal(fields)
}

func kind(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func labels() map[string]string { return map[string]string{coreGroup + "/provider": provider} }

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels()}
}

func clusterWide(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: labels()}
}

const rbac = "rbac.authorization.k8s.io"

// Kinds returns the plural names of the provider's resources.
func Kinds() []string {
	return []string{"kkbundles", "kkclusters", "kkclustertemplates", "kkhosts", "kkinstances", "kkmachines", "kkmachinetemplates"}
}

// ManagerRules returns what the manager may do in all namespaces.
func ManagerRules() []rbacv1.PolicyRule {
	with := func(suffix string) (all []string) {
		for _, k := range Kinds() {
			all = append(all, k+suffix)
		}
		return all
	}
	read, write := []string{"get", "list", "watch"}, []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: with(""), Verbs: write},
		{APIGroups: []string{group}, Resources: with("/status"), Verbs: []string{"get", "update", "patch"}},
		{APIGroups: []string{group}, Resources: with("/finalizers"), Verbs: []string{"update"}},
		{APIGroups: []string{coreGroup}, Resources: []string{"clusters", "clusters/status", "machines/status"}, Verbs: read},
		{APIGroups: []string{coreGroup}, Resources: []string{"machines"}, Verbs: append(read, "patch")},   // to mark one to be deleted first
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: append(read, "update", "patch")}, // to hold logins
		{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{"runtime." + coreGroup}, Resources: []string{"extensionconfigs"}, Verbs: []string{"create"}}, // the name of a new object is not known to a rule
		{APIGroups: []string{"runtime." + coreGroup}, Resources: []string{"extensionconfigs"}, ResourceNames: []string{inplace.Name}, Verbs: []string{"get", "update"}},
		{APIGroups: []string{"bootstrap." + coreGroup}, Resources: []string{"kubeadmconfigs"}, Verbs: []string{"get"}},
	}
}

// aggregatedBy are the groups of Cluster API's managers that take permissions of others into their own roles: the core,
// and the kubeadm control plane, which copies machine templates. config/rbac/aggregated_role.yaml of core and
// controlplane/kubeadm in Cluster API's module.
func aggregatedBy() []string { return []string{coreGroup, "kubeadm.controlplane." + coreGroup} }

func permissions() []any {
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: namespace}}
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	aggregated := clusterWide(name + "-capi")
	aggregated.Labels = map[string]string{coreGroup + "/provider": provider}
	for _, group := range aggregatedBy() {
		aggregated.Labels[group+"/aggregate-to-manager"] = "true"
	}
	var finalizers []string
	for _, k := range Kinds() {
		finalizers = append(finalizers, k+"/finalizers")
	}
	return []any{
		&corev1.ServiceAccount{TypeMeta: kind("v1", "ServiceAccount"), ObjectMeta: meta(name)},
		&rbacv1.Role{TypeMeta: kind(rbac+"/v1", "Role"), ObjectMeta: meta(name + "-leader"), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: all},
			{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		}},
		&rbacv1.RoleBinding{
			TypeMeta: kind(rbac+"/v1", "RoleBinding"), ObjectMeta: meta(name + "-leader"), Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbac, Kind: "Role", Name: name + "-leader"},
		},
		&rbacv1.ClusterRole{TypeMeta: kind(rbac+"/v1", "ClusterRole"), ObjectMeta: clusterWide(name), Rules: ManagerRules()},
		&rbacv1.ClusterRoleBinding{
			TypeMeta: kind(rbac+"/v1", "ClusterRoleBinding"), ObjectMeta: clusterWide(name), Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbac, Kind: "ClusterRole", Name: name},
		},
		// Cluster API's own controllers make machines and clusters of ours.
		&rbacv1.ClusterRole{TypeMeta: kind(rbac+"/v1", "ClusterRole"), ObjectMeta: aggregated, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{group}, Resources: []string{"kkclusters", "kkclustertemplates", "kkmachines", "kkmachinetemplates"}, Verbs: all},
			{APIGroups: []string{group}, Resources: finalizers, Verbs: []string{"update"}},
		}},
	}
}

// certificate returns the objects by which cert-manager, which Cluster API needs anyway, signs the webhooks'
// certificate.
func certificate() []any {
	dns := service + "." + namespace + ".svc"
	return []any{
		map[string]any{
			"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": meta(name + "-selfsigned"),
			"spec": map[string]any{"selfSigned": map[string]any{}},
		},
		map[string]any{
			"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": meta(certName),
			"spec": map[string]any{
				"dnsNames": []string{dns, dns + ".cluster.local"}, "secretName": certName,
				"issuerRef": map[string]any{"kind": "Issuer", "name": name + "-selfsigned"},
			},
		},
	}
}

func injected(name string) metav1.ObjectMeta {
	m := clusterWide(name)
	m.Annotations = map[string]string{"cert-manager.io/inject-ca-from": namespace + "/" + certName}
	return m
}

func client(path string) admissionv1.WebhookClientConfig {
	return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{
		Namespace: namespace, Name: service, Path: &path,
	}}
}

func rule(group, version string, operations []admissionv1.OperationType,
	resources ...string,
) []admissionv1.RuleWithOperations {
	return []admissionv1.RuleWithOperations{{
		Operations: operations,
		Rule: admissionv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources,
			Scope: ptr.To(admissionv1.NamespacedScope),
		},
	}}
}

func pathOf(prefix, resource string) string {
	return prefix + strings.ReplaceAll(group, ".", "-") + "-" + version + "-" + strings.TrimSuffix(resource, "s")
}

// Validating returns the validating webhooks.
func Validating() *admissionv1.ValidatingWebhookConfiguration {
	c := &admissionv1.ValidatingWebhookConfiguration{
		TypeMeta: kind("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"), ObjectMeta: injected(name + "-validating"),
	}
	add := func(w admissionv1.ValidatingWebhook) {
		w.AdmissionReviewVersions, w.SideEffects, w.MatchPolicy = []string{"v1"}, ptr.To(admissionv1.SideEffectClassNone), ptr.To(admissionv1.Equivalent)
		c.Webhooks = append(c.Webhooks, w)
	}
	for _, k := range Kinds() {
		operations := []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}
		if k == "kkhosts" {
			operations = append(operations, admissionv1.Delete)
		}
		add(admissionv1.ValidatingWebhook{
			Name: "validation." + strings.TrimSuffix(k, "s") + "." + group, ClientConfig: client(pathOf("/validate-", k)),
			Rules: rule(group, version, operations, k), FailurePolicy: ptr.To(admissionv1.Fail),
		})
	}
	// Cluster API must work while this provider does not.
	operations := []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}
	add(admissionv1.ValidatingWebhook{
		Name: "versions." + group, ClientConfig: client(webhooks.VersionPath), FailurePolicy: ptr.To(admissionv1.Ignore), TimeoutSeconds: ptr.To[int32](5),
		Rules: append(rule(coreGroup, "v1beta2", operations, "clusters", "machinedeployments"), rule("controlplane."+coreGroup, "v1beta2", operations, "kubeadmcontrolplanes")...),
	})
	return c
}

// Mutating returns the webhooks with defaults.
func Mutating() *admissionv1.MutatingWebhookConfiguration {
	c := &admissionv1.MutatingWebhookConfiguration{
		TypeMeta: kind("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"), ObjectMeta: injected(name + "-mutating"),
	}
	for _, k := range []string{"kkclusters", "kkhosts"} {
		c.Webhooks = append(c.Webhooks, admissionv1.MutatingWebhook{
			Name: "default." + strings.TrimSuffix(k, "s") + "." + group, ClientConfig: client(pathOf("/mutate-", k)),
			Rules:         rule(group, version, []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}, k),
			FailurePolicy: ptr.To(admissionv1.Fail), AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone), MatchPolicy: ptr.To(admissionv1.Equivalent),
		})
	}
	return c
}

func selector() map[string]string { return map[string]string{"control-plane": name} }

func serviceOf() *corev1.Service {
	return &corev1.Service{TypeMeta: kind("v1", "Service"), ObjectMeta: meta(service), Spec: corev1.ServiceSpec{
		Selector: selector(), Ports: []corev1.ServicePort{
			{Name: "webhooks", Port: 443, TargetPort: intstr.FromString("webhooks")},
			{Name: "extension", Port: extensionPort, TargetPort: intstr.FromString("extension")},
		},
	}}
}

func deployment(image string) *appsv1.Deployment {
	const certs, bundles, scratch, user = "/certs", "/var/lib/kkbundle-provider", "/run/kkbundle-provider", 65532
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")}}}
	}
	manager := corev1.Container{
		Name: "manager", Image: image, // the name is clusterctl's
		Args: []string{
			"--leader-elect", "--webhook-cert-dir=" + certs, "--bundles=" + bundles, "--scratch=" + scratch + "/runs",
			fmt.Sprintf("--extension-port=%d", extensionPort), "--extension-service=" + namespace + "/" + service, "--extension-secret=" + certName,
		},
		Ports: []corev1.ContainerPort{
			{Name: "webhooks", ContainerPort: 9443}, {Name: "extension", ContainerPort: extensionPort}, {Name: "health", ContainerPort: 9440},
		},
		LivenessProbe: probe("/healthz"), ReadinessProbe: probe("/readyz"),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "certs", MountPath: certs, ReadOnly: true}, {Name: "bundles", MountPath: bundles}, {Name: "scratch", MountPath: scratch}, {Name: "tmp", MountPath: "/tmp"},
		},
	}
	empty := func(name string, medium corev1.StorageMedium) corev1.Volume {
		return corev1.Volume{
			Name:         name,
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}},
		}
	}
	return &appsv1.Deployment{TypeMeta: kind("apps/v1", "Deployment"), ObjectMeta: meta(name), Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: selector()},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selector()}, Spec: corev1.PodSpec{
			ServiceAccountName: name, Containers: []corev1.Container{manager},
			// What a run has begun on a host is left in order before the pod ends.
			TerminationGracePeriodSeconds: ptr.To[int64](60),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](user), RunAsGroup: ptr.To[int64](user),
				FSGroup:        ptr.To[int64](user),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Tolerations: []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}},
			Volumes: []corev1.Volume{
				{Name: "certs", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: certName}}},
				empty("bundles", ""), empty("scratch", corev1.StorageMediumMemory), empty("tmp", ""),
			},
		}},
	}}
}
