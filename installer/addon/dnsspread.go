package addon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// dnsSelector finds the pods of kubeadm's CoreDNS.
const dnsSelector = "--selector=k8s-app=kube-dns"

// crowdedPath says between which nodes there was no choice when DNS was to be spread.
const crowdedPath = task.StampDir + "/dns-crowded"

// spreadWait is how long nodes may take to be ready, and a pod to get one, before DNS is left where it is: that pods start at
// all is for the verification to say.
const spreadWait = 2 * time.Minute

// DNSSpreadTasks spread kubeadm's DNS, where there is a network for its pods.
func DNSSpreadTasks(c *manifest.Cluster) []task.Task {
	if c.CNI.Type == manifest.NetworkNone {
		return nil
	}
	return []task.Task{DNSSpreadTask()}
}

// DNSSpreadTask puts the pods of the cluster's DNS onto more than one node. The first node that is ready gets all of them, and when
// it is lost, no name is found until Kubernetes gives the node up, after five minutes.
// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/high-availability/
func DNSSpreadTask() task.Task {
	return task.Task{
		Name:  "dns-spread",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if len(t.Site.Connected(manifest.RoleCluster)) < 2 {
				return true, nil
			}
			if member, err := member.IsMember(ctx, t); err != nil || !member {
				return false, err
			}
			s, err := spreadOf(ctx, t)
			if err != nil || s.spread() {
				return err == nil, err
			}
			if same, err := t.HasFiles(ctx, s.crowded()); err != nil || same {
				return err == nil, err
			}
			task.Because(ctx, "all pods of the cluster's DNS are on one node")
			return false, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			moved, waits := "", errors.New("the pods of the cluster's DNS have no nodes yet")
			err := task.Eventually(ctx, spreadWait, func(ctx context.Context) error {
				s, err := spreadOf(ctx, t)
				switch {
				case err != nil || s.spread():
					return err
				case s.waits():
					return waits
				case moved != "": // it got the same node again: nothing else has room
					return t.Write(ctx, s.crowded())
				}
				// Its companion answers meanwhile; the next one rather goes where there is none.
				moved = s.names[len(s.names)-1]
				if _, err := t.Kubectl(ctx, "delete", "pod", "--namespace="+kube.SystemNamespace, "--ignore-not-found", "--wait=false", moved); err != nil {
					return err
				}
				return waits
			})
			if errors.Is(err, waits) {
				return ctx.Err()
			}
			return err
		},
	}
}

// A spreadOf is where the pods of the cluster's DNS are.
type DNSSpread struct {
	wanted int      // pods that there shall be
	names  []string // of the pods
	nodes  []string // each once
	placed int      // pods that have a node
	open   []string // nodes that take pods when they are ready
	free   int      // and that are
}

// crowded is the file that says that of these nodes only one has room: to try again would not change that.
func (s DNSSpread) crowded() task.File {
	return task.File{Path: crowdedPath, Mode: 0o600, Data: fmt.Appendf(nil, "%s of %s\n", strings.Join(s.nodes, " "), strings.Join(s.open, " "))}
}

// spread tells whether there is nothing to spread: more than one node has a pod, or there shall be but one pod, or is one node for
// them. Pods that were deleted a moment ago, as the pod network does, may not have come back yet.
func (s DNSSpread) spread() bool { return s.wanted < 2 || len(s.nodes) > 1 || len(s.open) < 2 }

// waits tells whether that may change by itself.
func (s DNSSpread) waits() bool { return s.placed < s.wanted || s.free < 2 }

func spreadOf(ctx context.Context, t *task.Host) (s DNSSpread, err error) {
	list, err := t.Kube().List(ctx, "deployments,pods", "--namespace="+kube.SystemNamespace, dnsSelector)
	if err != nil {
		return s, err
	}
	nodes, err := t.Kube().Nodes(ctx)
	if err != nil {
		return s, err
	}
	for _, o := range list {
		if d, ok := o.(*appsv1.Deployment); ok {
			_, wanted := kube.Replicas(d)
			s.wanted += wanted
			continue
		}
		p, ok := o.(*corev1.Pod)
		if !ok || kube.IsPodOver(p) {
			continue
		}
		s.names = append(s.names, p.Name)
		if node := p.Spec.NodeName; node != "" {
			s.placed++
			if !slices.Contains(s.nodes, node) {
				s.nodes = append(s.nodes, node)
			}
		}
	}
	for _, n := range nodes {
		if t.Site.LeftOut(n.Name) || kube.NodeCondition(&n, corev1.NodeReady).Status == corev1.ConditionUnknown || slices.ContainsFunc(n.Spec.Taints, keepsDNSAway) {
			continue
		}
		s.open = append(s.open, n.Name)
		if kube.IsNodeReady(&n) {
			s.free++
		}
	}
	slices.Sort(s.open)
	return s, nil
}

// keepsDNSAway tells whether a taint keeps CoreDNS from a node also when the node is ready. It bears the one of control planes.
func keepsDNSAway(t corev1.Taint) bool {
	passing := []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/network-unavailable"}
	return t.Effect != "PreferNoSchedule" && t.Key != kube.ControlPlaneLabel && !slices.Contains(passing, t.Key)
}
