package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/kkbundle/kkbundle/provider/api/v1alpha1"
)

func aNode(name, version string, edit ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "kk:///site/" + name},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: version}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, e := range edit {
		e(n)
	}
	return n
}

func aPod(name, node string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, e := range edit {
		e(p)
	}
	return p
}

func ofDaemonSet(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: ptr.To(true)}}
}

func ofReplicaSet(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r", Controller: ptr.To(true)}}
}

func labelled(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{clusterv1.PodDrainLabel: value} }
}

func static(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }

// workload is a cluster that evicts pods, unless refuse is set.
func workload(refuse error, objects ...runtime.Object) *fake.Clientset {
	api := fake.NewClientset(objects...)
	api.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" || refuse != nil {
			return true, nil, refuse
		}
		e := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		return true, nil, api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), e.Namespace, e.Name)
	})
	return api
}

var m1 = Node{Name: "m1", ProviderID: "kk:///site/m1", Addresses: []string{"10.0.0.1"}}

func getNode(t *testing.T, api *fake.Clientset, name string) *corev1.Node {
	t.Helper()
	n, err := api.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestVacate: pods that can run elsewhere are evicted, the others stay, and the node is marked as cordoned by us.
func TestVacate(t *testing.T) {
	t.Parallel()
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	tainted := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}} }
	lost := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	pods := func() []runtime.Object {
		return []runtime.Object{aPod("app", "m1", ofReplicaSet), aPod("proxy", "m1", ofDaemonSet), aPod("etcd", "m1", static), aPod("job", "m1", over)}
	}
	const all, some = "app etcd job proxy", "etcd job proxy"
	for name, c := range map[string]struct {
		nodes         []runtime.Object
		left          string
		marked, empty bool // empty: nothing runs new pods
	}{
		"another node":                {[]runtime.Object{aNode("m1", "v1"), aNode("m2", "v1")}, some, true, true},
		"the only node":               {[]runtime.Object{aNode("m1", "v1")}, all, false, false},
		"others take no pods":         {[]runtime.Object{aNode("m1", "v1"), aNode("m2", "v1", cordoned), aNode("m3", "v1", tainted), aNode("m4", "v1", lost)}, all, false, false},
		"it has the version":          {[]runtime.Object{aNode("m1", "v2"), aNode("m2", "v1")}, all, false, false},
		"it was cordoned by somebody": {[]runtime.Object{aNode("m1", "v1", cordoned), aNode("m2", "v1")}, some, false, true},
	} {
		api := workload(nil, append(pods(), c.nodes...)...)
		if err := vacateSoon(t, api); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		n := getNode(t, api, "m1")
		if _, marked := n.Annotations[infrav1.UpdatingAnnotation]; marked != c.marked || n.Spec.Unschedulable != c.empty {
			t.Errorf("%s: %v %v", name, n.Annotations, n.Spec)
		}
		list, err := api.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, p := range list.Items {
			left = append(left, p.Name)
		}
		if got := strings.Join(left, " "); got != c.left {
			t.Errorf("%s: %s are left, want %s", name, got, c.left)
		}
	}
	// Names may have been given again, and another machine's node must not be drained.
	other := aNode("m1", "v1", func(n *corev1.Node) { n.Spec.ProviderID = "kk:///site/old" })
	api := workload(nil, other, aNode("m2", "v1"), aPod("app", "m1", ofReplicaSet))
	if err := vacateSoon(t, api); !errors.As(err, new(*NodeError)) || getNode(t, api, "m1").Spec.Unschedulable {
		t.Errorf("the node of another machine: %v", err)
	}
}

// vacateSoon vacates m1 in the time of a bubble.
func vacateSoon(t *testing.T, api *fake.Clientset) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = vacate(ctx, api.CoreV1(), m1, "v2")
	})
	return err
}

// TestVacateWaits: a disruption budget is obeyed, and the message says whose it is.
func TestVacateWaits(t *testing.T) {
	t.Parallel()
	api := workload(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 1), aNode("m1", "v1"), aNode("m2", "v1"), aPod("app", "m1", ofReplicaSet))
	err := vacateSoon(t, api)
	if err == nil || !strings.Contains(err.Error(), "kube-system/app: Cannot evict pod") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if n := getNode(t, api, "m1"); !n.Spec.Unschedulable {
		t.Error("new pods come to the node")
	}
}

