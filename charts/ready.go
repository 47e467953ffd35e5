package charts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/kube"
	"k8s.io/cli-runtime/pkg/resource"
)

// WaitReady waits until the objects in YAML are ready and its jobs are complete, as Helm defines it, at most for
// o.Wait. The error has the pods that are not ready, like FailedError. It uses Cluster, Namespace and Logger of the
// options.
func WaitReady(ctx context.Context, o InstallOptions, objects string) error {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o, end := ofOneCall(o)
	defer end()
	cfg, err := configuration(ctx, o)
	if err != nil {
		return err
	}
	client, err := cfg.KubernetesClientSet()
	if err != nil {
		return err
	}
	list, err := cfg.KubeClient.Build(strings.NewReader(objects), false)
	if err != nil {
		return err
	}
	checker := kube.NewReadyChecker(client, cfg.Log, kube.PausedAsReady(true), kube.CheckJobs(true))
	ctx, cancel := context.WithTimeoutCause(ctx, o.Wait, fmt.Errorf("not ready after %s", o.Wait))
	defer cancel()
	for {
		waiting, err := firstUnready(ctx, checker, list)
		if err == nil && waiting == "" {
			return nil
		}
		if err == nil {
			err = errors.New(waiting)
		}
		select {
		case <-ctx.Done():
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
			for _, pod := range notReady(context.WithoutCancel(ctx), client, workloads(objects, o.Namespace)) {
				err = fmt.Errorf("%w\n%s", err, pod)
			}
			return err
		case <-time.After(2 * time.Second): // as Helm
		}
	}
}

// firstUnready names the first object that is not ready, "" if all are.
func firstUnready(ctx context.Context, checker kube.ReadyChecker, list kube.ResourceList) (string, error) {
	for _, r := range list {
		ready, err := checker.IsReady(ctx, r)
		if err != nil {
			return "", fmt.Errorf("%s: %w", shownResource(r), err)
		}
		if !ready {
			return shownResource(r) + " is not ready", nil
		}
	}
	return "", nil
}

func shownResource(r *resource.Info) string {
	return r.Mapping.GroupVersionKind.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
}
