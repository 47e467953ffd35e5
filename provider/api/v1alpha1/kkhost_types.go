package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KKHostSpec describes a host of the pool.
type KKHostSpec struct {
	// Address for SSH: an IPv4 or IPv6 address, or a name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address,omitempty"`
	// InternalIPv4 is the node's IPv4 address in the cluster. The default is address, if it is one.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	InternalIPv4 string `json:"internalIPv4,omitempty"`
	// InternalIPv6 is the node's IPv6 address in the cluster. The default is address, if it is one.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	InternalIPv6 string `json:"internalIPv6,omitempty"`
	// SSH is the access to the host.
	// +required
	SSH SSH `json:"ssh,omitempty,omitzero"`
	// Roles are those that the host may have. The default is both.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	Roles []Role `json:"roles,omitempty"`
	// FailureDomain is the rack, room or building of the host.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`
	// Arch is the host's architecture.
	// +optional
	// +kubebuilder:default=amd64
	// +kubebuilder:validation:Enum=amd64;arm64
	Arch string `json:"arch,omitempty"`
	// Capacity is what the host has, such as cpu and memory, for machines with minCapacity and for the cluster
	// autoscaler.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// Unschedulable keeps the host from being chosen. The Machine of a host in use is marked to be deleted first when
	// its owner is scaled down.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// Consumer is the KKMachine that has the host. The provider sets it; exactly one KKMachine can.
	// +optional
	Consumer *Consumer `json:"consumer,omitempty"`
}

// SSH is the access to a host.
type SSH struct {
	// User for the login.
	// +optional
	// +kubebuilder:default=root
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_.-]*[$]?$`
	User string `json:"user,omitempty"`
	// Port of the SSH server.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// SecretRef names the Secret of the login: ssh-privatekey or password, and sudo-password for a user whom sudo asks.
	// +required
	SecretRef LocalRef `json:"secretRef,omitempty,omitzero"`
	// KnownHostsRef names a Secret with the host's keys: known_hosts, in the format of OpenSSH. An authority
	// (@cert-authority) counts.
	// +optional
	KnownHostsRef *LocalRef `json:"knownHostsRef,omitempty"`
	// TrustOnFirstUse accepts the host's key at the first connection and keeps it. Another key is refused afterwards.
	// +optional
	TrustOnFirstUse bool `json:"trustOnFirstUse,omitempty"`
	// Bastions are the hops to the host, the first one dialled first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Bastions []Bastion `json:"bastions,omitempty"`
}

// A Bastion is a hop on the way to a host. Its key is in the host's known_hosts.
type Bastion struct {
	// Address of the bastion.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address,omitempty"`
	// User for the login.
	// +optional
	// +kubebuilder:default=root
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_.-]*[$]?$`
	User string `json:"user,omitempty"`
	// Port of the SSH server.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// SecretRef names the Secret of the login; the default is the host's own.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
}

// A Consumer is the KKMachine that has a host. Names survive clusterctl move, UIDs do not.
type Consumer struct {
	// Cluster is the name of the machine's Cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster,omitempty"`
	// Machine is the name of the KKMachine.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`
}

// KKHostStatus is the state of a host.
type KKHostStatus struct {
	// State is Available, InUse, Quarantined or Unschedulable.
	// +optional
	State string `json:"state,omitempty"`
	// Conditions of the host: Available.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KKHost is a host that clusters of its namespace can take.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kkhosts,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Address",type="string",JSONPath=".spec.address"
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.state"
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".spec.consumer.cluster"
// +kubebuilder:printcolumn:name="Machine",type="string",JSONPath=".spec.consumer.machine"
// +kubebuilder:printcolumn:name="Domain",type="string",JSONPath=".spec.failureDomain"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KKHost struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KKHostSpec   `json:"spec,omitempty"`
	Status KKHostStatus `json:"status,omitempty"`
}

// GetConditions implements conditions.Getter.
func (h *KKHost) GetConditions() []metav1.Condition { return h.Status.Conditions }

// SetConditions implements conditions.Setter.
func (h *KKHost) SetConditions(c []metav1.Condition) { h.Status.Conditions = c }

// KKHostList is a list of hosts.
// +kubebuilder:object:root=true
type KKHostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KKHost `json:"items"`
}
