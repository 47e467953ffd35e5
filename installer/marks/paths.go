package marks

import (
	"fmt"
	"path"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
)

// Files of every run.
const (
	// Lock is a host's lock file, and LockOwner the run that holds it.
	Lock      = task.StateDir + "/lock"
	LockOwner = task.StateDir + "/lock.owner"
	// Owner is the machine of Cluster API that has the host. It is outside of the directory of stamps: it is no
	// installation.
	Owner = task.StateDir + "/owner"
	// Received has received content, and the receipts of unpacked files. Only the helper reads and writes it.
	Received = task.StateDir + "/receive"
	// Hooks has a copy of each script of the operator that succeeded.
	Hooks = task.StateDir + "/hooks"
	// Adding is on a host that `nodes add` has begun to add, until its last script has succeeded.
	Adding = task.StateDir + "/adding"
	// RegistryData has the images of the site's registry.
	RegistryData = task.StateDir + "/registry"
)

// Files that exist while something runs.
const (
	// Packages has the bundle's packages during their installation.
	Packages = task.StateDir + "/packages"
	// KubeadmConfig is kubeadm's configuration. It contains a token.
	KubeadmConfig = task.StateDir + "/kubeadm.yaml"
	// KubeadmClient is kubeadm's configuration for the client certificate of a kubelet.
	KubeadmClient = task.StateDir + "/kubeadm-client.yaml"
	// Snapshot has a snapshot of etcd during a backup or a restore.
	Snapshot = task.StateDir + "/etcd-snapshot"
)

// The state of the host before kkbundle, for reset.
const (
	SysctlBefore = task.BeforeDir + "/sysctl.conf"
	// SwapMasked exists if an installation masked swap.target.
	SwapMasked = task.BeforeDir + "/swap-target"
	// ForwardBefore has the host's forwarding settings before Docker's first start.
	ForwardBefore = task.BeforeDir + "/docker-forward.conf"
	// NFSServerBefore has the unit's name if the NFS server did not run before the installation.
	NFSServerBefore = task.BeforeDir + "/nfs-server"

	// ContainerdBefore has the files of another containerd that ours replaces, and files that tell about its state.
	// Reset restores both, and removes the directory last: its absence means that nobody else's containers are on the
	// host.
	ContainerdBefore   = task.StateDir + "/containerd-before"
	ContainerdFiles    = ContainerdBefore + "/files"    // the replaced files
	ContainerdActive   = ContainerdBefore + "/active"   // the unit ran
	ContainerdEnabled  = ContainerdBefore + "/enabled"  // the unit was started at boot
	ContainerdData     = ContainerdBefore + "/data"     // there were images or containers
	ContainerdComplete = ContainerdBefore + "/complete" // the directory is complete
)

// A restore of etcd.
const (
	// HeldManifests holds the control plane's manifests during a restore. It is on the file system of the kubelet's
	// directory, so that each manifest is always in exactly one of both.
	HeldManifests = "/etc/kubernetes/kkbundle-restore"
	// RestoredData and DiscardedData are in etcd's directory: it may be a disk, and data moves within it only.
	RestoredData  = "kkbundle-restored"
	DiscardedData = "kkbundle-discarded"
	// UnfinishedData is in the data of an unfinished restore, which may be deleted.
	UnfinishedData = "kkbundle-unfinished"
	// OldData begins the names of directories with the data before a restore or a new membership.
	OldData = "kkbundle-before-"
)

// OldDataDir returns the name of the directory for old data, inside etcd's data directory.
func OldDataDir(s *task.Site) string { return OldData + s.Now().UTC().Format("20060102T150405Z") }

// NewServing has a certificate of the API server until it is put into use. It is on the file system of the one in use.
const NewServing = kube.PKIDir + "/kkbundle-new"

// A replacement of certificate authorities.
const (
	// RotationDir exists on control planes during a rotation of authorities. It has both generations with their keys.
	// The controller manager reads the signing authority there: it refuses a file with two certificates.
	RotationDir = kube.PKIDir + "/kkbundle-ca"
	// RotationNames lists the authorities of a rotation. It is written last: a directory without it is incomplete.
	RotationNames = RotationDir + "/names"
	// RotationEnd names the generation that stays. It exists as soon as the other one is removed from the first file.
	RotationEnd = RotationDir + "/end"
	// RotationBefore lists the pods that existed when new pods began to trust both generations.
	RotationBefore = RotationDir + "/pods-before"
)

// Marks in the API.
const (
	// TaintsAnnotation lists the taints of a node that kkbundle owns: the API records one owner for all taints of a
	// node.
	TaintsAnnotation = "kkbundle.io/taints"
	// ManifestsLabel labels the ConfigMap with the digest of the applied YAML and the list of its objects. Its value
	// is the addon's name.
	ManifestsLabel = "kkbundle.io/manifests"
	// ProxyEndpointAnnotation of kube-proxy's pods is the API server of the kubeconfig that they started with.
	ProxyEndpointAnnotation = "kkbundle.io/endpoint"
	// CorefileAnnotation of node-local DNS is the digest of its configuration: a change restarts the pods.
	CorefileAnnotation = "kkbundle.io/corefile"
	// PeersLoginAnnotation of Spegel's pods is the digest of their login: another one restarts them.
	PeersLoginAnnotation = "kkbundle.io/peers-login"
	// ProofLabel marks the objects of a proof. They are in kube-system: a namespace of their own would take five
	// seconds to be deleted (namespaceDeletionGracePeriod of
	// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/controller/namespace/namespace_controller.go).
	ProofLabel = "kkbundle.io/verify"
	// VolumesNamespace has the objects of the proof of volumes.
	VolumesNamespace = "kkbundle-verify-volumes"
)

// Receipt returns the receipt of a step of a bootstrap document, which the first step has number 1.
func Receipt(document string, number int) string {
	return path.Join(task.ProvisionDir, document, fmt.Sprintf("%04d", number))
}

// Sentinel exists once all steps of a bootstrap document have succeeded; Cluster API's controllers wait for this file.
// https://cluster-api.sigs.k8s.io/developer/providers/contracts/bootstrap-config
const Sentinel = "/run/cluster-api/bootstrap-success.complete"
