package task

import (
	"context"

	"github.com/kkbundle/kkbundle/manifest"
)

// Commands that a distribution may have something of its own for.
const (
	EtcdCommand        = "kkbundle etcd"
	CertsRenewCommand  = "kkbundle certs renew"
	CertsBackupCommand = "kkbundle certs backup"
)

// A Distribution is a way of making nodes out of hosts.
type Distribution struct {
	// authority is the file with the certificate authority that a node trusts.
	Authority string
	// kubectl is the beginning of kubectl's command line as the cluster's administrator.
	Kubectl []string
	// OwnImages reports that its images come from an archive of its own, so that the bundle does not have their digests.
	OwnImages bool
	// parents are directories that reset removes if nothing else is in them.
	Parents []string

	// nodes returns the tasks that make nodes.
	Nodes func(c *manifest.Cluster) []Task
	// dns returns the tasks for cluster DNS, after those of the pod network.
	DNS func(c *manifest.Cluster) []Task
	// hardening returns the tasks before the addons, and the task after them, of a hardened cluster.
	Hardening func(c *manifest.Cluster) (before, after []Task)
	// services returns the cluster without the services that are a part of the distribution.
	Services func(c *manifest.Cluster) *manifest.Cluster
	// verifies returns the checks that make sense.
	Verifies func(tasks []Task) []Task
	// refuses returns an error for a command that the distribution has something of its own for, nil for every other.
	Refuses func(command string) error
	// AdminKubeconfig returns the administrator's kubeconfig of a control plane.
	AdminKubeconfig func(ctx context.Context, t *Host) ([]byte, error)
	// quorumWithout refuses to remove hosts whose members etcd needs.
	QuorumWithout func(ctx context.Context, r *Site, going []*Host) error
	// KeepDown keeps a control plane from starting again while its node is deleted.
	KeepDown func(ctx context.Context, t *Host) error
}

// A Login is a user of a registry. It has no name if the registry wants no login.
type Login struct{ Username, Password string }
