package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// removedTask names addons in the cluster that the cluster file no longer has. They stay: someone may need them.
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
			what := "the cluster file"
			if !t.Site.Groups.All() {
				what = "the cluster file, with the groups that are on,"
			}
			t.Site.Tell(task.Event{
				Phase: "install", Task: "removed-addons", Host: t.Name, State: task.Warned,
				Message: what + " does not name these any more, and they stay in the cluster: " +
					strings.Join(left, ", ") +
					"; remove a chart with `helm uninstall`, YAML with `kubectl delete`",
			})
			return nil
		},
	}
}

// leftAddons returns the releases and records in the cluster, as namespace/name, that no task has.
func leftAddons(ctx context.Context, t *task.Host) ([]string, error) {
	known := knownAddons(t.Site)
	var left []string
	for _, one := range []struct{ what, kind, selector, name string }{
		{"chart", "secrets", "owner=helm," + charts.MarkLabel, "name"},
		{"manifests", "configmaps", marks.ManifestsLabel, marks.ManifestsLabel},
	} {
		// Labels only: releases are large, and their values may be secret.
		found, err := t.Kubectl(task.WithoutOutput(ctx), "get", one.kind, "--all-namespaces", "--selector="+
			one.selector, "--output=jsonpath={range .items[*]}{.metadata.namespace} {.metadata.labels}{\"\\n\"}{end}")
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

// knownAddons returns the releases and records that the cluster's tasks make.
func knownAddons(r *task.Site) map[string]bool {
	known := map[string]bool{}
	own := addon.OwnCharts(r.Cluster)
	for _, task := range Tasks(r.Cluster) {
		if o, ok := own[task.Name]; ok {
			known["chart "+o.Namespace+"/"+o.Release] = true
		}
		if addon.IsOwnYAML(task.Name) {
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
