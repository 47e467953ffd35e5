package cri

import (
	"context"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// A Runtime is the container runtime of a cluster's nodes.
type Runtime struct {
	// name is its name in cri.type, or k3s.
	name string
	// Socket is the address of its CRI service.
	Socket string
	// Units are its services in the order of their start.
	Units []string
	// Config is its configuration file.
	Config string
	// Data is the directory of its images.
	Data string
	// images loads images into it; nil if unsupported.
	images imageStore
	// Parents are directories that reset removes if they are empty.
	Parents []string
	// Tasks returns the tasks that install it; nil if the distribution includes it.
	Tasks func(c *manifest.Cluster) []task.Task
}

// RuntimeOf returns the runtime of a cluster's nodes. k3s includes its own.
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

// ContainerdSocket is the address of containerd's CRI service.
const ContainerdSocket = "unix:///run/containerd/containerd.sock"

// After returns the value of After= in the kubelet's unit.
func (p Runtime) After() string { return strings.Join(p.Units, " ") }

// Undo returns a function that stops the runtime with its containers, which survive the end of its unit, and unmounts
// file systems below the given paths.
func (p Runtime) Undo(mounts ...string) func(ctx context.Context, t *task.Host) error {
	return func(ctx context.Context, t *task.Host) error {
		stop := [][]string{{"systemctl", "stop", "kubepods.slice"}} // the remaining pods
		for _, unit := range slices.Backward(p.Units) {
			// With the shims, which are in its control group.
			stop = append(stop, []string{"systemctl", "kill", "--signal=KILL", unit},
				[]string{"systemctl", "stop", unit})
		}
		for _, args := range stop {
			if _, err := t.Test(ctx, args...); err != nil {
				return err
			}
		}
		return t.Unmount(ctx, mounts...)
	}
}

// The k3s program and its data directory.
const (
	K3sProgram = "k3s"
	K3sData    = "/var/lib/rancher/k3s"
)

// k3sRuntime returns the containerd of k3s. https://docs.k3s.io/advanced
func k3sRuntime() Runtime {
	return Runtime{
		name: "k3s", Socket: "unix:///run/k3s/containerd/containerd.sock", Data: K3sData,
		images: ContainerdImages{Ctr: []string{K3sProgram, "ctr"}},
	}
}
