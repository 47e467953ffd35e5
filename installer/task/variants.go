package task

import (
	"context"

	"github.com/kkbundle/kkbundle/manifest"
)

// Commands that a distribution may replace; see Distribution.Refuses.
const (
	EtcdCommand        = "kkbundle etcd"
	CertsRenewCommand  = "kkbundle certs renew"
	CertsBackupCommand = "kkbundle certs backup"
)

// A Distribution implements the steps that differ between Kubernetes distributions.
type Distribution struct {
	Authority string   // file of the certificate authority that a node trusts
	Kubectl   []string // begins kubectl's command line as the cluster's administrator
	OwnImages bool     // images come from the distribution's own archive: the bundle has no digests of them
	Parents   []string // directories that Reset removes if they are empty

	// Nodes returns the tasks that turn hosts into nodes.
	Nodes func(c *manifest.Cluster) []Task
	// DNS returns the tasks for cluster DNS, after those of the pod network.
	DNS func(c *manifest.Cluster) []Task
	// Hardening returns the tasks that secure a cluster before its addons are installed, and after.
	Hardening func(c *manifest.Cluster) (before, after []Task)
	// Services returns the cluster without the services that the distribution includes.
	Services func(c *manifest.Cluster) *manifest.Cluster
	// Verifies returns the checks that apply.
	Verifies func(tasks []Task) []Task
	// Refuses returns an error for a command that the distribution replaces, and nil for others.
	Refuses func(command string) error
	// AdminKubeconfig returns the administrator's kubeconfig of a control plane.
	AdminKubeconfig func(ctx context.Context, t *Host) ([]byte, error)
	// QuorumWithout refuses to remove hosts whose members etcd needs for its quorum.
	QuorumWithout func(ctx context.Context, r *Site, going []*Host) error
	// KeepDown prevents a control plane from starting again while its node is deleted.
	KeepDown func(ctx context.Context, t *Host) error
}

// A Login is a user of a registry. It is empty if the registry needs no login.
type Login struct{ Username, Password string }
