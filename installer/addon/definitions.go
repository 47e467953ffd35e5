package addon

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/network"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// maxDefinitions bounds the definitions of a chart in bytes. The largest that are known have 2.3 MB.
const maxDefinitions = 32 << 20

// definitionsChart is rendered and applied, and never a release of Helm.
func definitionsChart(n network.Network) OwnChart {
	d := n.Chart.Definitions
	o := OwnChart{
		component: d.Component, chart: d.Chart, Namespace: n.Chart.Namespace,
		values: func(environment) (map[string]any, error) { return nil, nil },
	}
	return o.withDefaults()
}

// hasDefinitions reports whether the cluster's version of a network has its definitions in a chart of their own.
func hasDefinitions(c *manifest.Cluster, d *network.Definitions) bool {
	refs, err := catalog.Refs(c, manifest.Need{Kind: manifest.ItemChart, Name: d.Component}, "")
	return err == nil && len(refs) > 0
}

// definitionsTask applies the definitions before the chart of the network, whose objects need them.
func definitionsTask(n network.Network) task.Task {
	o, d := definitionsChart(n), n.Chart.Definitions
	t := manifestsTask(o.component, func(ctx context.Context, t *task.Host) (applied, error) {
		item, err := t.Site.Component(manifest.Need{Kind: manifest.ItemChart, Name: o.component}, "")
		if err != nil {
			return applied{}, err
		}
		chart, err := Chart(ctx, t.Site, item)
		if err != nil {
			return applied{}, err
		}
		data, err := definitions(ctx, chart, charts.RenderOptions{
			Release: o.Release, Namespace: o.Namespace, KubeVersion: t.Site.Cluster.Kubernetes.Version,
			MaxOutput: maxDefinitions,
		})
		return applied{name: o.component, namespace: kube.SystemNamespace, data: data}, err
	})
	t.Charts = []string{o.component}
	apply := t.Do
	t.Do = func(ctx context.Context, t *task.Host) error {
		if err := apply(ctx, t); err != nil {
			return err
		}
		// The API server serves a kind only some time after it has the definition.
		args := []string{"wait", "--for=condition=Established", "--timeout=60s"}
		for _, name := range d.Established {
			args = append(args, "crd/"+name)
		}
		_, err := t.Kubectl(ctx, args...)
		return err
	}
	return t
}

// definitions renders a chart of definitions as one YAML text. Anything else in it is an error.
func definitions(ctx context.Context, chart *charts.Chart, o charts.RenderOptions) ([]byte, error) {
	var all bytes.Buffer
	rendering, err := charts.RenderApart(ctx, chart, o)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", chart.Name(), err)
	}
	for _, file := range rendering.Files {
		fmt.Fprintf(&all, "---\n%s\n", file.Content)
	}
	objects, err := kube.ParseManifest(all.Bytes())
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", chart.Name(), err)
	}
	for _, one := range objects {
		if one.GetKind() != "CustomResourceDefinition" {
			return nil, fmt.Errorf("chart %s has the %s %s; it may have custom resource definitions only", chart.Name(),
				one.GetKind(), one.GetName())
		}
	}
	return all.Bytes(), nil
}
