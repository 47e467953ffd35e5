package addon

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// An OwnChart is a chart of the catalog that a cluster's settings ask for, and how it is installed. Both install and the proof
// that a bundle is complete go by it.
type OwnChart struct {
	// component is the catalog's name of it, and the task's; chart its own.
	component, chart   string
	Release, Namespace string
	// privileged says that the pods need what Pod Security keeps from others: the network or the disks of the host.
	privileged bool
	// everywhere says that what comes after needs the chart's pods on every node.
	everywhere bool
	// values are made from the cluster and, where there are any yet, its hosts. Hosts decide nothing about images.
	values func(s surroundings) (map[string]any, error)
	// files are values files of the user's, which win.
	files []string
	// before and after, if set, run on the first control plane around the installation.
	before, after func(ctx context.Context, t *task.Host) error
}

// surroundings are what a chart is fitted to.
type surroundings struct {
	cluster *manifest.Cluster
	// nodes, controlPlanes and nfs are hosts by role, in the order of the inventory.
	nodes, controlPlanes, nfs []*task.Host
}

func surroundingsOf(r *task.Site) surroundings {
	return surroundings{
		cluster: r.Cluster, nodes: r.WithRole(manifest.RoleCluster), controlPlanes: r.WithRole(manifest.RoleControlPlane),
		nfs: r.WithRole(manifest.RoleNFS),
	}
}

// OwnCharts are those of the cluster, by their tasks' names.
func OwnCharts(c *manifest.Cluster) map[string]OwnChart {
	list := []OwnChart{
		flannelChart(c), calicoChart(c), ciliumChart(c), hybridnetChart(c), kubeOVNChart(c),
		metricsChart(), localChart(), nfsChart(),
	}
	charts := map[string]OwnChart{}
	for _, o := range list {
		if o.chart == "" {
			o.chart = o.component
		}
		if o.Release == "" {
			o.Release = o.component
		}
		if o.Namespace == "" {
			o.Namespace = kube.SystemNamespace
		}
		charts[o.component] = o
	}
	return charts
}

// task installs the chart.
func (o OwnChart) task(images ...string) task.Task {
	t := chartTask(o.component, o.before, o.after, func(_ context.Context, t *task.Host) (charts.InstallOptions, bundle.Item, error) {
		return optionsOf(t.Site, o)
	})
	t.Images, t.Charts = images, []string{o.component}
	return t
}

// OwnChart finds the chart in the bundle and fits it to the hosts.
func optionsOf(r *task.Site, o OwnChart) (charts.InstallOptions, bundle.Item, error) {
	item, err := r.Component(manifest.Need{Kind: manifest.ItemChart, Name: o.component}, "")
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, err
	}
	values, err := o.values(surroundingsOf(r))
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("values of %s: %w", o.component, err)
	}
	over, err := readValues(r, o.files)
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("%s: %w", o.component, err)
	}
	options := charts.InstallOptions{Release: o.Release, Namespace: o.Namespace, Values: charts.MergeValues(values, over), Wait: ChartWait}
	if o.privileged {
		// Without the second one, a hardened cluster warns on each installation of what nobody can do anything about.
		options.NamespaceLabels = map[string]string{"pod-security.kubernetes.io/enforce": "privileged", "pod-security.kubernetes.io/warn": "privileged"}
	}
	if o.everywhere {
		options.Everywhere = func(node string) bool { return !r.LeftOut(node) }
	}
	return options, item, nil
}

// Use says how the chart is installed, for those who look into it before there are hosts.
func (o OwnChart) Use(c *manifest.Cluster) (manifest.ChartUse, error) {
	values, err := o.values(surroundings{cluster: c})
	if err != nil {
		return manifest.ChartUse{}, fmt.Errorf("values of %s: %w", o.component, err)
	}
	return manifest.ChartUse{Chart: o.chart, Release: o.Release, Namespace: o.Namespace, Set: values, Values: o.files}, nil
}

// readValues reads values files that the cluster names and merges them.
func readValues(r *task.Site, paths []string) (map[string]any, error) {
	files := make([]charts.ValuesFile, 0, len(paths))
	for _, p := range paths {
		data, err := r.Values(p)
		if err != nil {
			return nil, fmt.Errorf("values: %w", err)
		}
		files = append(files, charts.ValuesFile{Name: p, Data: data})
	}
	return charts.ReadValues(files...)
}

// An imageName is an image of the catalog as charts want it.
type imageName struct {
	// registry is the host, repository what is between it and the tag, and full both.
	registry, repository, full, tag string
}

// imagesOf returns the images of a component by the last part of their names: node, cni, kube-controllers.
func imagesOf(c *manifest.Cluster, component string) (map[string]imageName, error) {
	refs, err := catalog.Refs(c, manifest.Need{Kind: manifest.ItemImage, Name: component}, "")
	if err != nil {
		return nil, err
	}
	images := map[string]imageName{}
	for _, ref := range refs {
		i := strings.LastIndexByte(ref, ':')
		one := imageName{full: ref[:i], tag: ref[i+1:]}
		one.registry, one.repository, _ = strings.Cut(one.full, "/")
		images[path.Base(one.full)] = one
	}
	return images, nil
}

// pick returns some of a component's images, in order, or says which the catalog does not have.
func pick(c *manifest.Cluster, component string, names ...string) ([]imageName, error) {
	images, err := imagesOf(c, component)
	if err != nil {
		return nil, err
	}
	list := make([]imageName, 0, len(names))
	for _, name := range names {
		one, ok := images[name]
		if !ok {
			return nil, fmt.Errorf("the catalog's %s has no image called %s", component, name)
		}
		list = append(list, one)
	}
	return list, nil
}

// value is an image as most charts have it. That it is not asked for by digest is said where charts do that by default: the
// bundle has the tag, and its digest is in the lock.
func (i imageName) value() map[string]any {
	return map[string]any{"repository": i.full, "tag": i.tag}
}

// OwnNamespaces are those that an installation fills, whose pods have to be ready.
func OwnNamespaces(c *manifest.Cluster) []string {
	list := []string{kube.SystemNamespace}
	for _, task := range NetworkTasks(c) {
		o, ok := OwnCharts(c)[task.Name]
		if ok && !slices.Contains(list, o.Namespace) {
			list = append(list, o.Namespace)
		}
	}
	return append(list, NetworkOf(c).namespaces...)
}
