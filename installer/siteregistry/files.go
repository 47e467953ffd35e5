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

// Holds returns what reports whether the registry has an item of the bundle: images, charts and, if hosts take files
// from it, the files that one of them needs, also for releases between those that an upgrade begins and ends with.
func Holds(s *task.Site) func(bundle.Item) bool {
	files := neededFiles(s)
	return func(it bundle.Item) bool {
		return it.Kind == bundle.KindImage || it.Kind == bundle.KindChart || it.Kind == bundle.KindFile && files[it.Ref]
	}
}

// neededFiles returns the references of the files that hosts take from the registry. A file that the catalog does not
// know for a platform is told where it is needed.
func neededFiles(s *task.Site) map[string]bool {
	if s.Cluster.ImageDistribution.Programs != manifest.ProgramsRegistry {
		return nil
	}
	steps, _ := catalog.Steps(s.Cluster, s.Demands)
	files := map[string]bool{}
	for _, step := range append(steps, catalog.Step{Cluster: s.Cluster, Demands: s.Demands}) {
		for _, d := range step.Demands {
			if d.Kind != manifest.ItemFile || len(d.Roles) == 0 {
				continue
			}
			for _, arch := range arches(s) {
				refs, _ := catalog.Refs(step.Cluster, d.Need, "linux/"+arch)
				for _, ref := range refs {
					files[ref] = true
				}
			}
		}
	}
	return files
}

// arches returns the architectures of the hosts that the run has reached.
func arches(s *task.Site) (list []string) {
	for _, t := range s.Hosts {
		if t.Arch != "" && !slices.Contains(list, t.Arch) {
			list = append(list, t.Arch)
		}
	}
	return list
}
