package kube

import (
	"context"
	"time"
)

// Cordon makes a node unschedulable.
func (c Client) Cordon(ctx context.Context, node string) error { return c.run(ctx, "cordon", node) }

// Uncordon makes a node schedulable.
func (c Client) Uncordon(ctx context.Context, node string) error { return c.run(ctx, "uncordon", node) }

// DrainTimeout bounds the drain of a node, unless its user says otherwise.
const DrainTimeout = 5 * time.Minute

// A Drain holds the options of a drain.
type Drain struct {
	// Timeout limits the time for all pods to end.
	Timeout time.Duration
	// Force also deletes pods without a controller, which are lost.
	Force bool
	// DisableEviction deletes pods in spite of a PodDisruptionBudget.
	DisableEviction bool
	// HostGone deletes the pods of a lost host without waiting: Kubernetes would wait five minutes for the host, and
	// for ever for StatefulSets. The other fields are ignored. The node has to be cordoned before.
	HostGone bool
}

// Drain cordons a node and evicts its pods, except those of DaemonSets.
func (c Client) Drain(ctx context.Context, node string, how Drain) error {
	if how.HostGone {
		return c.run(ctx, "delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName="+node, "--force",
			"--grace-period=0", "--wait=false")
	}
	args := []string{"drain", node, "--ignore-daemonsets", "--delete-emptydir-data"}
	if how.Force {
		args = append(args, "--force")
	}
	args = append(args, "--timeout="+how.Timeout.String())
	if how.DisableEviction {
		args = append(args, "--disable-eviction")
	}
	_, err := c.Kubectl(ctx, Command{Args: args, Patience: how.Timeout})
	return err
}
