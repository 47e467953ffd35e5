package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KKInstanceSpec is all that the work on a host needs to know, also when the cluster's other objects are gone.
type KKInstanceSpec struct {
	// HostName is the KKHost.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	HostName string `json:"hostName,omitempty"`
	// ClusterName is the name of the Cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterName string `json:"clusterName,omitempty"`
	// Role in the cluster.
	// +required
	Role Role `json:"role,omitempty"`
	// Version of Kubernetes.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`
	// BootstrapSecretName names the Secret with the bootstrap data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	BootstrapSecretName string `json:"bootstrapSecretName,omitempty"`
	// BundleRef names the KKBundle.
	// +required
	BundleRef LocalRef `json:"bundleRef,omitempty,omitzero"`
	// Registry is the site's registry.
	// +required
	Registry Registry `json:"registry,omitempty,omitzero"`
	// PodCIDR has the networks of pods, separated by a comma.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	PodCIDR string `json:"podCIDR,omitempty"`
	// ServiceCIDR has the networks of services, separated by a comma.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// ContainerManager is the container runtime.
	// +optional
	ContainerManager ContainerManager `json:"containerManager,omitempty,omitzero"`
	// Repository is where packages of the operating system come from.
	// +optional
	Repository Repository `json:"repository,omitempty,omitzero"`
	// Update is the last update in place that Cluster API has asked for. Version, bundleRef and registry are those
	// that it brings.
	// +optional
	Update *Update `json:"update,omitempty"`
}

// An Update is what a host is brought to in place.
type Update struct {
	// ID tells one update from others. The annotation updated has that of the last one that was done.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id,omitempty"`
	// Patches is the directory on the host with kubeadm's patches.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Patches string `json:"patches,omitempty"`
	// Config names the KubeadmConfig whose files in that directory are written to the host.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Config string `json:"config,omitempty"`
}

// KKInstanceStatus is the state of the work on a host.
type KKInstanceStatus struct {
	// State is Pending, Bootstrapping, Running, Updating, Failed, Cleaning or Quarantined.
	// +optional
	State string `json:"state,omitempty"`
	// Attempts is the number of runs that have failed in a row.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attempts int32 `json:"attempts,omitempty"`
	// NextAttempt is the time before which no run begins.
	// +optional
	NextAttempt *metav1.Time `json:"nextAttempt,omitempty"`
	// Conditions of the instance: Bootstrap, Repository, Binary, ContainerManager, Provisioning, Ready, Paused,
	// Updated after an update in place was asked for, and Cleaned while it is deleted.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KKInstance is a host in the work of one cluster.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kkinstances,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".spec.clusterName"
// +kubebuilder:printcolumn:name="Host",type="string",JSONPath=".spec.hostName"
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.state"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".spec.version"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KKInstance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KKInstanceSpec   `json:"spec,omitempty"`
	Status KKInstanceStatus `json:"status,omitempty"`
}

// GetConditions implements conditions.Getter.
func (i *KKInstance) GetConditions() []metav1.Condition { return i.Status.Conditions }

// SetConditions implements conditions.Setter.
func (i *KKInstance) SetConditions(c []metav1.Condition) { i.Status.Conditions = c }

// KKInstanceList is a list of instances.
// +kubebuilder:object:root=true
type KKInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KKInstance `json:"items"`
}
