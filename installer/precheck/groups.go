package precheck

import (
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// groupChecks check the roles of hosts.
func groupChecks() []Check {
	return []Check{
		{
			ID: "control-plane", Groups: []string{GroupKubernetes}, Level: Block, Title: "there is a control plane",
			Rule: hasControlPlane, OfCluster: true,
			Why:    "there is no cluster without one",
			Fix:    "name a host in groups.kube_control_plane of the inventory",
			Source: "KubeKey v4: inventory",
		},
		{
			ID: "workers", Groups: []string{GroupKubernetes}, Level: Warn, Title: "there is a host for pods",
			Rule: hasWorkers, OfCluster: true,
			Why:    "control planes take no pods of users, so everything that is installed into the cluster would wait",
			Fix:    "name hosts in groups.kube_worker of the inventory; a control plane can be there too",
			Source: "Kubernetes: the taint of control planes",
		},
		{
			ID: "etcd-group", Groups: []string{GroupEtcd}, Level: Block, Title: "there is a host for etcd",
			Rule: hasEtcdHosts, OfCluster: true,
			Why:    "Kubernetes keeps its state in etcd",
			Fix:    "name hosts in groups.etcd of the inventory, or set etcd.type to internal",
			Source: "KubeKey v4 etcd_precheck",
		},
		{
			ID: "etcd-odd", Groups: []string{GroupEtcd}, Level: Block, Title: "the number of etcd's hosts is odd",
			Rule: isOdd, OfCluster: true,
			LevelOf: oddLevel, Varies: "warns where the cluster is there already, and has lost one or gets one",
			Why:    "an even number tolerates no more failures than one host fewer, and a network split can leave two halves without a majority",
			Fix:    "use 1, 3 or 5 hosts",
			Source: "KubeKey v4 etcd_precheck; Kubespray",
		},
		{
			ID: "etcd-type", Groups: []string{GroupEtcd}, Level: Block, Title: "the kind of etcd is a known one",
			Rule: isKnownEtcd, OfCluster: true,
			Why:    "kkbundle cannot install an etcd of this type",
			Fix:    "write internal, external or provided into etcd.type of the cluster file",
			Source: "KubeKey v4 etcd_precheck",
		},
		{
			ID: "registry-group", Groups: []string{GroupRegistry}, Level: Block,
			Title: "there is a host for the registry, or two with a shared address", Rule: hasRegistryHosts,
			OfCluster: true,
			Why:       "the hosts would have nowhere to pull images from",
			Fix:       "name a host in groups.image_registry of the inventory (two with imageRegistry.vip), or set imageRegistry.type to existing or none",
			Source:    "KubeKey v4 image_registry_precheck",
		},
		{
			ID: "nfs-group", Groups: []string{GroupNFS}, Level: Block,
			Title: "there is one NFS server where NFS is used", Rule: hasNFSServer, OfCluster: true,
			Why:    "volumes of NFS need a server, and only one is used",
			Fix:    "name one host in groups.nfs of the inventory, or take storage.nfs out of the cluster file",
			Source: "KubeKey v4 nfs_precheck",
		},
	}
}

func (s *Subject) members(role manifest.Role) int { return len(s.fleet.members[role]) }

// hasControlPlane cannot fail for kkbundle's own inventories, whose parser requires one.
func hasControlPlane(s *Subject) Finding {
	if n := s.members(manifest.RoleControlPlane); n > 0 {
		return pass(plain.Count(n, "host"))
	}
	return fail("no host is one")
}

func hasWorkers(s *Subject) Finding {
	if n := s.members(manifest.RoleWorker); n > 0 {
		return pass(plain.Count(n, "host"))
	}
	return fail("no host is a worker")
}

// hasEtcdHosts cannot fail for kkbundle's own inventories, in which the control plane is the default.
func hasEtcdHosts(s *Subject) Finding {
	switch n := s.members(manifest.RoleEtcd); {
	case s.Cluster.Etcd.Type != manifest.EtcdExternal:
		return skip()
	case n == 0:
		return fail("no host is one")
	default:
		return pass(plain.Count(n, "host"))
	}
}

func isOdd(s *Subject) Finding {
	n := s.members(manifest.RoleEtcd)
	switch {
	case s.Cluster.Etcd.Type == manifest.EtcdProvided:
		return skip()
	case s.Cluster.Etcd.Type == manifest.EtcdInternal:
		n = s.members(manifest.RoleControlPlane)
	}
	switch {
	case n == 0:
		return skip() // reported by etcd-group or control-plane
	case n%2 == 0:
		return fail(plain.Count(n, "host"))
	default:
		return pass(plain.Count(n, "host"))
	}
}

// oddLevel permits work on a cluster that has lost an etcd host and has no replacement yet.
func oddLevel(s *Subject) Level {
	if s.fleet.begun {
		return Warn
	}
	return Block
}

// isKnownEtcd cannot fail for kkbundle's own files, whose parser refuses other names.
func isKnownEtcd(s *Subject) Finding {
	switch name := s.Cluster.Etcd.Type; name {
	case manifest.EtcdInternal, manifest.EtcdExternal, manifest.EtcdProvided:
		return pass(string(name))
	default:
		return fail(string(name))
	}
}

func hasRegistryHosts(s *Subject) Finding {
	if kind := s.Cluster.ImageRegistry.Type; !kind.Installed() {
		return skip()
	}
	n := s.members(manifest.RoleRegistry)
	if inv := s.Input.Inventory; inv != nil { // a run may continue without one of two, which is then not checked
		n = 0
		for _, h := range inv.Hosts() {
			if h.Is(manifest.RoleRegistry) {
				n++
			}
		}
	}
	const pair = 2
	switch vip := s.Cluster.ImageRegistry.VIP; {
	case n == 0:
		return fail("no host is one")
	case vip != "" && n < pair:
		return failf("%s, and imageRegistry.vip, which is for two or more", plain.Count(n, "host"))
	case vip == "" && n > 1:
		return failf("%s without imageRegistry.vip", plain.Count(n, "host"))
	default:
		return pass(plain.Count(n, "host"))
	}
}

func hasNFSServer(s *Subject) Finding {
	n := s.members(manifest.RoleNFS)
	switch {
	case !s.Cluster.Storage.NFS && n == 0:
		return skip()
	case n == 1:
		return pass("1 host")
	default:
		return fail(plain.Count(n, "host"))
	}
}
