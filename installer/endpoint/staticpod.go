package endpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
)

// staticPodWait is how long a kubelet may take to end a static pod and to start the next: it looks every 20 seconds, and
// pods have 30 to end.
const staticPodWait = 3 * time.Minute

// staticPodRuns waits until the host's kubelet runs this static pod and not an earlier one.
func staticPodRuns(ctx context.Context, t *task.Host, name string, file task.File) error {
	digest, err := kube.StaticPodDigest(file.Data)
	if err != nil {
		return fmt.Errorf("static pod %s: %w", name, err)
	}
	lead := t.Site.FirstControlPlane()
	return task.Eventually(ctx, staticPodWait, func(ctx context.Context) error { return lead.Kube().StaticPodRuns(ctx, name, t.Name, digest) })
}
