package upgrade

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
)

// services returns a function that runs servicesTask when it is first called: before the first drain of a batch.
func (w *nodeWalk) services(ctx context.Context, phase string) func() error {
	return sync.OnceValue(func() error { return w.TaskOn(ctx, phase, w.servicesTask(phase), w.FirstControlPlane()) })
}

// servicesTask waits until the Services of all nodes follow the API, so that none of them sends a client to the pods
// that the drain is about to remove. A cluster with one API server has just been without it.
func (w *nodeWalk) servicesTask(phase string) task.Task {
	return task.Task{Name: "services", Done: task.Never, Do: func(ctx context.Context, t *task.Host) error {
		err := health.ServicesFollow(ctx, t, w.servicesWait, w.nodesInService)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !w.Force && !w.lenient && w.Cluster.CNI.Type.Installed() {
			return fmt.Errorf("nothing is drained while the Services of a ready node do not follow the API server "+
				"(look at the controller manager, and at kube-proxy or its replacement on that node; --force drains anyway): %w", err)
		}
		err = fmt.Errorf("the Services of a ready node do not follow the API server, and a drain can send clients to pods that are gone: %w", err)
		w.servicesWait = min(w.servicesWait, shortAPIWait) // the later drains need not wait as long for the same fault
		w.Tell(task.Event{
			Phase: phase, Task: "services", Host: t.Name, State: task.Warned,
			Message: w.Mask.Mask(err.Error()),
		})
		return nil
	}}
}

// nodesInService returns the hosts that are ready nodes, without those in the middle of an upgrade, whose fault it
// may mend. A single node is not drained, and so not returned.
func (w *nodeWalk) nodesInService(ctx context.Context) ([]*task.Host, error) {
	states, err := w.FirstControlPlane().Kube().Nodes(ctx)
	if err != nil || len(states) == 1 {
		return nil, err
	}
	return slices.DeleteFunc(w.nodes(), func(t *task.Host) bool {
		n := kube.FindNode(states, t.Name)
		return n == nil || t.Conn == nil || !kube.IsNodeReady(n) || marks.InUpgrade(n)
	}), nil
}
