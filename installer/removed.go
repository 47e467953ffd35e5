package installer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// removedTask names what an installation has put into the cluster and the cluster file does not name any more. It stays: somebody
// may need it, or its data.
func removedTask() task.Task {
	return task.Task{
		Name:  "removed-addons",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Do: func(ctx context.Context, t *task.Host) error {
			left, err := leftAddons(ctx, t)
			if err != nil || len(left) == 0 {
				return err
			}
			t.Site.Tell(task.Event{
				Phase: "install", Task: "removed-addons", Host: t.Name, State: task.Warned,
				Message: "the cluster file does not name these any more, and they stay in the cluster: " + strings.Join(left, ", ") +
					"; take a chart away with `helm uninstall`, YAML with `kubectl delete`",
			})
			return nil
		},
	}
}

// leftAddons are the releases and records in the cluster, as namespace/name, that no task is about.
func leftAddons(ctx context.Context, t *task.Host) ([]string, error) {
	known := knownAddons(t.Site)
	var left []string
	for _, one := range []struct{ what, kind, selector, name string }{
		{"chart", "secrets", "owner=helm," + charts.MarkLabel, "name"},
		{"manifests", "configmaps", addon.RecordLabel, addon.RecordLabel},
	} {
		// Only the labels: releases are large, and values in them may be secret.
		found, err := t.Kubectl(task.WithoutOutput(ctx), "get", one.kind, "--all-namespaces", "--selector="+one.selector, "--output=jsonpath={range .items[*]}{.metadata.namespace} {.metadata.labels}{\"\\n\"}{end}")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(found)) {
			namespace, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			var labels map[string]string
			if err := json.Unmarshal([]byte(text), &labels); err != nil {
				return nil, fmt.Errorf("labels of %s in %s: %w", one.kind, namespace, err)
			}
			if id := one.what + " " + namespace + "/" + labels[one.name]; !known[id] {
				left = append(left, id)
			}
		}
	}
	slices.Sort(left)
	return slices.Compact(left), nil
}

// knownAddons are the releases and records that the cluster's tasks make.
func knownAddons(r *task.Site) map[string]bool {
	known := map[string]bool{}
	own := addon.OwnCharts(r.Cluster)
	for _, task := range tasksOf(r.Cluster) {
		if o, ok := own[task.Name]; ok {
			known["chart "+o.Namespace+"/"+o.Release] = true
		}
		if task.Name == addon.NodeDNS || task.Name == addon.Multus {
			known["manifests "+kube.SystemNamespace+"/"+task.Name] = true
		}
	}
	for _, a := range r.Cluster.Addons {
		kind := "manifests"
		if a.Chart != "" {
			kind = "chart"
		}
		known[kind+" "+a.Namespace+"/"+a.Release] = true
	}
	return known
}
