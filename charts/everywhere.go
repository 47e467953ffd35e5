package charts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/release"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// everywhere waits until the DaemonSets of a release have a ready pod on every node selected by o.Everywhere.
func (s state) everywhere(ctx context.Context, o InstallOptions, rel *release.Release) error {
	client, err := s.cfg.KubernetesClientSet()
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, timeout(o))
	defer cancel()
	const pause = time.Second
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := isEverywhere(limit, client, o, rel)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return fmt.Errorf("%w (waited %s)", err, timeout(o))
		}
	}
}

// isEverywhere checks once. Helm considers a DaemonSet ready although as many pods are missing as may be unavailable
// during an update: one, unless the chart overrides it (https://github.com/helm/helm/blob/v3.19.2/pkg/kube/ready.go,
// daemonSetReady).
func isEverywhere(ctx context.Context, client kubernetes.Interface, o InstallOptions, rel *release.Release) error {
	all := slices.DeleteFunc(workloads(rel.Manifest, o.Namespace),
		func(w workload) bool { return w.kind != "DaemonSet" })
	if len(all) == 0 {
		return nil
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	counts := map[string]bool{}
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		counts[name] = answers(&nodes.Items[i]) && o.Everywhere(name)
	}
	var lacking []string
	for _, w := range all {
		set, err := client.AppsV1().DaemonSets(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := set.Status; status.ObservedGeneration < set.Generation ||
			status.CurrentNumberScheduled < status.DesiredNumberScheduled {
			return fmt.Errorf("DaemonSet %s/%s has no pods yet on %d of %d nodes", w.namespace, w.name,
				status.DesiredNumberScheduled-status.CurrentNumberScheduled, status.DesiredNumberScheduled)
		}
		pods, err := client.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{LabelSelector: w.selector})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; counts[p.Spec.NodeName] && !settled(p) {
				lacking = append(lacking, fmt.Sprintf("%s/%s on %s", p.Namespace, p.Name, p.Spec.NodeName))
			}
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	slices.Sort(lacking)
	const named = 5
	more := ""
	if len(lacking) > named {
		more = fmt.Sprintf(" and %d more", len(lacking)-named)
	}
	return fmt.Errorf("not ready, but required on every node: %s%s", strings.Join(lacking[:min(named, len(lacking))],
		", "), more)
}

// answers reports whether a node's kubelet posts its status. Without a pod network a node is not ready; a lost node is
// unknown.
func answers(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status != corev1.ConditionUnknown
	})
}
