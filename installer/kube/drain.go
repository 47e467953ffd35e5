package kube

import (
	"context"
	"time"
)

// Cordon makes a node unschedulable.
func (c Client) Cordon(ctx context.Context, node string) error { return c.run(ctx, "cordon", node) }

// Uncordon makes a node schedulable.
func (c Client) Uncordon(ctx context.Context, node string) error { return c.run(ctx, "uncordon", node) }

// A Drain says how pods leave a node.
type Drain struct {
	// Timeout is how long they may take.
	Timeout time.Duration
	// Force also deletes pods without a controller, which nothing makes again.
	Force bool
	// DisableEviction deletes pods although a PodDisruptionBudget is against it.
	DisableEviction bool
	// HostGone deletes the pods of a host that does not come back, and waits for nothing: Kubernetes would wait five minutes
	// for the host, and with StatefulSets for ever. The other fields do not count, and the node has to be cordoned before.
	HostGone bool
}

// Drain cordons a node and moves its pods to others, but for those of DaemonSets.
func (c Client) Drain(ctx context.Context, node string, how Drain) error {
	if how.HostGone {
		return c.run(ctx, "delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName="+node, "--force", "--grace-period=0", "--wait=false")
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
