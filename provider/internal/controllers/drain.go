package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

// drainPause is the time between two looks at a node that is drained, or is to come back.
const drainPause = 3 * time.Second

// settleTime is how long a control plane has to stay ready: a new kubelet answers at once, and then restarts static
// pods.
const settleTime = 20 * time.Second

// Vacate implements NodeUpdater. Pods are evicted as disruption budgets allow. A node whose pods could run nowhere else
// keeps them: they outlive the restart of kubelet and runtime.
func (w WorkloadNodes) Vacate(ctx context.Context, cluster types.NamespacedName, node Node, version string) error {
	api, err := w.api(ctx, cluster)
	if err != nil {
		return err
	}
	if err := vacate(ctx, api, node, version); err != nil {
		return fmt.Errorf("cluster %s: %w", cluster.Name, err)
	}
	return nil
}

// Restore implements NodeUpdater. A node that was cordoned by others stays so.
func (w WorkloadNodes) Restore(ctx context.Context, cluster types.NamespacedName, node Node, version string) error {
	api, err := w.api(ctx, cluster)
	if err != nil {
		return err
	}
	if err := restore(ctx, api, node, version); err != nil {
		return fmt.Errorf("cluster %s: %w", cluster.Name, err)
	}
	return nil
}

func vacate(ctx context.Context, api corev1client.CoreV1Interface, want Node, version string) error {
	n, err := ownNode(ctx, api.Nodes(), want)
	if err != nil {
		return err
	}
	if n.Status.NodeInfo.KubeletVersion == version {
		return nil // what is left to do does not touch pods
	}
	all, err := api.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all.Items, func(o corev1.Node) bool { return o.Name != n.Name && takesPods(&o) }) {
		return nil
	}
	if _, err := toMove(ctx, api, n.Name); err != nil { // before anything is evicted
		return err
	}
	if !n.Spec.Unschedulable {
		if err := setSchedulable(ctx, api.Nodes(), n, false); err != nil {
			return err
		}
	}
	return repeatedly(ctx, func(ctx context.Context) error { return evict(ctx, api, n.Name) })
}

// repeatedly returns nil once do does, and the last error when the context ends.
func repeatedly(ctx context.Context, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(drainPause):
		}
	}
}

// ownNode returns the machine's node.
func ownNode(ctx context.Context, api corev1client.NodeInterface, want Node) (*corev1.Node, error) {
	n, err := nodeOf(ctx, api, want.Name, want.Addresses)
	switch {
	case err != nil:
		return nil, err
	case n == nil:
		return nil, &NodeError{fmt.Sprintf("there is no node %s, and none with the address %s", want.Name, strings.Join(want.Addresses, " or "))}
	case n.Spec.ProviderID != want.ProviderID:
		return nil, &NodeError{fmt.Sprintf("node %s has the providerID %q and not %s of this machine", n.Name, n.Spec.ProviderID, want.ProviderID)}
	}
	return n, nil
}

// takesPods reports whether pods without tolerations run on a node.
func takesPods(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && isReady(n) && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	})
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// setSchedulable cordons a node with our annotation, or ends both.
func setSchedulable(ctx context.Context, api corev1client.NodeInterface, n *corev1.Node, want bool) error {
	var mark any = "" // what nobody else has cordoned
	if want {
		mark = nil
	}
	change, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion, "annotations": map[string]any{infrav1.UpdatingAnnotation: mark}},
		"spec":     map[string]any{"unschedulable": !want},
	})
	if err != nil {
		return err
	}
	_, err = api.Patch(ctx, n.Name, types.StrategicMergePatchType, change, metav1.PatchOptions{})
	return err
}

