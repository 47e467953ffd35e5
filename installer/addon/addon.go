package addon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// ChartWait limits the wait for a chart's pods to become ready.
const ChartWait = 5 * time.Minute

// TaskName returns the name of the task that installs an addon.
func TaskName(a manifest.Addon) string { return "addon-" + a.Release }

// Task installs an addon of the cluster file from its chart or manifests.
func Task(a manifest.Addon) task.Task {
	if a.Chart == "" {
		return manifestsTask(TaskName(a), func(_ context.Context,
			t *task.Host,
		) (applied, error) {
			return ManifestsOf(t.Site, a)
		})
	}
	return chartTask(TaskName(a), nil, nil, func(_ context.Context,
		t *task.Host,
	) (charts.InstallOptions, bundle.Item, error) {
		return ChartOptions(t.Site, a)
	})
}

// Check reports items that an addon needs and that the bundle or the cluster's files lack.
func Check(s *task.Site, a manifest.Addon) error {
	if a.Chart == "" {
		_, err := ManifestsOf(s, a)
		return err
	}
	_, _, err := ChartOptions(s, a)
	return err
}

// ChartOptions finds an addon's chart in the bundle and reads its values.
func ChartOptions(s *task.Site, a manifest.Addon) (charts.InstallOptions, bundle.Item, error) {
	i := slices.IndexFunc(s.Items,
		func(it bundle.Item) bool { return it.Kind == bundle.KindChart && it.Name == a.Chart })
	if i < 0 {
		return charts.InstallOptions{}, bundle.Item{},
			fmt.Errorf("addon %s: the bundle has no chart %s; its charts: %s", a.Release, a.Chart, chartNames(s))
	}
	values, err := readValues(s, a.Values)
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("addon %s: %w", a.Release, err)
	}
	o := charts.InstallOptions{
		Release: a.Release, Namespace: a.Namespace, Values: values,
		Rollback: a.OnFailure == manifest.FailureRollback,
	}
	if a.Wait == manifest.WaitReady {
		o.Wait = time.Duration(a.Timeout)
	}
	return o, s.Items[i], nil
}

func chartNames(s *task.Site) string {
	var names []string
	for _, it := range s.Items {
		if it.Kind == bundle.KindChart {
			names = append(names, it.Name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// chartTask installs a chart from the bundle, through the first control plane. before and after are optional.
func chartTask(name string, before, after func(ctx context.Context, t *task.Host) error,
	want func(ctx context.Context, t *task.Host) (charts.InstallOptions, bundle.Item, error),
) task.Task {
	prepare := func(ctx context.Context, t *task.Host) (*charts.Chart, charts.InstallOptions, error) {
		o, item, err := want(ctx, t)
		if err != nil {
			return nil, o, err
		}
		chart, err := Chart(ctx, t.Site, item)
		if err != nil {
			return nil, o, err
		}
		o.Kubeconfig, err = t.Site.Dir.Read(task.AdminConfFile)
		o.Dial, o.Logger = t.Dial, t.Site.Logger
		return chart, o, err
	}
	return task.Task{
		Name:  name,
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			chart, o, err := prepare(ctx, t)
			if errors.Is(err, fs.ErrNotExist) && t.Site.DryRun {
				task.Because(ctx, "there is no cluster yet")
				return false, nil
			}
			if err != nil {
				return false, err
			}
			ok, err := charts.Installed(ctx, chart, o)
			if !ok {
				task.Because(ctx, "release %s is missing, has another chart or other values, or lacks pods on nodes",
					o.Release)
			}
			return ok, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			chart, o, err := prepare(ctx, t)
			if err != nil {
				return err
			}
			if before != nil {
				if err := before(ctx, t); err != nil {
					return err
				}
			}
			if err := diagnose.ExplainPods(ctx, t, o.Namespace, installChart(ctx, t, chart, o)); err != nil ||
				after == nil {
				return err
			}
			return after(ctx, t)
		},
	}
}

// installChart applies a chart's custom resource definitions, then installs it. Helm itself never updates them.
func installChart(ctx context.Context, t *task.Host, chart *charts.Chart, o charts.InstallOptions) error {
	if crds := chart.CRDs(); len(crds) > 0 {
		if err := t.Kube().Apply(ctx, crds, kube.Apply{Manager: task.FieldManager, Force: true}); err != nil {
			return fmt.Errorf("custom resource definitions of %s: %w", chart.Name(), err)
		}
	}
	_, err := charts.Install(ctx, chart, o)
	var failed *charts.FailedError
	if errors.As(err, &failed) { // pods' messages may contain secrets
		for i := range failed.Pods {
			failed.Pods[i] = t.Site.Mask.Mask(failed.Pods[i])
		}
	}
	return err
}

// Chart loads a chart from the bundle.
func Chart(ctx context.Context, s *task.Site, item bundle.Item) (_ *charts.Chart, err error) {
	archive, err := s.Bundle.ContentOf(ctx, item)
	if err != nil {
		return nil, err
	}
	s.NoteOpened(ctx, "kkbundle", item.Kind+" "+item.Ref)
	blob, err := s.Bundle.Blob(ctx, archive.Digest, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", item, err)
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	chart, err := charts.Load(blob)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", item, err)
	}
	return chart, nil
}
