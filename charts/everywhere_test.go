package charts

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"helm.sh/helm/v3/pkg/release"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestIsEverywhere has a pod network on three nodes, as an API server tells it.
func TestIsEverywhere(t *testing.T) {
	t.Parallel()
	const manifest = `---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: flannel, namespace: kube-flannel}
spec: {selector: {matchLabels: {app: flannel}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator, namespace: kube-flannel}
spec: {selector: {matchLabels: {app: operator}}}
`
	for name, c := range map[string]struct {
		nodes    map[string]corev1.ConditionStatus // Ready
		ready    map[string]bool                   // of the pods, by node
		leftOut  string
		unplaced int32
		want     string
	}{
		"all are ready": {
			nodes: map[string]corev1.ConditionStatus{"n1": "True", "n2": "False"},
			ready: map[string]bool{"n1": true, "n2": true},
		},
		"one of two is not, which Helm takes for ready": {
			nodes: map[string]corev1.ConditionStatus{"n1": "True", "n2": "False"},
			ready: map[string]bool{"n1": true, "n2": false},
			want:  "not ready, but required on every node: kube-flannel/flannel-n2 on n2",
		},
		"that of a node that is lost is not waited for": {
			nodes: map[string]corev1.ConditionStatus{"n1": "True", "n2": "Unknown"},
			ready: map[string]bool{"n1": true, "n2": false},
		},
		"nor that of a host where a task failed": {
			nodes: map[string]corev1.ConditionStatus{"n1": "True", "n2": "False"},
			ready: map[string]bool{"n1": true, "n2": false}, leftOut: "n2",
		},
		"a node has none yet": {
			nodes: map[string]corev1.ConditionStatus{"n1": "True", "n2": "True"}, ready: map[string]bool{"n1": true},
			unplaced: 1,
			want:     "DaemonSet kube-flannel/flannel has no pods yet on 1 of 2 nodes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var nodes corev1.NodeList
			for name, status := range c.nodes {
				n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
				nodes.Items = append(nodes.Items, n)
			}
			var pods corev1.PodList
			for node, ready := range c.ready {
				p := corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "flannel-" + node, Namespace: "kube-flannel"},
					Spec:       corev1.PodSpec{NodeName: node},
				}
				p.Status.Conditions = []corev1.PodCondition{{
					Type:   corev1.PodReady,
					Status: map[bool]corev1.ConditionStatus{true: "True", false: "False"}[ready],
				}}
				pods.Items = append(pods.Items, p)
			}
			set := appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{
				DesiredNumberScheduled: int32(len(c.nodes)),
				CurrentNumberScheduled: int32(len(c.nodes)) - c.unplaced,
			}}
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answers := map[string]any{
					"/api/v1/nodes": nodes,
					"/apis/apps/v1/namespaces/kube-flannel/daemonsets/flannel": set,
					"/api/v1/namespaces/kube-flannel/pods":                     pods,
				}
				if answer := answers[r.URL.Path]; answer != nil &&
					(r.URL.Path != "/api/v1/namespaces/kube-flannel/pods" ||
						r.URL.Query().Get("labelSelector") == "app=flannel") {
					_ = json.NewEncoder(w).Encode(answer)
					return
				}
				http.NotFound(w, r)
			}))
			defer api.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
			if err != nil {
				t.Fatal(err)
			}
			o := InstallOptions{
				Namespace:  "kube-flannel",
				Everywhere: func(node string) bool { return node != c.leftOut },
			}
			err = isEverywhere(t.Context(), client, o, &release.Release{Manifest: manifest})
			if got := errorText(err); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