// evict evicts the pods of a node, and returns an error while one is left.
func evict(ctx context.Context, api corev1client.CoreV1Interface, node string) error {
	pods, err := toMove(ctx, api, node)
	if err != nil {
		return err
	}
	var left []string
	for _, p := range pods {
		why := "is being ended"
		switch {
		case p.DeletionTimestamp != nil:
		case drainLabel(&p) == clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted:
			why = "is to end by itself, as its label " + clusterv1.PodDrainLabel + " says"
		default:
			pod := metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}
			err := api.Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: pod})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				why = err.Error()
			}
		}
		left = append(left, fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, why))
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("node %s still has %d pods to be moved, such as %s", node, len(left), left[0])
}

// toMove returns the pods that a drain takes off a node, and an error if one would be lost by that.
func toMove(ctx context.Context, api corev1client.CoreV1Interface, node string) (pods []corev1.Pod, err error) {
	all, err := api.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	for _, p := range all.Items {
		if stays(ctx, &p) {
			continue
		}
		if metav1.GetControllerOf(&p) == nil && p.DeletionTimestamp == nil &&
			drainLabel(&p) != clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted {
			return nil, fmt.Errorf("node %s: pod %s/%s has no controller and would be lost: delete it, or label it %s=skip",
				node, p.Namespace, p.Name, clusterv1.PodDrainLabel)
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// stays reports whether a pod is none that a drain moves: it is over, static, belongs to every node, would come back to
// a node that is cordoned, or has the label that says so.
func stays(ctx context.Context, p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return isStatic(p) || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed ||
		owner != nil && owner.Kind == "DaemonSet" ||
		drainLabel(p) == clusterv1.MachineDrainRuleDrainBehaviorSkip ||
		slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(ctrl.LoggerFrom(ctx), &cordon, false)
		})
}

// drainLabel returns what Cluster API's label of a pod says, "" for nothing that is known.
func drainLabel(p *corev1.Pod) clusterv1.MachineDrainRuleDrainBehavior {
	switch strings.ToLower(p.Labels[clusterv1.PodDrainLabel]) {
	case "skip":
		return clusterv1.MachineDrainRuleDrainBehaviorSkip
	case "wait-completed", "waitcompleted":
		return clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted
	}
	return ""
}

func isStatic(p *corev1.Pod) bool { return p.Annotations[corev1.MirrorPodAnnotationKey] != "" }

func restore(ctx context.Context, api corev1client.CoreV1Interface, want Node, version string) error {
	var since time.Time
	return repeatedly(ctx, func(ctx context.Context) error {
		n, plane, err := back(ctx, api, want, version)
		if err != nil {
			since = time.Time{}
			return err
		}
		if since.IsZero() {
			since = time.Now()
		}
		if left := settleTime - time.Since(since); plane && left > 0 {
			return fmt.Errorf("node %s has to stay ready for another %s", n.Name, left.Round(time.Second))
		}
		if _, ours := n.Annotations[infrav1.UpdatingAnnotation]; !ours {
			return nil
		}
		return setSchedulable(ctx, api.Nodes(), n, true)
	})
}

// back returns an error unless the node is ready with the version, and so are its static pods. plane reports whether it
// has some.
func back(ctx context.Context, api corev1client.CoreV1Interface, want Node,
	version string,
) (n *corev1.Node, plane bool, err error) {
	if n, err = ownNode(ctx, api.Nodes(), want); err != nil {
		return nil, false, err
	}
	switch has := n.Status.NodeInfo.KubeletVersion; {
	case has != version:
		return nil, false, fmt.Errorf("the kubelet of node %s is %s, not %s", n.Name, cmp.Or(has, "unknown"), version)
	case !isReady(n):
		return nil, false, fmt.Errorf("node %s is not ready", n.Name)
	}
	pods, err := api.Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
	if err != nil {
		return nil, false, err
	}
	for _, p := range pods.Items {
		if !isStatic(&p) {
			continue
		}
		plane = true
		if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			return nil, false, fmt.Errorf("pod %s is not ready", p.Name)
		}
	}
	return n, plane, nil
}

var _ NodeUpdater = WorkloadNodes{}
