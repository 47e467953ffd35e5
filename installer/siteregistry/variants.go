package siteregistry

import (
	"time"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry"
)

// A Registry is a kind of registry that hosts pull from.
type Registry struct {
	// unit is its service on the registry's host, start how long that may take to answer.
	unit  string
	start time.Duration
	// data is where it keeps images.
	Data string
	// port is where it listens; standard reports that this is the port of HTTPS, which no name needs.
	port     int
	standard bool
	// files are its secrets in the work directory.
	files []string
	// hides reports that it answers "unauthorized" and "forbidden" for a repository that does not exist.
	hides bool
	// projects are set if repositories are in projects that push creates.
	projects *registry.HarborOptions

	// tasks returns the tasks that install and fill it.
	Tasks func(c *manifest.Cluster) []task.Task
	// secrets adds the secrets that it is set up with.
	secrets func(r *task.Site, s *registrySecrets) error
	// puller and pusher are the logins of hosts and of push.
	puller, pusher func(s registrySecrets) task.Login
}

// RegistryOf returns the registry of a cluster.
func RegistryOf(c *manifest.Cluster) Registry {
	switch c.ImageRegistry.Type {
	case manifest.RegistryHarbor:
		return harborRegistry()
	case manifest.RegistryExisting:
		return existingRegistry()
	case manifest.RegistryNone:
		return Registry{Data: RegistryData}
	default:
		return plainRegistry(c)
	}
}
