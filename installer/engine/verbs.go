package installer

import "github.com/kkbundle/kkbundle/manifest"

// A verb says how an operation deals with its hosts and with the cluster that is there.
type verb struct {
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
	visits bool
	// roles, if any, are those of the only hosts that are connected to.
	roles []manifest.Role
	// rule says which cluster the hosts may belong to.
	rule ClusterRule
}

func installing() verb   { return verb{helper: true, lead: true, limitable: true} }
func changing() verb     { return verb{helper: true, lead: true} }
func upgrading() verb    { return verb{helper: true, lead: true, rule: OtherVersion} }
func resetting() verb    { return verb{narrow: true, tolerant: true} }
func provisioning() verb { return verb{helper: true, narrow: true} }
func prechecking() verb  { return verb{helper: true, visits: true} }

// lookingAt is the verb of status and support bundles.
func lookingAt(rule ClusterRule) verb { return verb{helper: true, rule: rule} }

// savingEtcd is the verb of saving and restoring etcd.
func savingEtcd() verb {
	return verb{helper: true, lead: true, tolerant: true, roles: []manifest.Role{manifest.RoleEtcd, manifest.RoleControlPlane}}
}
