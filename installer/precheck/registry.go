package precheck

import (
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// registryChecks check the image registry.
func registryChecks() []Check {
	return []Check{
		{
			ID: "registry-reachable", Groups: []string{GroupRegistry, GroupNetwork}, Level: Block,
			Title: "the host reaches your registry", Rule: reachesRegistry, Roles: cluster(),
			Why:    "it could pull no image",
			Fix:    "start the registry, open its port, or correct imageRegistry.address in the cluster file",
			Source: "KubeKey v4 image_registry_precheck",
		},
		{
			ID: "harbor-architecture", Groups: []string{GroupRegistry}, Level: Block,
			Title: "Harbor runs on the host's architecture", Rule: runsHarbor,
			Roles:  []manifest.Role{manifest.RoleRegistry},
			Why:    "Harbor publishes its offline installer for amd64 only",
			Fix:    "use an amd64 host, or imageRegistry.type registry",
			Source: "goharbor/harbor releases",
		},
	}
}

func reachesRegistry(s *Subject) Finding { return s.reaches(registryAddresses(s.Cluster)) }

// hostOf removes the path of a registry's address.
func hostOf(address string) string {
	host, _, _ := strings.Cut(address, "/")
	return host
}

func runsHarbor(s *Subject) Finding {
	switch {
	case s.Cluster.ImageRegistry.Type != manifest.RegistryHarbor || s.Facts.Arch == "":
		return skip()
	case s.Facts.Arch != "amd64":
		return fail(s.Facts.Arch)
	default:
		return pass(s.Facts.Arch)
	}
}
