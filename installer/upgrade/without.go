package upgrade

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/begin"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// checkWithout refuses an upgrade and a rollback without a control plane or a member of etcd: API servers may differ
// by one minor release only, kubelets must not be newer than one of them, and etcd needs the member while another one
// restarts.
func (w *nodeWalk) checkWithout() error {
	errs := []error{begin.CheckWithout(w.Run)}
	for _, t := range w.Without() {
		if t.Is(manifest.RoleControlPlane) || t.Is(manifest.RoleEtcd) {
			errs = append(errs, &begin.WithoutError{
				Host: t.Name, Reason: "upgrades and rollbacks need all control planes and members of etcd",
				Advice: "bring it back, or delete it for good: kkbundle nodes delete --unreachable " + t.Name,
			})
		}
	}
	return errors.Join(errs...)
}

// leftNodes returns the nodes that the upgrade leaves as they are.
func (w *nodeWalk) leftNodes(states []corev1.Node) []Node {
	var nodes []Node
	for _, t := range w.Without() {
		if !t.Is(manifest.RoleCluster) {
			continue
		}
		n := Node{Name: t.Name, Left: true}
		if s := kube.FindNode(states, t.Name); s != nil {
			n.from(s)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// Left returns the nodes that the upgrade leaves as they are, each with its kubelet's version.
func (p Plan) Left() []string {
	var list []string
	for _, n := range p.Nodes {
		if n.Left {
			list = append(list, n.Name+" (kubelet "+task.OrDash(n.Kubelet)+")")
		}
	}
	return list
}
