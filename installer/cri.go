package installer

import (
	"context"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
)

// criSocket is containerd's.
const criSocket = "unix:///run/containerd/containerd.sock"

// A podRuntime is the container runtime that a cluster's nodes run pods with.
type podRuntime struct {
	// name is what it is called in cri.type, or k3s.
	name string
	// socket is where it speaks CRI.
	socket string
	// units are its services, in the order in which they start.
	units []string
	// config is what it reads at its start.
	config string
	// data is where it keeps images.
	data string
	// images gives images to it, nil if that is not possible.
	images imageStore
}

// runtimeOf returns the runtime of a cluster.
func runtimeOf(c *manifest.Cluster) podRuntime {
	c = c.WithDefaults()
	switch {
	case isK3s(c):
		// https://docs.k3s.io/advanced: k3s brings a containerd of its own.
		return podRuntime{
			name: "k3s", socket: "unix:///run/k3s/containerd/containerd.sock", data: k3sData,
			images: containerdImages{ctr: []string{k3sProgram, "ctr"}},
		}
	case c.CRI.Type == manifest.RuntimeDocker:
		return podRuntime{
			name: "docker", socket: "unix:///run/cri-dockerd.sock", units: []string{dockerUnit, criDockerUnit},
			config: dockerConfig, data: dockerData, images: dockerImages{},
		}
	case c.CRI.Type == manifest.RuntimeCRIO:
		return podRuntime{
			name: "crio", socket: "unix:///var/run/crio/crio.sock", units: []string{crioUnit}, config: crioConfigFile, data: "/var/lib/containers",
		}
	}
	return containerdRuntime()
}

func containerdRuntime() podRuntime {
	return podRuntime{
		name: "containerd", socket: criSocket, units: []string{containerdUnit},
		config: containerdConfigFile, data: "/var/lib/containerd", images: containerdImages{ctr: []string{"ctr"}},
	}
}

// after are the units that the kubelet starts after.
func (p podRuntime) after() string { return strings.Join(p.units, " ") }

// undo returns what stops a runtime with everything that it runs: stopping its unit leaves containers alone. Mounts below
// the given paths go with them.
func (p podRuntime) undo(mounts ...string) func(ctx context.Context, t *Target) error {
	return func(ctx context.Context, t *Target) error {
		stop := [][]string{{"systemctl", "stop", "kubepods.slice"}} // what is left of the pods
		for _, unit := range slices.Backward(p.units) {
			// With the shims, which are in its control group.
			stop = append(stop, []string{"systemctl", "kill", "--signal=KILL", unit}, []string{"systemctl", "stop", unit})
		}
		for _, args := range stop {
			if _, err := t.test(ctx, args...); err != nil {
				return err
			}
		}
		return t.unmount(ctx, mounts...)
	}
}
