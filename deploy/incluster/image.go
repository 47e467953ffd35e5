package incluster

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kkbundle/kkbundle/internal/plain"
)

// A borrowed image is one that nodes of an architecture have already. Nothing in it is executed.
type borrowed struct {
	arch, image string
	nodes       []string // that have it
	without     []string // ready nodes that do not
}

// survey is what the cluster has before a run.
type survey struct {
	images   []borrowed // the architecture with most nodes first
	existing *storage
	proxies  proxies
	node     string // for content without a storage class
}

func (w *work) survey(ctx context.Context) (survey, error) {
	var s survey
	nodes, err := w.typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	pods, err := w.typed.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
	if err != nil {
		return s, err
	}
	if s.proxies, err = w.currentProxies(ctx); err != nil {
		return s, err
	}
	if s.existing, err = w.existing(ctx); err != nil {
		return s, err
	}
	if s.images, err = chooseImages(nodes.Items, pods.Items, s.proxies.images); err != nil {
		return s, err
	}
	s.node = chooseNode(nodes.Items, s.images[0].nodes)
	return s, nil
}

// proxies are those of an existing registry.
type proxies struct {
	images map[string]string // by architecture
	port   int
}

func (w *work) currentProxies(ctx context.Context) (proxies, error) {
	sets, err := w.typed.AppsV1().DaemonSets(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" +
		manager})
	if err != nil {
		return proxies{}, err
	}
	p := proxies{images: map[string]string{}}
	for i := range sets.Items {
		pod := sets.Items[i].Spec.Template.Spec
		if len(pod.Containers) != 1 || len(pod.Containers[0].Ports) != 1 {
			continue
		}
		p.images[pod.NodeSelector[corev1.LabelArchStable]] = pod.Containers[0].Image
		p.port = int(pod.Containers[0].Ports[0].HostPort)
	}
	return p, nil
}

// chooseImages returns an image for each architecture: the one that most ready nodes have, and of these the one in
// use on most. A kubelet never removes an image that is in use, and the proxy then uses it on every node. The current
// image stays unless another one is on more nodes.
func chooseImages(nodes []corev1.Node, pods []corev1.Pod, current map[string]string) ([]borrowed, error) {
	byArch := map[string][]*corev1.Node{}
	for i := range nodes {
		if n := &nodes[i]; isReady(n) && n.Status.NodeInfo.OperatingSystem == "linux" {
			byArch[n.Status.NodeInfo.Architecture] = append(byArch[n.Status.NodeInfo.Architecture], n)
		}
	}
	if len(byArch) == 0 {
		return nil, errors.New("the cluster has no ready Linux node: kubectl get nodes lists their states")
	}
	used := usedImages(pods)
	var list []borrowed
	for arch, members := range byArch {
		b := choose(members, used, current[arch])
		if b.image == "" {
			return nil, plain.Advise(errors.New("no pod runs on the nodes of architecture "+arch+
				" whose image could be used again"),
				"start any pod there whose image is pulled without a pull secret")
		}
		b.arch = arch
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b borrowed) int {
		return cmp.Or(cmp.Compare(len(b.nodes)+len(b.without), len(a.nodes)+len(a.without)),
			cmp.Compare(a.arch, b.arch))
	})
	return list, nil
}

// choose returns the best of the images in use on some of the nodes.
func choose(nodes []*corev1.Node, used map[string][]string, current string) borrowed {
	best, bestUse := borrowed{}, 0
	for _, image := range slices.Sorted(maps.Keys(used)) {
		one, use := borrowed{image: image}, 0
		for _, n := range nodes {
			inUse := slices.Contains(used[image], n.Name)
			if inUse {
				use++
			}
			if inUse || lists(n, image) {
				one.nodes = append(one.nodes, n.Name)
			} else {
				one.without = append(one.without, n.Name)
			}
		}
		if use == 0 {
			continue
		}
		order := cmp.Compare(len(one.nodes), len(best.nodes))
		if order > 0 || order == 0 && best.image != current && (image == current || use > bestUse) {
			best, bestUse = one, use
		}
	}
	slices.Sort(best.nodes)
	slices.Sort(best.without)
	return best
}

// lists reports whether a node's status lists an image. A kubelet lists the 50 largest only.
func lists(n *corev1.Node, image string) bool {
	return slices.ContainsFunc(n.Status.Images,
		func(i corev1.ContainerImage) bool { return slices.Contains(i.Names, image) })
}

// usedImages returns the nodes on which a container of an image runs. Pods with pull secrets do not count: a kubelet
// may refuse their image to other pods.
func usedImages(pods []corev1.Pod) map[string][]string {
	used := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		if len(p.Spec.ImagePullSecrets) > 0 || p.DeletionTimestamp != nil {
			continue
		}
		running := map[string]bool{}
		for _, c := range p.Status.ContainerStatuses {
			running[c.Name] = c.State.Running != nil
		}
		for _, c := range p.Spec.Containers {
			if on := used[c.Image]; running[c.Name] && !slices.Contains(on, p.Spec.NodeName) {
				used[c.Image] = append(on, p.Spec.NodeName)
			}
		}
	}
	return used
}

// chooseNode returns the hostname label of the first node that pods are scheduled to, control planes last.
func chooseNode(nodes []corev1.Node, among []string) string {
	var first, last []string
	for i := range nodes {
		n := &nodes[i]
		label := n.Labels[corev1.LabelHostname]
		if !slices.Contains(among, n.Name) || n.Spec.Unschedulable || label == "" {
			continue
		}
		blocked := slices.ContainsFunc(n.Spec.Taints,
			func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule })
		onlyControl := !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != controlPlane
		})
		switch {
		case !blocked:
			first = append(first, label)
		case onlyControl:
			last = append(last, label)
		}
	}
	slices.Sort(first)
	slices.Sort(last)
	if all := append(first, last...); len(all) > 0 {
		return all[0]
	}
	return ""
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
