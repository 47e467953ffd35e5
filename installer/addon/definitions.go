package addon

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// CalicoCRDs is the task and the component whose chart has the custom resource definitions of Calico and its operator, from v3.32 on.
const CalicoCRDs = "calico-crds"

// maxDefinitions bounds the definitions of a chart in bytes. Those of Calico v3.32.1 have 2.3 MB.
const maxDefinitions = 32 << 20

// calicoDefinitions is rendered and applied, and never a release of Helm: definitions exceed the size of a release, and a
// release would delete them with itself.
func calicoDefinitions() OwnChart {
	return OwnChart{
		component: CalicoCRDs, chart: "crd.projectcalico.org.v1", Namespace: operatorNamespace,
		values: func(environment) (map[string]any, error) { return nil, nil },
	}
}

// hasDefinitions reports whether the cluster's Calico has its definitions in a chart of their own.
func hasDefinitions(c *manifest.Cluster) bool {
	refs, err := catalog.Refs(c, manifest.Need{Kind: manifest.ItemChart, Name: CalicoCRDs}, "")
	return err == nil && len(refs) > 0
}

// definitionsTask applies the definitions before the chart of the operator, whose objects need them.
func definitionsTask() task.Task {
	t := manifestsTask(CalicoCRDs, func(ctx context.Context, t *task.Host) (applied, error) {
		o := OwnCharts(t.Site.Cluster)[CalicoCRDs]
		item, err := t.Site.Component(manifest.Need{Kind: manifest.ItemChart, Name: CalicoCRDs}, "")
		if err != nil {
			return applied{}, err
		}
		chart, err := Chart(ctx, t.Site, item)
		if err != nil {
			return applied{}, err
		}
		data, err := definitions(chart, charts.RenderOptions{
			Release: o.Release, Namespace: o.Namespace, KubeVersion: t.Site.Cluster.Kubernetes.Version, MaxOutput: maxDefinitions,
		})
		return applied{name: CalicoCRDs, namespace: kube.SystemNamespace, data: data}, err
	})
	t.Charts = []string{CalicoCRDs}
	apply := t.Do
	t.Do = func(ctx context.Context, t *task.Host) error {
		if err := apply(ctx, t); err != nil {
			return err
		}
		// The API server serves a kind only some time after it has the definition.
		_, err := t.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd/installations.operator.tigera.io", "crd/apiservers.operator.tigera.io")
		return err
	}
	return t
}

// definitions renders a chart of definitions as one YAML text. Anything else in it is an error.
func definitions(chart *charts.Chart, o charts.RenderOptions) ([]byte, error) {
	var archive, all bytes.Buffer
	if err := chart.Archive(&archive); err != nil {
		return nil, err
	}
	rendering, err := charts.Render(&archive, o)
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
			return nil, fmt.Errorf("chart %s has the %s %s; it may have custom resource definitions only", chart.Name(), one.GetKind(), one.GetName())
		}
	}
	return all.Bytes(), nil
}
