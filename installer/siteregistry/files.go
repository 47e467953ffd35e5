package siteregistry

import (
	"slices"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/registry"
)

// Files is where hosts find the bundle's files if the cluster file says that they take them from the registry: as
// artifacts under the names that push gives them, and read with the login of pulls.
func Files() task.FileSource {
	return task.FileSource{
		Repository: func(it bundle.Item) (string, error) {
			ref, err := registry.Destination("registry.invalid", it) // the registry is not part of the answer
			if err != nil {
				return "", err
			}
			return ref.Context().RepositoryStr(), nil
		},
		Access: func(t *task.Host) ([]task.RegistryAccess, error) {
			access, err := t.Site.Access()
			if err != nil || !t.Site.HasRegistryVIP() {
				return []task.RegistryAccess{access}, err
			}
			var list []task.RegistryAccess
			for _, one := range access.Replicas(t.Name, t.Site.RegistryHosts()) {
				access.Address = one
				list = append(list, access)
			}
			return list, nil
		},
	}
}

// HasFile reports whether the registry has a file: hosts take files from it, and one of them needs it.
func HasFile(s *task.Site, file bundle.Item) bool {
	if s.Cluster.ImageDistribution.Programs != manifest.ProgramsRegistry {
		return false
	}
	platform := bundle.PlatformString(file.Descriptor.Platform)
	fits := func(t *task.Host) bool { return t.Arch == "" || platform == "linux/"+t.Arch }
	if platform != "" && !slices.ContainsFunc(s.Hosts, fits) {
		return false
	}
	return slices.ContainsFunc(s.Demands, func(d manifest.Demand) bool {
		if d.Kind != manifest.ItemFile || len(d.Roles) == 0 {
			return false
		}
		refs, err := catalog.Refs(s.Cluster, d.Need, platform)
		return err == nil && slices.Contains(refs, file.Ref)
	})
}
