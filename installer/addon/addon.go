package installer

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
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// chartWait is how long a chart's pods may take to be ready.
const chartWait = 5 * time.Minute

// flannelValues names images as the bundle has them, and the addresses that flannel finds its interface by: it would
// look at the default route, which hosts may lack, or which may be another interface's.
func flannelValues(c *manifest.Cluster, nodes []*Target) (map[string]any, error) {
	args := []any{"--ip-masq", "--kube-subnet-mgr"}
	for _, t := range nodes {
		args = append(args, "--iface="+t.IP.String())
	}
	image, err := imageValue(c, "flannel")
	if err != nil {
		return nil, err
	}
	plugin, err := imageValue(c, "flannel-cni-plugin")
	if err != nil {
		return nil, err
	}
	values := map[string]any{
		"podCidr": "", // the chart has another default, and takes none for a cluster without IPv4
		"flannel": map[string]any{"args": args, "image": image, "image_cni": plugin},
	}
	for _, p := range c.Kubernetes.PodCIDR {
		if p.Addr().Is4() {
			values["podCidr"] = p.String()
		} else {
			values["podCidrv6"] = p.String()
		}
	}
	return values, nil
}

func imageValue(c *manifest.Cluster, name string) (map[string]any, error) {
	ref, err := catalog.ImageRef(c, name)
	if err != nil {
		return nil, err
	}
	i := strings.LastIndexByte(ref, ':')
	return map[string]any{"repository": ref[:i], "tag": ref[i+1:]}, nil
}

// AddonTask returns the name of the task that installs an addon.
func AddonTask(a manifest.Addon) string { return "addon-" + a.Release }

// addonTask installs a chart or manifests that the cluster names.
func addonTask(a manifest.Addon) Task {
	if a.Chart == "" {
		return manifestsTask(AddonTask(a), func(_ context.Context, t *Target) (applied, error) { return t.run.manifestsOf(a) })
	}
	return chartTask(AddonTask(a), nil, nil, func(_ context.Context, t *Target) (charts.InstallOptions, bundle.Item, error) {
		return t.run.addon(a)
	})
}

// checkAddon finds what an addon needs and the bundle or the cluster's files lack.
func (r *Site) checkAddon(a manifest.Addon) error {
	if a.Chart == "" {
		_, err := r.manifestsOf(a)
		return err
	}
	_, _, err := r.addon(a)
	return err
}

// addon finds an addon's chart in the bundle and reads its values.
func (r *Site) addon(a manifest.Addon) (charts.InstallOptions, bundle.Item, error) {
	i := slices.IndexFunc(r.items, func(it bundle.Item) bool { return it.Kind == bundle.KindChart && it.Name == a.Chart })
	if i < 0 {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("addon %s: the bundle has no chart %s; it has %s", a.Release, a.Chart, r.chartNames())
	}
	values, err := r.readValues(a.Values)
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("addon %s: %w", a.Release, err)
	}
	o := charts.InstallOptions{Release: a.Release, Namespace: a.Namespace, Values: values, Rollback: a.OnFailure == manifest.FailureRollback}
	if a.Wait == manifest.WaitReady {
		o.Wait = time.Duration(a.Timeout)
	}
	return o, r.items[i], nil
}

func (r *Site) chartNames() string {
	var names []string
	for _, it := range r.items {
		if it.Kind == bundle.KindChart {
			names = append(names, it.Name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// chartTask installs a chart from the bundle, over a connection that the first control plane makes. before and after, if set,
// run around that.
func chartTask(name string, before, after func(ctx context.Context, t *Target) error, want func(ctx context.Context, t *Target) (charts.InstallOptions, bundle.Item, error)) Task {
	prepare := func(ctx context.Context, t *Target) (*charts.Chart, charts.InstallOptions, error) {
		o, item, err := want(ctx, t)
		if err != nil {
			return nil, o, err
		}
		chart, err := t.run.chart(ctx, item)
		if err != nil {
			return nil, o, err
		}
		o.Kubeconfig, err = t.run.dir.read(adminConfFile)
		o.Dial, o.Logger = t.dial, t.run.Logger
		return chart, o, err
	}
	return Task{
		Name:  name,
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			chart, o, err := prepare(ctx, t)
			if errors.Is(err, fs.ErrNotExist) && t.run.DryRun {
				because(ctx, "there is no cluster yet")
				return false, nil
			}
			if err != nil {
				return false, err
			}
			ok, err := charts.Installed(ctx, chart, o)
			if !ok {
				because(ctx, "release %s is not there, was made from another chart or other values, or lacks pods on nodes", o.Release)
			}
			return ok, err
		},
		Do: func(ctx context.Context, t *Target) error {
			chart, o, err := prepare(ctx, t)
			if err != nil {
				return err
			}
			if before != nil {
				if err := before(ctx, t); err != nil {
					return err
				}
			}
			if err := t.explainPods(ctx, o.Namespace, t.installChart(ctx, chart, o)); err != nil || after == nil {
				return err
			}
			return after(ctx, t)
		},
	}
}

// installChart installs a chart whose own kinds of objects are there in its version: Helm would leave those of an earlier
// version as they are.
func (t *Target) installChart(ctx context.Context, chart *charts.Chart, o charts.InstallOptions) error {
	if crds := chart.CRDs(); len(crds) > 0 {
		if err := t.kube().Apply(ctx, crds, kube.Apply{Manager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("custom resource definitions of %s: %w", chart.Name(), err)
		}
	}
	_, err := charts.Install(ctx, chart, o)
	var failed *charts.FailedError
	if errors.As(err, &failed) { // pods may say anything
		for i := range failed.Pods {
			failed.Pods[i] = t.run.mask.mask(failed.Pods[i])
		}
	}
	return err
}

// chart loads a chart of the bundle.
func (r *Site) chart(ctx context.Context, item bundle.Item) (_ *charts.Chart, err error) {
	archive, err := r.Bundle.ContentOf(ctx, item)
	if err != nil {
		return nil, err
	}
	r.opened(ctx, "kkbundle", item.Kind+" "+item.Ref)
	blob, err := r.Bundle.Blob(ctx, archive.Digest, 0)
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
