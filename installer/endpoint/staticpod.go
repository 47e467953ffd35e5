package endpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
)

// staticPodWait limits the time to replace a static pod: the kubelet looks every 20 seconds, and pods have 30 to end.
const staticPodWait = 3 * time.Minute

// staticPodRuns waits until the host runs this static pod, not an earlier one.
func staticPodRuns(ctx context.Context, t *task.Host, name string, file task.File) error {
	digest, err := kube.StaticPodDigest(file.Data)
	if err != nil {
		return fmt.Errorf("static pod %s: %w", name, err)
	}
	lead := t.Site.FirstControlPlane()
	return task.Eventually(ctx, staticPodWait,
		func(ctx context.Context) error { return lead.Kube().StaticPodRuns(ctx, name, t.Name, digest) })
}
