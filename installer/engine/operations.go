package engine

import (
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Verb says how an operation deals with its hosts and with the cluster that is there.
type Operation struct {
	// helper is put on the hosts, which are asked for their addresses.
	helper bool
	// lead means that the control plane that speaks for the cluster is found before the work begins.
	lead bool
	// narrow connects to the hosts of the scope and to no others.
	narrow bool
	// tolerant goes on with the hosts that can be reached, as long as there is one.
	tolerant bool
	// limitable means that the operator can limit the operation to hosts.
	limitable bool
	// visits means that hosts are looked at once, each as soon as it is connected to, and that the report says what is
	// wrong with them.
	Visits bool
	// roles, if any, are those of the only hosts that are connected to.
	Roles []manifest.Role
	// rule says which cluster the hosts may belong to.
	rule task.ClusterRule
}

func Installing() Operation   { return Operation{helper: true, lead: true, limitable: true} }
func Changing() Operation     { return Operation{helper: true, lead: true} }
func Upgrading() Operation    { return Operation{helper: true, lead: true, rule: task.OtherVersion} }
func Resetting() Operation    { return Operation{narrow: true, tolerant: true} }
func Provisioning() Operation { return Operation{helper: true, narrow: true} }
func Prechecking() Operation  { return Operation{helper: true, Visits: true} }

// LookingAt is the verb of status and support bundles.
func LookingAt(rule task.ClusterRule) Operation { return Operation{helper: true, rule: rule} }

// SavingEtcd is the verb of saving and restoring etcd.
func SavingEtcd() Operation {
	return Operation{helper: true, lead: true, tolerant: true, Roles: []manifest.Role{manifest.RoleEtcd, manifest.RoleControlPlane}}
}
