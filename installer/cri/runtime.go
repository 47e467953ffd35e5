package cri

import (
	"context"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Runtime is the container runtime that a cluster's nodes run pods with.
type Runtime struct {
	// name is its name in cri.type, or k3s.
	name string
	// socket is the address of its CRI service.
	Socket string
	// units are its services, in the order in which they start.
	Units []string
	// config is the file that it reads at its start.
	Config string
	// data is where it keeps images.
	Data string
	// images loads images into it, nil if that is not possible.
	images imageStore
	// parents are directories that reset removes if nothing else is in them.
	Parents []string
	// tasks returns the tasks that install it, nil for a part of something else.
	Tasks func(c *manifest.Cluster) []task.Task
}

// RuntimeOf returns the runtime of a cluster's nodes. k3s brings its own.
func RuntimeOf(c *manifest.Cluster) Runtime {
	if c.Kubernetes.Distribution == manifest.DistributionK3s {
		return k3sRuntime()
	}
	switch c.CRI.Type {
	case manifest.RuntimeDocker:
		return dockerRuntime()
	case manifest.RuntimeCRIO:
		return crioRuntime()
	default:
		return containerdRuntime()
	}
}

// Socket is containerd's.
const Socket = "unix:///run/containerd/containerd.sock"

// After are the units that the kubelet starts After.
func (p Runtime) After() string { return strings.Join(p.Units, " ") }

// Undo returns what stops a runtime with everything that it runs: stopping its unit leaves containers alone. Mounts below
// the given paths go with them.
func (p Runtime) Undo(mounts ...string) func(ctx context.Context, t *task.Host) error {
	return func(ctx context.Context, t *task.Host) error {
		stop := [][]string{{"systemctl", "stop", "kubepods.slice"}} // what is left of the pods
		for _, unit := range slices.Backward(p.Units) {
			// With the shims, which are in its control group.
			stop = append(stop, []string{"systemctl", "kill", "--signal=KILL", unit}, []string{"systemctl", "stop", unit})
		}
		for _, args := range stop {
			if _, err := t.Test(ctx, args...); err != nil {
				return err
			}
		}
		return t.Unmount(ctx, mounts...)
	}
}

const K3sProgram = "k3s"

const K3sData = "/var/lib/rancher/k3s"

// k3sRuntime is the containerd that k3s brings. https://docs.k3s.io/advanced
func k3sRuntime() Runtime {
	return Runtime{
		name: "k3s", Socket: "unix:///run/k3s/containerd/containerd.sock", Data: K3sData,
		images: ContainerdImages{Ctr: []string{K3sProgram, "ctr"}},
	}
}
