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
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// spreadWait limits the wait for ready nodes and scheduled pods. After it, DNS stays in place; the verification reports
// pods that do not start.
const spreadWait = 2 * time.Minute

// DNSSpreadTasks spreads kubeadm's CoreDNS if the cluster has a pod network.
func DNSSpreadTasks(c *manifest.Cluster) []task.Task {
	if !c.CNI.Type.Installed() {
		return nil
	}
	return []task.Task{DNSSpreadTask()}
}

// DNSSpreadTask distributes the CoreDNS pods over more than one node. The first ready node gets all of them; if it
// fails, no name resolves until Kubernetes evicts its pods after five minutes.
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
			if err != nil || s.isDone() {
				return err == nil, err
			}
			if same, err := t.HasFiles(ctx, s.crowdedFile()); err != nil || same {
				return err == nil, err
			}
			task.Because(ctx, "all CoreDNS pods are on one node")
			return false, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			moved, waits := "", errors.New("CoreDNS pods are not scheduled yet")
			err := task.Eventually(ctx, spreadWait, func(ctx context.Context) error {
				s, err := spreadOf(ctx, t)
				switch {
				case err != nil || s.isDone():
					return err
				case s.isPending():
					return waits
				case moved != "": // it was scheduled to the same node again: the others lack room
					return t.Write(ctx, s.crowdedFile())
				}
				// The other pod answers meanwhile; the scheduler prefers a node without one for the new pod.
				moved = s.names[len(s.names)-1]
				if _, err := t.Kubectl(ctx, "delete", "pod", "--namespace="+kube.SystemNamespace, "--ignore-not-found",
					"--wait=false", moved); err != nil {
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

// A dnsSpread is the distribution of the CoreDNS pods over the nodes.
type dnsSpread struct {
	wanted    int // replicas
	names     []string
	nodes     []string // distinct nodes with a pod
	scheduled int      // pods with a node
	eligible  []string // nodes that accept the pods once they are ready
	ready     int      // of eligible, those that are ready
}

// crowdedFile records that only one of these nodes has room: another try would not change that.
func (s dnsSpread) crowdedFile() task.File {
	return marks.DNSCrowded.File(fmt.Appendf(nil, "%s of %s\n", strings.Join(s.nodes, " "),
		strings.Join(s.eligible, " ")))
}

// isDone reports whether nothing is left to spread: the pods are on several nodes, or there is only one pod or eligible
// node. Recently deleted pods, such as after installing the pod network, may not be replaced yet.
func (s dnsSpread) isDone() bool { return s.wanted < 2 || len(s.nodes) > 1 || len(s.eligible) < 2 }

// isPending reports whether the state can still improve without intervention.
func (s dnsSpread) isPending() bool { return s.scheduled < s.wanted || s.ready < 2 }

func spreadOf(ctx context.Context, t *task.Host) (s dnsSpread, err error) {
	list, err := t.Kube().List(ctx, "deployments,pods", "--namespace="+kube.SystemNamespace, kube.DNSSelector)
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
			s.scheduled++
			if !slices.Contains(s.nodes, node) {
				s.nodes = append(s.nodes, node)
			}
		}
	}
	for _, n := range nodes {
		if t.Site.LeftOut(n.Name) || kube.NodeCondition(&n, corev1.NodeReady).Status == corev1.ConditionUnknown ||
			slices.ContainsFunc(n.Spec.Taints, repelsDNS) {
			continue
		}
		s.eligible = append(s.eligible, n.Name)
		if kube.IsNodeReady(&n) {
			s.ready++
		}
	}
	slices.Sort(s.eligible)
	return s, nil
}

// repelsDNS reports whether a taint keeps CoreDNS off a node even when the node is ready. CoreDNS tolerates the control
// plane's.
func repelsDNS(t corev1.Taint) bool {
	passing := []string{
		"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
		"node.kubernetes.io/network-unavailable",
	}
	return t.Effect != "PreferNoSchedule" && t.Key != kube.ControlPlaneLabel && !slices.Contains(passing, t.Key)
}
