package engine

import (
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// An Operation defines how a run treats its hosts and their cluster.
type Operation struct {
	helper    bool // put the helper on hosts and ask it for their addresses
	lead      bool // find the lead before the work
	narrow    bool // connect only to hosts in the scope
	tolerant  bool // continue with the reachable hosts, if there is one
	limitable bool // --limit works
	without   bool // --without works
	// Visits means that each host is checked once, as soon as it is connected, and that the report has its failures.
	Visits bool
	Roles  []manifest.Role // connect only to hosts with one of these roles, if any
	rule   task.ClusterRule
}

// Installing is the operation of install.
func Installing() Operation {
	return Operation{helper: true, lead: true, limitable: true, without: true}
}

// Adopting is the operation of taking over a cluster, and of giving it back.
func Adopting() Operation { return Operation{} }

// Changing is the operation of commands that change a cluster.
func Changing() Operation { return Operation{helper: true, lead: true} }

// Upgrading is the operation of upgrade.
func Upgrading() Operation {
	return Operation{helper: true, lead: true, without: true, rule: task.OtherVersion}
}

// Resetting is the operation of reset.
func Resetting() Operation { return Operation{narrow: true, tolerant: true} }

// Provisioning is the operation of provision.
func Provisioning() Operation { return Operation{helper: true, narrow: true} }

// Prechecking is the operation of precheck.
func Prechecking() Operation { return Operation{helper: true, Visits: true} }

// LookingAt is the operation of status and support-bundle.
func LookingAt(rule task.ClusterRule) Operation { return Operation{helper: true, rule: rule} }

// SavingEtcd is the operation of etcd snapshots and restores.
func SavingEtcd() Operation {
	return Operation{
		helper: true, lead: true, tolerant: true,
		Roles: []manifest.Role{manifest.RoleEtcd, manifest.RoleControlPlane},
	}
}
