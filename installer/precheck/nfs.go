package precheck

import "github.com/kkbundle/kkbundle/manifest"

// nfsMount is the program that mounts NFS volumes.
const nfsMount = "mount.nfs"

// nfsChecks check storage on an NFS server.
func nfsChecks() []Check {
	return []Check{
		{
			ID: "nfs-client", Groups: []string{GroupNFS}, Level: Block,
			Title: "the host can mount NFS where volumes are there", Rule: mountsNFS, Roles: cluster(),
			Why:    "pods with such a volume stay in ContainerCreating",
			Fix:    "install nfs-common (Debian, Ubuntu) or nfs-utils",
			Source: "KubeKey v3 (showmount); Kubernetes: volumes of NFS",
		},
		{
			ID: "nfs-exports", Groups: []string{GroupNFS}, Level: Warn, Title: "the NFS server exports nothing yet",
			Rule: exportsNothing, Roles: []manifest.Role{manifest.RoleNFS},
			Why:    "its exports to others would be changed or come to share its disk with the cluster's volumes",
			Fix:    "use another host, or make sure that the exports may change",
			Source: "KubeKey v4 writes /etc/exports anew",
		},
	}
}

func mountsNFS(s *Subject) Finding {
	if !s.Cluster.Storage.NFS {
		return skip()
	}
	return s.hasAll([]string{nfsMount})
}

func exportsNothing(s *Subject) Finding {
	if s.Ours() {
		return pass("kkbundle has installed here before")
	}
	if len(s.Facts.Exports) > 0 {
		return fail(some(s.Facts.Exports))
	}
	return pass("nothing")
}
