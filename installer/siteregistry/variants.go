package siteregistry

import (
	"time"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry"
)

// A Registry is a kind of registry for the hosts' pulls.
type Registry struct {
	// Units are its services on its host, the one for pulls first.
	Units []string
	// start limits the wait for its first answer.
	start time.Duration
	// Data is the directory of its images.
	Data string
	// port is its TCP port; standard means 443, which addresses omit.
	port     int
	standard bool
	// pushPort accepts pushes at the loopback address; 0 means port.
	pushPort int
	// hosts is the file of the hosts' login.
	hosts passFile
	// files are its secrets in the work directory.
	files []string
	// hides means that missing repositories are answered with "unauthorized" or "forbidden".
	hides bool
	// projects is set if repositories need projects, which push creates.
	projects *registry.HarborOptions

	// Tasks returns the tasks that install and seed it.
	Tasks func(c *manifest.Cluster) []task.Task
	// secrets adds its secrets, except for the hosts' login.
	secrets func(site *task.Site, s *credentials) error
}

// Of returns the registry of a cluster.
func Of(c *manifest.Cluster) Registry {
	switch c.ImageRegistry.Type {
	case manifest.RegistryHarbor:
		return harborRegistry()
	case manifest.RegistryExisting:
		return existingRegistry()
	case manifest.RegistryNone:
		return Registry{Data: DataDir}
	default:
		return distribution(c)
	}
}
