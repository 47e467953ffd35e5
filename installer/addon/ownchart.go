package addon

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/peers"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// An OwnChart is a chart of the catalog that the cluster's settings require, with its installation. install and the
// completeness check share it.
type OwnChart struct {
	// component is its name in the catalog and its task's; chart is the chart's own name.
	component, chart   string
	Release, Namespace string
	// privileged exempts its pods from Pod Security: they need the host's network or disks.
	privileged bool
	// everywhere waits for the chart's pods on every node, because later tasks need them.
	everywhere bool
	// values is called without hosts for the completeness check. Images must not depend on hosts.
	values func(s environment) (map[string]any, error)
	// options are values that the user may set at the site. Images found in the chart with them are in a bundle, too.
	options map[string]any
	// files are the user's values files; they override values.
	files []string
	// before and after run on the first control plane around the installation; both are optional.
	before, after func(ctx context.Context, t *task.Host) error
}

// An environment is the input of a chart's values.
type environment struct {
	cluster *manifest.Cluster
	// Hosts by role, in the order of the inventory.
	nodes, controlPlanes, nfs []*task.Host
	// peersLogin is the digest of the login at peers; "" without hosts.
	peersLogin string
}

func environmentOf(s *task.Site) (environment, error) {
	e := environment{
		cluster: s.Cluster, nodes: s.WithRole(manifest.RoleCluster),
		controlPlanes: s.WithRole(manifest.RoleControlPlane),
		nfs:           s.WithRole(manifest.RoleNFS),
	}
	if !s.Cluster.ImageDistribution.Peers.Used() {
		return e, nil
	}
	login, err := peers.Login(s)
	e.peersLogin = shortDigest([]byte(login.Username + ":" + login.Password))
	return e, err
}

// OwnCharts returns the charts of the cluster by their tasks' names.
func OwnCharts(c *manifest.Cluster) map[string]OwnChart { return ownCharts(network.All(), c) }

func ownCharts(all network.Table, c *manifest.Cluster) map[string]OwnChart {
	list := []OwnChart{spegelChart(), metricsChart(), localChart(), nfsChart()}
	for _, n := range all {
		if n.Chart == nil {
			continue
		}
		list = append(list, networkChart(n, c))
		if n.Chart.Definitions != nil {
			list = append(list, definitionsChart(n))
		}
	}
	charts := map[string]OwnChart{}
	for _, o := range list {
		charts[o.component] = o.withDefaults()
	}
	return charts
}

func (o OwnChart) withDefaults() OwnChart {
	o.chart = cmp.Or(o.chart, o.component)
	o.Release = cmp.Or(o.Release, o.component)
	o.Namespace = cmp.Or(o.Namespace, kube.SystemNamespace)
	return o
}

func (o OwnChart) task(images ...string) task.Task {
	t := chartTask(o.component, o.before, o.after, func(_ context.Context,
		t *task.Host,
	) (charts.InstallOptions, bundle.Item, error) {
		return optionsOf(t.Site, o)
	})
	t.Images, t.Charts = images, []string{o.component}
	return t
}

// optionsOf finds the chart in the bundle and computes its options for the hosts.
func optionsOf(s *task.Site, o OwnChart) (charts.InstallOptions, bundle.Item, error) {
	item, err := s.Component(manifest.Need{Kind: manifest.ItemChart, Name: o.component}, "")
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, err
	}
	e, err := environmentOf(s)
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, err
	}
	values, err := o.values(e)
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("values of %s: %w", o.component, err)
	}
	over, err := readValues(s, o.files)
	if err != nil {
		return charts.InstallOptions{}, bundle.Item{}, fmt.Errorf("%s: %w", o.component, err)
	}
	options := charts.InstallOptions{
		Release: o.Release, Namespace: o.Namespace,
		Values: charts.MergeValues(values, over), Wait: ChartWait,
	}
	if o.privileged {
		// Without warn, a hardened cluster prints a warning for each installation.
		options.NamespaceLabels = map[string]string{
			"pod-security.kubernetes.io/enforce": "privileged",
			"pod-security.kubernetes.io/warn":    "privileged",
		}
	}
	if o.everywhere {
		options.Everywhere = func(node string) bool { return !s.LeftOut(node) }
	}
	return options, item, nil
}

// Uses returns the chart's options before hosts are known: those of install, and with them values that the user may
// set.
func (o OwnChart) Uses(c *manifest.Cluster) ([]manifest.ChartUse, error) {
	values, err := o.values(environment{cluster: c})
	if err != nil {
		return nil, fmt.Errorf("values of %s: %w", o.component, err)
	}
	use := manifest.ChartUse{Chart: o.chart, Release: o.Release, Namespace: o.Namespace, Set: values, Values: o.files}
	if len(o.options) == 0 {
		return []manifest.ChartUse{use}, nil
	}
	more := use
	more.Set = charts.MergeValues(values, o.options)
	return []manifest.ChartUse{use, more}, nil
}

// readValues reads and merges values files of the cluster file.
func readValues(s *task.Site, paths []string) (map[string]any, error) {
	files := make([]charts.ValuesFile, 0, len(paths))
	for _, p := range paths {
		data, err := s.Values(p)
		if err != nil {
			return nil, fmt.Errorf("values: %w", err)
		}
		files = append(files, charts.ValuesFile{Name: p, Data: data})
	}
	return charts.ReadValues(files...)
}

// OwnNamespaces returns the namespaces with pods of kkbundle's installation, which must be ready.
func OwnNamespaces(c *manifest.Cluster) []string { return ownNamespaces(network.All(), c) }

func ownNamespaces(all network.Table, c *manifest.Cluster) []string {
	list := []string{kube.SystemNamespace}
	own := ownCharts(all, c)
	for _, task := range networkTasks(all, c) {
		o, ok := own[task.Name]
		if ok && !slices.Contains(list, o.Namespace) {
			list = append(list, o.Namespace)
		}
	}
	return append(list, all.Primary(c).Namespaces...)
}

// SystemNamespaces returns the namespaces of Kubernetes and of every pod network that kkbundle installs, for a
// cluster whose pod network is not known.
func SystemNamespaces(c *manifest.Cluster) []string {
	var list []string
	for _, n := range network.All() {
		one := *c
		one.CNI.Type, one.CNI.With = n.Name, ""
		list = append(list, OwnNamespaces(&one)...)
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}
