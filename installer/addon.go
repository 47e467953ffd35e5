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
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// flannelChart is the chart of the pod network, in the catalog and as a release, and flannelNamespace where it goes.
const (
	flannelChart     = "flannel"
	flannelNamespace = "kube-flannel"
)

// chartWait is how long a chart's pods may take to be ready.
const chartWait = 5 * time.Minute

// flannelTask installs the pod network.
func flannelTask() Task {
	t := chartTask("flannel", func(ctx context.Context, t *Target) (charts.InstallOptions, bundle.Item, error) {
		item, err := t.run.component(manifest.Need{Kind: manifest.ItemChart, Name: flannelChart}, "")
		if err != nil {
			return charts.InstallOptions{}, bundle.Item{}, err
		}
		values, err := flannelValues(t.run.cluster, t.run.withRole(manifest.RoleCluster))
		return charts.InstallOptions{
			Release:   flannelChart,
			Namespace: flannelNamespace,
			// flannel's pods use the host's network and configure it.
			NamespaceLabels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
			Values:          values,
		}, item, err
	})
	t.Images, t.Charts = []string{"flannel", "flannel-cni-plugin"}, []string{flannelChart}
	return t
}

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
		"podCidr": c.Kubernetes.PodCIDR[0].String(),
		"flannel": map[string]any{"args": args, "image": image, "image_cni": plugin},
	}
	if len(c.Kubernetes.PodCIDR) > 1 {
		values["podCidrv6"] = c.Kubernetes.PodCIDR[1].String()
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

// addonTask installs a chart that the cluster names.
func addonTask(a manifest.Addon) Task {
	return chartTask(AddonTask(a), func(_ context.Context, t *Target) (charts.InstallOptions, bundle.Item, error) {
		return t.run.addon(a)
	})
}

// addon finds an addon's chart in the bundle and reads its values.
func (r *run) addon(a manifest.Addon) (charts.InstallOptions, bundle.Item, error) {
	i := slices.IndexFunc(r.items, func(it bundle.Item) bool { return it.Kind == bundle.KindChart && it.Name == a.Chart })
	if i < 0 {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("addon %s: the bundle has no chart %s; it has %s", a.Release, a.Chart, r.chartNames())
	}
	var files []charts.ValuesFile
	for _, path := range a.Values {
		data, err := r.Values(path)
		if err != nil {
			return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("addon %s: values: %w", a.Release, err)
		}
		files = append(files, charts.ValuesFile{Name: path, Data: data})
	}
	values, err := charts.ReadValues(files...)
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("addon %s: %w", a.Release, err)
	}
	return charts.InstallOptions{Release: a.Release, Namespace: a.Namespace, Values: values}, r.items[i], nil
}

func (r *run) chartNames() string {
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

// chartTask installs a chart from the bundle, over a connection that the first control plane makes.
func chartTask(name string, want func(ctx context.Context, t *Target) (charts.InstallOptions, bundle.Item, error)) Task {
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
		o.Dial, o.Wait, o.Logger = t.dial, chartWait, t.run.Logger
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
				because(ctx, "release %s is not there, or was made from another chart or other values", o.Release)
			}
			return ok, err
		},
		Do: func(ctx context.Context, t *Target) error {
			chart, o, err := prepare(ctx, t)
			if err != nil {
				return err
			}
			_, err = charts.Install(ctx, chart, o)
			return t.explainPods(ctx, o.Namespace, err)
		},
	}
}

// chart loads a chart of the bundle.
func (r *run) chart(ctx context.Context, item bundle.Item) (_ *charts.Chart, err error) {
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
