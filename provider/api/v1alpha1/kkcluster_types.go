package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KKClusterSpec describes the infrastructure of a cluster.
type KKClusterSpec struct {
	// ControlPlaneEndpoint is the address of the API server: one that kube-vip holds (see the templates), your
	// balancer's, or the address of the only control plane. The Cluster's own controlPlaneEndpoint counts if this one
	// is empty.
	// +optional
	ControlPlaneEndpoint APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
	// BundleRef names the KKBundle that the cluster's hosts are provisioned from.
	// +required
	BundleRef LocalRef `json:"bundleRef,omitempty,omitzero"`
	// Registry is the site's registry, which hosts pull images from under upstream's names.
	// +required
	Registry Registry `json:"registry,omitempty,omitzero"`
}

// An APIEndpoint is an address of the API server.
// +kubebuilder:validation:MinProperties=1
type APIEndpoint struct {
	// Host is an address or a name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host,omitempty"`
	// Port of the API server; the default is 6443.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// A Registry is a registry that has the bundle's images.
type Registry struct {
	// Address is host[:port][/path].
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Address string `json:"address,omitempty"`
	// SecretRef names a Secret: username and password of a login that may pull, and ca.crt with the registry's
	// authority.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
}

// KKClusterStatus is the state of a cluster's infrastructure.
type KKClusterStatus struct {
	// Initialization is part of Cluster API's contract.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// FailureDomains are those of the pool's hosts.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`
	// Conditions of the cluster: Ready, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization is part of Cluster API's contract.
// +kubebuilder:validation:MinProperties=1
type Initialization struct {
	// Provisioned is true once the infrastructure is complete. It stays true.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KKCluster is the infrastructure of a cluster.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kkclusters,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"
// +kubebuilder:printcolumn:name="Endpoint",type="string",JSONPath=".spec.controlPlaneEndpoint.host"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KKCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KKClusterSpec   `json:"spec,omitempty"`
	Status KKClusterStatus `json:"status,omitempty"`
}

// GetConditions implements conditions.Getter.
func (c *KKCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions implements conditions.Setter.
func (c *KKCluster) SetConditions(conditions []metav1.Condition) { c.Status.Conditions = conditions }

// KKClusterList is a list of clusters.
// +kubebuilder:object:root=true
type KKClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KKCluster `json:"items"`
}

// KKClusterTemplateSpec describes the KKCluster of each cluster of a class.
type KKClusterTemplateSpec struct {
	// Template of a KKCluster.
	// +required
	Template KKClusterTemplateResource `json:"template,omitempty,omitzero"`
}

// KKClusterTemplateResource is the template of a KKCluster.
type KKClusterTemplateResource struct {
	// ObjectMeta has labels and annotations.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// Spec of the KKCluster.
	// +required
	Spec KKClusterSpec `json:"spec,omitempty,omitzero"`
}

// KKClusterTemplate is the template of KKClusters of a ClusterClass.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kkclustertemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
type KKClusterTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KKClusterTemplateSpec `json:"spec,omitempty"`
}

// KKClusterTemplateList is a list of templates.
// +kubebuilder:object:root=true
type KKClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KKClusterTemplate `json:"items"`
}
