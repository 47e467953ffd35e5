package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KKBundleSpec names a bundle.
type KKBundleSpec struct {
	// Source is the address of the bundle: oci://HOST/PATH:TAG or oci://HOST/PATH@DIGEST of a published one, https://HOST/PATH/NAME.kkb of a
	// served one, or file:///NAME.kkb in the directory that the provider was started with.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source,omitempty"`
	// SecretRef names a Secret for the source: username and password, and ca.crt with its authority.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
	// Trust is the signature policy.
	// +optional
	Trust Trust `json:"trust,omitempty,omitzero"`
}

// Trust is the signature policy of a bundle.
// +kubebuilder:validation:MinProperties=1
type Trust struct {
	// SecretRef names a Secret with the public keys, one of which must have signed the bundle: trust.pem.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
	// RequireSignature refuses a bundle that is not signed. With secretRef that is so anyway.
	// +optional
	RequireSignature bool `json:"requireSignature,omitempty"`
}

// KKBundleStatus says what the bundle has.
type KKBundleStatus struct {
	// Name and Version of the bundle.
	// +optional
	Name string `json:"name,omitempty"`
	// Version of the bundle.
	// +optional
	Version string `json:"version,omitempty"`
	// Digest of the bundle.
	// +optional
	Digest string `json:"digest,omitempty"`
	// Versions are those of Kubernetes that the bundle has, the oldest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Versions []string `json:"versions,omitempty"`
	// ReadAt is the time at which the bundle was read last. It is read again after ten minutes: a tag may name another
	// bundle.
	// +optional
	ReadAt *metav1.Time `json:"readAt,omitempty"`
	// Conditions of the bundle: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KKBundle is a bundle that hosts are provisioned from.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=kkbundles,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Source",type="string",JSONPath=".spec.source"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Versions",type="string",JSONPath=".status.versions"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KKBundle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   KKBundleSpec   `json:"spec,omitempty"`
	Status KKBundleStatus `json:"status,omitempty"`
}

// GetConditions implements conditions.Getter.
func (b *KKBundle) GetConditions() []metav1.Condition { return b.Status.Conditions }

// SetConditions implements conditions.Setter.
func (b *KKBundle) SetConditions(c []metav1.Condition) { b.Status.Conditions = c }

// KKBundleList is a list of bundles.
// +kubebuilder:object:root=true
type KKBundleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KKBundle `json:"items"`
}
