package installer

import (
	"context"
	"fmt"
	"time"

	"github.com/kkbundle/kkbundle/installer/kube"
)

const (
	manifestsDir = "/etc/kubernetes/manifests"
	// staticPodWait is how long a kubelet may take to end a static pod and to start the next: it looks every 20 seconds, and
	// pods have 30 to end.
	staticPodWait = 3 * time.Minute
)

// staticPodRuns waits until the host's kubelet runs this static pod and not an earlier one.
func (t *Target) staticPodRuns(ctx context.Context, name string, file textFile) error {
	digest, err := kube.StaticPodDigest(file.data)
	if err != nil {
		return fmt.Errorf("static pod %s: %w", name, err)
	}
	lead := t.run.firstControlPlane()
	return eventually(ctx, staticPodWait, func(ctx context.Context) error { return lead.kube().StaticPodRuns(ctx, name, t.Name, digest) })
}
