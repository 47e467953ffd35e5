package installer

import (
	"context"
	"slices"
	"strings"
)

// criSocket is containerd's.
const criSocket = "unix:///run/containerd/containerd.sock"

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
