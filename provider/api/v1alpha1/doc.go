// Package v1alpha1 contains the objects of kkbundle's Cluster API infrastructure provider: a pool of hosts, the
// machines that take hosts from it, and the bundles that the hosts are provisioned from. They follow Cluster API's
// contract v1beta2.
//
// Everything that must survive clusterctl move, which never restores a status, is in spec or metadata.
// +kubebuilder:object:generate=true
// +groupName=infrastructure.kkbundle.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the objects.
var GroupVersion = schema.GroupVersion{Group: "infrastructure.kkbundle.io", Version: "v1alpha1"} //nolint:gochecknoglobals // a constant, named as everywhere

// AddToScheme adds the objects to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&KKHost{}, &KKHostList{}, &KKBundle{}, &KKBundleList{},
		&KKCluster{}, &KKClusterList{}, &KKClusterTemplate{}, &KKClusterTemplateList{},
		&KKMachine{}, &KKMachineList{}, &KKMachineTemplate{}, &KKMachineTemplateList{},
		&KKInstance{}, &KKInstanceList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// A LocalRef names an object of the same namespace.
type LocalRef struct {
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// A Role is what a host may be in a cluster.
// +kubebuilder:validation:Enum=control-plane;worker
type Role string

// The roles have CAPKK's names.
const (
	RoleControlPlane Role = "control-plane"
	RoleWorker       Role = "worker"
)

// A ContainerManager is the container runtime that is installed on a host.
type ContainerManager struct {
	// Type of the runtime. A bundle has one, that of its cluster file.
	// +optional
	// +kubebuilder:validation:Enum=containerd;docker;crio
	Type string `json:"type,omitempty"`
}

// A Repository says where packages of the operating system come from that a host lacks.
type Repository struct {
	// Packages is the origin: bundle, host (the host's own sources) or none (nothing is installed). The default is that
	// of the bundle's cluster file.
	// +optional
	// +kubebuilder:validation:Enum=bundle;host;none
	Packages string `json:"packages,omitempty"`
}

// Keys of Secrets. Those of an SSH login are Kubernetes' own (types kubernetes.io/ssh-auth and
// kubernetes.io/basic-auth).
const (
	SecretPrivateKey   = "ssh-privatekey"
	SecretPassword     = "password"
	SecretSudoPassword = "sudo-password"
	SecretKnownHosts   = "known_hosts"
	SecretUsername     = "username"
	SecretCA           = "ca.crt"
	SecretTrust        = "trust.pem"
)

// Names in metadata.
const (
	// HostFinalizer keeps a KKHost until no machine has it.
	HostFinalizer = "infrastructure.kkbundle.io/host"
	// LoginFinalizer keeps a Secret until every host that needs it to be cleaned is clean.
	LoginFinalizer = "infrastructure.kkbundle.io/login"
	// MachineFinalizer keeps a KKMachine until its host is back in the pool.
	MachineFinalizer = "infrastructure.kkbundle.io/machine"
	// InstanceFinalizer keeps a KKInstance until its host is clean or in quarantine.
	InstanceFinalizer = "infrastructure.kkbundle.io/instance"
	// ClusterFinalizer keeps a KKCluster until its machines are gone.
	ClusterFinalizer = "infrastructure.kkbundle.io/cluster"

	// ProvisionedAnnotation of a KKInstance has the digest of the bootstrap data that its host was provisioned with.
	ProvisionedAnnotation = "infrastructure.kkbundle.io/provisioned"
	// UpdatedAnnotation of a KKInstance has the ID of the last update in place that is done.
	UpdatedAnnotation = "infrastructure.kkbundle.io/updated"
	// UpdatingAnnotation of a Node says that the provider has cordoned it, for an update in place.
	UpdatingAnnotation = "infrastructure.kkbundle.io/updating"
	// BegunAnnotation of a KKInstance has the time at which the bootstrap data first began to run on the host.
	BegunAnnotation = "infrastructure.kkbundle.io/begun"
	// CleaningAnnotation of a KKInstance has the time at which the first attempt to clean its host began.
	CleaningAnnotation = "infrastructure.kkbundle.io/cleaning"
	// QuarantineAnnotation of a KKHost has the reason for which it is never handed out. The operator removes it.
	QuarantineAnnotation = "infrastructure.kkbundle.io/quarantine"
	// HostKeyAnnotation of a KKHost has the host keys that were accepted on first use, as lines of known_hosts.
	HostKeyAnnotation = "infrastructure.kkbundle.io/host-keys"
	// LastOwnerAnnotation of a KKHost names the owner of the machine that had it last: its images are still there.
	LastOwnerAnnotation = "infrastructure.kkbundle.io/last-owner"
)
