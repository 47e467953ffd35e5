package incluster

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func node(name, arch string, images ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: arch}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, i := range images {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{i}})
	}
	return n
}

func pod(on, image string) corev1.Pod {
	p := corev1.Pod{Spec: corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Name: "c", Image: image}}}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name:  "c",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	return p
}

func TestTheImageOnMostNodesIsBorrowed(t *testing.T) {
	private, starting := pod("b", "private"), pod("b", "starting")
	private.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
	starting.Status.ContainerStatuses[0].State = corev1.ContainerState{}
	lost, windows := node("lost", "amd64"), node("w", "amd64")
	lost.Status.Conditions[0].Status = corev1.ConditionUnknown
	windows.Status.NodeInfo.OperatingSystem = "windows"
	for _, test := range []struct {
		name    string
		nodes   []corev1.Node
		pods    []corev1.Pod
		current string
		want    string // image: nodes with it / nodes without
	}{
		{
			"in use on both",
			[]corev1.Node{node("a", "amd64"), node("b", "amd64")},
			[]corev1.Pod{pod("a", "app"), pod("a", "proxy"), pod("b", "proxy")},
			"", "proxy: a b /",
		},
		{
			"the same count: the first name",
			[]corev1.Node{node("a", "amd64")},
			[]corev1.Pod{pod("a", "z"), pod("a", "k")},
			"", "k: a /",
		},
		{
			"the same count: the current one stays",
			[]corev1.Node{node("a", "amd64")},
			[]corev1.Pod{pod("a", "z"), pod("a", "k")},
			"z", "z: a /",
		},
		{
			"the current one is on fewer nodes",
			[]corev1.Node{node("a", "amd64"), node("b", "amd64")},
			[]corev1.Pod{pod("a", "old"), pod("a", "new"), pod("b", "new")},
			"old", "new: a b /",
		},
		{
			"the current one is not in use for a moment, but listed",
			[]corev1.Node{node("a", "amd64", "old"), node("b", "amd64")},
			[]corev1.Pod{
				pod("a", "new"), pod("b", "new"),
				pod("b", "old"),
			},
			"old", "old: a b /",
		},
		{
			"listed, but in use on fewer nodes",
			[]corev1.Node{node("a", "amd64", "app"), node("b", "amd64")},
			[]corev1.Pod{pod("a", "proxy"), pod("b", "proxy"), pod("b", "app")},
			"", "proxy: a b /",
		},
		{
			"with a pull secret, or starting",
			[]corev1.Node{node("a", "amd64"), node("b", "amd64")},
			[]corev1.Pod{pod("a", "app"), private, starting},
			"", "app: a / b",
		},
		{
			"lost and Windows nodes",
			[]corev1.Node{node("a", "amd64"), lost, windows},
			[]corev1.Pod{pod("a", "app"), pod("lost", "x"), pod("w", "x")},
			"", "app: a /",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := chooseImages(test.nodes, test.pods, map[string]string{"amd64": test.current})
			if err != nil || len(got) != 1 {
				t.Fatalf("%+v, %v", got, err)
			}
			line := strings.TrimSpace(got[0].image + ": " + strings.Join(got[0].nodes, " ") + " / " +
				strings.Join(got[0].without, " "))
			if line != test.want {
				t.Errorf("got %q, want %q", line, test.want)
			}
		})
	}
}

func TestEachArchitectureHasAnImage(t *testing.T) {
	nodes := []corev1.Node{node("a", "amd64"), node("b", "arm64"), node("c", "arm64")}
	got, err := chooseImages(nodes, []corev1.Pod{pod("a", "x"), pod("b", "x"), pod("c", "x")}, nil)
	if err != nil || len(got) != 2 || got[0].arch != "arm64" || !slices.Equal(got[0].nodes, []string{"b", "c"}) ||
		!slices.Equal(got[1].nodes, []string{"a"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := chooseImages(nodes, []corev1.Pod{pod("a", "x")}, nil); err == nil ||
		!strings.Contains(err.Error(), "architecture arm64") {
		t.Errorf("without a pod on arm64: %v", err)
	}
	if _, err := chooseImages(nil, nil, nil); err == nil {
		t.Error("a cluster without nodes has an image")
	}
}

func TestContentIsOnANodeThatTakesPods(t *testing.T) {
	control, cordoned, other, worker := node("a", "amd64"), node("b", "amd64"), node("c", "amd64"), node("d", "amd64")
	control.Spec.Taints = []corev1.Taint{{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule}}
	cordoned.Spec.Unschedulable = true
	other.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	all := []string{"a", "b", "c", "d"}
	if got := chooseNode([]corev1.Node{control, cordoned, other, worker}, all); got != "d" {
		t.Errorf("got %q, want the worker d", got)
	}
	if got := chooseNode([]corev1.Node{control, cordoned, other, worker}, all[:3]); got != "a" {
		t.Errorf("without the worker's image: got %q, want the control plane a", got)
	}
	if got := chooseNode([]corev1.Node{cordoned, other}, all); got != "" {
		t.Errorf("got %q, want none", got)
	}
}
