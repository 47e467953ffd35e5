package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KKMachineSpec describes the host that a machine needs.
type KKMachineSpec struct {
	// ProviderID is kk:///NAMESPACE/NAME once the machine has a host. The provider sets it, here and on the node.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
	// HostName is the KKHost of the machine. The provider sets it; a name that you give is the only host that the
	// machine takes.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	HostName string `json:"hostName,omitempty"`
	// HostSelector selects hosts by their labels.
	// +optional
	HostSelector *metav1.LabelSelector `json:"hostSelector,omitempty"`
	// Roles that the host must have. The default is control-plane or worker, as the Machine is.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	Roles []Role `json:"roles,omitempty"`
	// MinCapacity is the least capacity of the host. A host that states none of a resource does not fit.
	// +optional
	MinCapacity corev1.ResourceList `json:"minCapacity,omitempty"`
	// ContainerManager is the container runtime.
	// +optional
	ContainerManager ContainerManager `json:"containerManager,omitempty,omitzero"`
	// Repository is where packages of the operating system come from.
	// +optional
	Repository Repository `json:"repository,omitempty,omitzero"`
}

// KKMachineStatus is the state of a machine.
type KKMachineStatus struct {
	// Initialization is part of Cluster API's contract.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`
	// FailureDomain of the machine's host.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`
	// Addresses of the machine's host.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Addresses []clusterv1.MachineAddress `json:"addresses,omitempty"`
	// Conditions of the machine: Ready, HostClaimed, Provisioned, NodeIdentified, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KKMachine is the infrastructure of a Machine: a host of the pool.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kkmachines,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']"
// +kubebuilder:printcolumn:name="Host",type="string",JSONPath=".spec.hostName"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].reason"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KKMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KKMachineSpec   `json:"spec,omitempty"`
	Status KKMachineStatus `json:"status,omitempty"`
}

// GetConditions implements conditions.Getter.
func (m *KKMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions implements conditions.Setter.
func (m *KKMachine) SetConditions(c []metav1.Condition) { m.Status.Conditions = c }

// KKMachineList is a list of machines.
// +kubebuilder:object:root=true
type KKMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KKMachine `json:"items"`
}

// KKMachineTemplateSpec describes the KKMachines of a set of machines.
type KKMachineTemplateSpec struct {
	// Template of a KKMachine. It never changes: make another template.
	// +required
	Template KKMachineTemplateResource `json:"template,omitempty,omitzero"`
}

// KKMachineTemplateResource is the template of a KKMachine.
type KKMachineTemplateResource struct {
	// ObjectMeta has labels and annotations.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// Spec of the KKMachine.
	// +optional
	Spec KKMachineSpec `json:"spec,omitempty,omitzero"`
}

// KKMachineTemplateStatus tells the cluster autoscaler about hosts, for node groups without nodes.
type KKMachineTemplateStatus struct {
	// Capacity is what every host has that a machine of the template can take.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// NodeInfo describes the nodes.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty,omitzero"`
}

// NodeInfo describes nodes.
// +kubebuilder:validation:MinProperties=1
type NodeInfo struct {
	// Architecture of the nodes, if all hosts have the same.
	// +optional
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture,omitempty"`
	// OperatingSystem is linux.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// KKMachineTemplate is the template of KKMachines.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kkmachinetemplates,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
type KKMachineTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KKMachineTemplateSpec   `json:"spec,omitempty"`
	Status KKMachineTemplateStatus `json:"status,omitempty"`
}

// KKMachineTemplateList is a list of templates.
// +kubebuilder:object:root=true
type KKMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KKMachineTemplate `json:"items"`
}
