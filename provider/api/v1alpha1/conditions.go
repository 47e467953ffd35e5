package v1alpha1

import clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

// Conditions of a KKInstance, in the order of its phases. They have the names of CAPKK's operations.
const (
	BootstrapCondition        = "Bootstrap"
	RepositoryCondition       = "Repository"
	BinaryCondition           = "Binary"
	ContainerManagerCondition = "ContainerManager"
	ProvisioningCondition     = "Provisioning"
	// UpdatedCondition reports whether the last update in place that was asked for is done.
	UpdatedCondition = "Updated"
	// CleanedCondition is set while a KKInstance is deleted.
	CleanedCondition = "Cleaned"
)

// Conditions of the other objects.
const (
	ReadyCondition  = clusterv1.ReadyCondition
	PausedCondition = clusterv1.PausedCondition
	// AvailableCondition of a KKHost reports whether a machine can take it.
	AvailableCondition = "Available"
	// HostClaimedCondition of a KKMachine reports whether it has a host.
	HostClaimedCondition = "HostClaimed"
	// ProvisionedCondition of a KKMachine mirrors the readiness of its KKInstance.
	ProvisionedCondition = "Provisioned"
	// NodeIdentifiedCondition of a KKMachine reports whether the node has the machine's providerID.
	NodeIdentifiedCondition = "NodeIdentified"
)

// States of a KKHost.
const (
	HostAvailable     = "Available"
	HostInUse         = "InUse"
	HostQuarantined   = "Quarantined"
	HostUnschedulable = "Unschedulable"
)

// States of a KKInstance.
const (
	InstancePending       = "Pending"
	InstanceBootstrapping = "Bootstrapping"
	InstanceRunning       = "Running"
	InstanceUpdating      = "Updating"
	InstanceFailed        = "Failed"
	InstanceCleaning      = "Cleaning"
	InstanceQuarantined   = "Quarantined"
)

// Reasons of conditions.
const (
	DoneReason            = "Done"
	WaitingReason         = "Waiting"         // for another object, or for a free worker
	RunningReason         = "Running"         // at work on the host
	FailedReason          = "Failed"          // on the host; repeated
	GivenUpReason         = "GivenUp"         // failed too often; delete the Machine
	UnreachableReason     = "Unreachable"     // SSH: no connection, login refused, or another host key
	BusyReason            = "Busy"            // another run of kkbundle is at work on the host
	RefusedReason         = "Refused"         // the host or the bundle is not one for this work
	InvalidReason         = "Invalid"         // an object or the bootstrap data has a mistake
	MissingReason         = "Missing"         // an object or a part of the bundle is not there
	NoHostReason          = "NoHost"          // no host of the pool fits
	TakenReason           = "Taken"           // another machine has the host
	QuarantinedReason     = "Quarantined"     // the host could not be cleaned
	UnschedulableReason   = "Unschedulable"   // by the operator
	NotPausedReason       = "NotPaused"       // Cluster API's own
	DeletingReason        = "Deleting"        //
	VersionMissingReason  = "VersionMissing"  // the bundle does not have the machine's version
	NodeNotFoundReason    = "NodeNotFound"    // the workload cluster has no such node yet
	EndpointMissingReason = "EndpointMissing" // no control plane endpoint
)
