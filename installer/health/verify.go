package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// PodsWait and DNSWait bound the wait for ready pods and for an answer of the cluster's DNS.
const (
	PodsWait   = 5 * time.Minute
	DNSWait    = time.Minute
	peerWait   = 2 * time.Minute
	settleWait = 30 * time.Second
)

// NodesAreReady checks that the inventory's hosts are Ready nodes of the right version, new ones only within the limit.
func NodesAreReady(ctx context.Context, t *task.Host) error {
	nodes, err := t.Kube().Nodes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, host := range t.Site.WithRole(manifest.RoleCluster) {
		n := kube.FindNode(nodes, host.Name)
		switch version := t.Site.Cluster.Kubernetes.Version; {
		case t.Site.LeftOut(host.Name): // reported already
		case n == nil && !t.Site.IsWanted(host):
		case n == nil:
			errs = append(errs, fmt.Errorf("%s is not a node of the cluster", host.Name))
		case !kube.IsNodeReady(n) && t.Site.Cluster.CNI.Type.Installed():
			errs = append(errs, fmt.Errorf("node %s is not ready: %s", host.Name,
				kube.NodeCondition(n, corev1.NodeReady).Message))
		case n.Status.NodeInfo.KubeletVersion != version:
			errs = append(errs, fmt.Errorf("node %s runs kubelet %s, not %s", host.Name,
				n.Status.NodeInfo.KubeletVersion, version))
		}
	}
	return errors.Join(errs...)
}

// PodsAreReady checks the pods of Kubernetes and of the pod network.
func PodsAreReady(ctx context.Context, t *task.Host) error {
	var errs []error
	for _, namespace := range addon.OwnNamespaces(t.Site.Cluster) {
		pods, err := t.Kube().Pods(ctx, "--namespace="+namespace)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			errs = append(errs, fmt.Errorf("namespace %s has no pods", namespace))
		}
		for _, p := range pods {
			if !kube.IsPodOver(&p) && !isProof(&p) && !t.Site.LeftOut(p.Spec.NodeName) && !kube.IsPodReady(&p) {
				errs = append(errs, fmt.Errorf("pod %s/%s on %s is not ready: %s",
					namespace, p.Name, task.OrDash(p.Spec.NodeName), kube.NotReadyReason(&p)))
			}
		}
	}
	return errors.Join(errs...)
}

// isProof reports whether a pod belongs to a proof; an interrupted run may have left it.
func isProof(p *corev1.Pod) bool {
	_, ok := p.Labels[marks.ProofLabel]
	return ok
}

// resolver returns a resolver that asks a nameserver over connections from the host. Go's resolver also opens a socket
// for one of this machine's nameservers; that does no harm.
func resolver(t *task.Host, server string) *net.Resolver {
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return t.Dial(ctx, "tcp", server) // a connection that is no packet connection is used as TCP
		},
	}
}

// DNSAnswers asks the cluster's DNS, by its service address, for the address of the API server's service. An answer
// proves that this host reaches services and pods on other hosts.
func DNSAnswers(ctx context.Context, t *task.Host) error {
	services := t.Site.Cluster.Kubernetes.ServiceCIDR[0]
	want, server := task.NthAddress(services, apiServiceIndex), task.NthAddress(services, kube.DNSServiceIndex)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	name := apiName(t.Site.Cluster)
	family := "ip4"
	if want.Is6() {
		family = "ip6"
	}
	found, err := resolver(t, net.JoinHostPort(server.String(), "53")).LookupNetIP(ctx, family, name)
	if err != nil {
		return fmt.Errorf("the cluster's DNS at %s does not answer on %s: %w", server, t.Name, err)
	}
	if !slices.Contains(found, want) {
		return fmt.Errorf("the cluster's DNS resolves %s to %v instead of %s", name, found, want)
	}
	return nil
}

const apiServiceIndex = 1

// apiName returns the full name of the API server's service.
func apiName(c *manifest.Cluster) string { return "kubernetes.default.svc." + c.DNS.Domain + "." }

// ImagesAreBundled checks that all images of the installation came from the bundle. Others only get a warning, and so
// do those of a cluster that another tool made: its network and balancers are in kube-system, and stay. The
// registry may have made some of the bundle's indexes smaller: reduced returns the digests of these.
func ImagesAreBundled(ctx context.Context, t *task.Host, reduced func(context.Context,
	*task.Host) ([]digest.Digest, error),
) error {
	replaced, err := reduced(ctx, t)
	if err != nil {
		return err
	}
	pods, err := t.Kube().Pods(ctx, "--all-namespaces")
	if err != nil {
		return err
	}
	own := addon.OwnNamespaces(t.Site.Cluster)
	adopted, err := marks.OnControlPlane(ctx, t.Site, marks.IsAdopted)
	if err != nil {
		return err
	}
	if t.Site.Distribution.OwnImages || adopted {
		own = nil
	}
	for _, a := range t.Site.Cluster.Addons {
		own = append(own, a.Namespace)
	}
	var foreign, others []string
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue // a DaemonSet's next pod can be ready while the kubelet still cleans up after this one
		}
		for _, c := range kube.Containers(&p) {
			if c.ImageID == "" {
				continue // not pulled yet
			}
			_, hex, _ := strings.Cut(c.ImageID, "sha256:")
			d := digest.NewDigestFromEncoded(digest.SHA256, hex)
			if _, ok := t.Site.Bundle.Stat(d); ok || slices.Contains(replaced, d) {
				continue
			}
			text := fmt.Sprintf("%s (pod %s/%s)", c.ImageID, p.Namespace, p.Name)
			if slices.Contains(own, p.Namespace) {
				foreign = append(foreign, text)
			} else {
				others = append(others, text)
			}
		}
	}
	if len(others) > 0 {
		t.Site.AddFindings(NewFinding("verify-images", "", report.Warning, notBundled(others)))
	}
	if len(foreign) > 0 {
		return errors.New(notBundled(foreign))
	}
	return nil
}

func notBundled(images []string) string {
	return "images run that the bundle does not hold:\n  " +
		strings.Join(slices.Compact(slices.Sorted(slices.Values(images))), "\n  ")
}