// TestVacateLeaves: pods that a drain must not move are not evicted: those that would come back, those with a label that
// says so, and those that nothing would make again.
func TestVacateLeaves(t *testing.T) {
	t.Parallel()
	tolerates := func(toleration corev1.Toleration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{toleration} }
	}
	const alone = "node m1: pod kube-system/x has no controller and would be lost: delete it, or label it cluster.x-k8s.io/drain=skip"
	for name, c := range map[string]struct {
		edit    []func(*corev1.Pod)
		problem string
		moved   bool
	}{
		"tolerates all":         {[]func(*corev1.Pod){ofReplicaSet, tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists})}, "", false},
		"tolerates the cordon":  {[]func(*corev1.Pod){ofReplicaSet, tolerates(corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})}, "", false},
		"tolerates a lost node": {[]func(*corev1.Pod){ofReplicaSet, tolerates(corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})}, "", true},
		"skip":                  {[]func(*corev1.Pod){ofReplicaSet, labelled("skip")}, "", false},
		"skip without any":      {[]func(*corev1.Pod){labelled("skip")}, "", false},
		"wait-completed":        {[]func(*corev1.Pod){ofReplicaSet, labelled("wait-completed")}, "node m1 still has 1 pods to be moved, such as kube-system/x: is to end by itself", false},
		"another label":         {[]func(*corev1.Pod){ofReplicaSet, labelled("now")}, "", true},
		"no controller":         {nil, alone, false},
		"an owner alone":        {[]func(*corev1.Pod){func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "m1"}} }}, alone, false},
	} {
		api := workload(nil, aNode("m1", "v1"), aNode("m2", "v1"), aPod("x", "m1", c.edit...), aPod("app", "m1", ofReplicaSet))
		err := vacateSoon(t, api)
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v, want %q", name, err, c.problem)
		}
		there := func(pod string) bool {
			_, err := api.CoreV1().Pods("kube-system").Get(t.Context(), pod, metav1.GetOptions{})
			return err == nil
		}
		refused := c.problem == alone
		if there("x") == c.moved || there("app") != refused || getNode(t, api, "m1").Spec.Unschedulable == refused {
			t.Errorf("%s: there is x: %v, app: %v; %v", name, there("x"), there("app"), getNode(t, api, "m1").Spec)
		}
	}
}

// TestRestore: a node takes pods again once it and its static pods are ready for a while, with the version.
func TestRestore(t *testing.T) {
	t.Parallel()
	ours := func(n *corev1.Node) {
		n.Spec.Unschedulable, n.Annotations = true, map[string]string{infrav1.UpdatingAnnotation: ""}
	}
	theirs := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	lost := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }
	ready := func(p *corev1.Pod) {
		static(p)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	for name, c := range map[string]struct {
		objects []runtime.Object
		problem string
		closed  bool
		takes   time.Duration
	}{
		"a worker":             {[]runtime.Object{aNode("m1", "v2", ours), aPod("proxy", "m1", ofDaemonSet)}, "", false, 0},
		"a control plane":      {[]runtime.Object{aNode("m1", "v2", ours), aPod("etcd", "m1", ready)}, "", false, settleTime},
		"cordoned by somebody": {[]runtime.Object{aNode("m1", "v2", theirs)}, "", true, 0},
		"the older kubelet":    {[]runtime.Object{aNode("m1", "v1", ours)}, "the kubelet of node m1 is v1, not v2", true, time.Minute},
		"not ready":            {[]runtime.Object{aNode("m1", "v2", ours, lost)}, "node m1 is not ready", true, time.Minute},
		"a static pod is not":  {[]runtime.Object{aNode("m1", "v2", ours), aPod("etcd", "m1", static)}, "pod etcd is not ready", true, time.Minute},
		"no node":              {nil, "there is no node m1", false, time.Minute},
	} {
		api := workload(nil, c.objects...)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			err := restore(ctx, api.CoreV1(), m1, "v2")
			if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(begin); took < c.takes || took > c.takes+drainPause {
				t.Errorf("%s took %s, want %s", name, took, c.takes)
			}
		})
		if c.objects == nil {
			continue
		}
		n := getNode(t, api, "m1")
		if _, marked := n.Annotations[infrav1.UpdatingAnnotation]; n.Spec.Unschedulable != c.closed || marked && !c.closed {
			t.Errorf("%s: %v %v", name, n.Spec, n.Annotations)
		}
	}
}
