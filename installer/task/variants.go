package installer

import (
	"context"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/registry"
)

// Commands that a distribution may have something of its own for.
const (
	etcdCommand        = "kkbundle etcd"
	certsRenewCommand  = "kkbundle certs renew"
	certsBackupCommand = "kkbundle certs backup"
)

// A clusterDistribution is a way of making nodes out of hosts.
type clusterDistribution struct {
	// authority is the file with the certificate authority that a node trusts.
	authority string
	// kubectl is the beginning of kubectl's command line as the cluster's administrator.
	kubectl []string
	// ownImages reports that its images come from an archive of its own, so that the bundle does not have their digests.
	ownImages bool
	// parents are directories that reset removes if nothing else is in them.
	parents []string

	// nodes returns the tasks that make nodes.
	nodes func(c *manifest.Cluster) []Task
	// dns returns the tasks for cluster DNS, after those of the pod network.
	dns func(c *manifest.Cluster) []Task
	// hardening returns the tasks before the addons, and the task after them, of a hardened cluster.
	hardening func(c *manifest.Cluster) (before, after []Task)
	// services returns the cluster without the services that are a part of the distribution.
	services func(c *manifest.Cluster) *manifest.Cluster
	// verifies returns the checks that make sense.
	verifies func(tasks []Task) []Task
	// refuses returns an error for a command that the distribution has something of its own for, nil for every other.
	refuses func(command string) error
	// adminKubeconfig returns the administrator's kubeconfig of a control plane.
	adminKubeconfig func(ctx context.Context, t *Target) ([]byte, error)
	// quorumWithout refuses to remove hosts whose members etcd needs.
	quorumWithout func(ctx context.Context, r *Site, going []*Target) error
	// keepDown keeps a control plane from starting again while its node is deleted.
	keepDown func(ctx context.Context, t *Target) error
}

// A podRuntime is the container runtime that a cluster's nodes run pods with.
type podRuntime struct {
	// name is its name in cri.type, or k3s.
	name string
	// socket is the address of its CRI service.
	socket string
	// units are its services, in the order in which they start.
	units []string
	// config is the file that it reads at its start.
	config string
	// data is where it keeps images.
	data string
	// images loads images into it, nil if that is not possible.
	images imageStore
	// parents are directories that reset removes if nothing else is in them.
	parents []string
	// tasks returns the tasks that install it, nil for a part of something else.
	tasks func(c *manifest.Cluster) []Task
}

// A siteRegistry is a kind of registry that hosts pull from.
type siteRegistry struct {
	// unit is its service on the registry's host, start how long that may take to answer.
	unit  string
	start time.Duration
	// data is where it keeps images.
	data string
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
	tasks func(c *manifest.Cluster) []Task
	// secrets adds the secrets that it is set up with.
	secrets func(r *Site, s *registrySecrets) error
	// puller and pusher are the logins of hosts and of push.
	puller, pusher func(s registrySecrets) registryLogin
}

// A registryLogin is a user of a registry. It has no name if the registry wants no login.
type registryLogin struct{ username, password string }

// A podNetwork is a network that pods are in.
type podNetwork struct {
	// images are those that are not in the values of its chart alone.
	images []string
	// files are placed on control planes.
	files []Place
	// namespaces are those that its pods run in, beside the chart's.
	namespaces []string
	// patterns match the interfaces that it makes on hosts.
	patterns []string
	// leaves are what its pods make on hosts. Their packet filter chains go with those of Kubernetes.
	leaves Leaves
	// polices reports that it enforces NetworkPolicies.
	polices bool
}
