package installer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/manifest"
)

// How long the cluster may take to be as it shall be after everything was installed.
const (
	nodesWait  = 3 * time.Minute
	podsWait   = 5 * time.Minute
	dnsWait    = time.Minute
	peerWait   = 2 * time.Minute
	settleWait = 30 * time.Second
)

// nodesAreReady checks that the inventory's hosts are nodes, Ready and of the right version. Hosts that this run is not
// about need not be nodes yet.
func (t *Target) nodesAreReady(ctx context.Context) error {
	nodes, err := t.kube().Nodes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, host := range t.run.withRole(manifest.RoleCluster) {
		n := kube.FindNode(nodes, host.Name)
		switch version := t.run.cluster.Kubernetes.Version; {
		case t.run.leftOut(host.Name): // that was said already
		case n == nil && !t.run.isWanted(host):
		case n == nil:
			errs = append(errs, fmt.Errorf("%s is not a node of the cluster", host.Name))
		case !kube.IsNodeReady(n) && t.run.cluster.CNI.Type != manifest.NetworkNone:
			errs = append(errs, fmt.Errorf("node %s is not ready: %s", host.Name, kube.NodeCondition(n, corev1.NodeReady).Message))
		case n.Status.NodeInfo.KubeletVersion != version:
			errs = append(errs, fmt.Errorf("node %s runs kubelet %s, not %s", host.Name, n.Status.NodeInfo.KubeletVersion, version))
		}
	}
	return errors.Join(errs...)
}

// podsAreReady checks the pods of Kubernetes itself and of the pod network.
func (t *Target) podsAreReady(ctx context.Context) error {
	var errs []error
	for _, namespace := range ownNamespaces(t.run.cluster) {
		pods, err := t.kube().Pods(ctx, "--namespace="+namespace)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			errs = append(errs, fmt.Errorf("there are no pods in %s", namespace))
		}
		for _, p := range pods {
			if !kube.IsPodOver(&p) && !proves(&p) && !t.run.leftOut(p.Spec.NodeName) && !kube.IsPodReady(&p) {
				errs = append(errs, fmt.Errorf("pod %s/%s on %s is not ready: %s",
					namespace, p.Name, orDash(p.Spec.NodeName), kube.NotReadyReason(&p)))
			}
		}
	}
	return errors.Join(errs...)
}

// proves reports whether a pod belongs to a proof, which an interrupted run may have left.
func proves(p *corev1.Pod) bool {
	_, ok := p.Labels[proofLabel]
	return ok
}

// resolver asks a name server over connections that the host makes. Go's own resolver speaks the protocol; that it
// believes to have opened a connection to one of this machine's servers does no harm.
func (t *Target) resolver(server string) *net.Resolver {
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return t.dial(ctx, "tcp", server) // a connection that is no packet connection is used as TCP
		},
	}
}

// dnsAnswers asks the cluster's DNS, by its service address, for the address of the API server's service. It proves on
// this host that services are reached, and with them pods on other hosts.
func (t *Target) dnsAnswers(ctx context.Context) error {
	services := t.run.cluster.Kubernetes.ServiceCIDR[0]
	want, server := nth(services, apiServiceIndex), nth(services, dnsServiceIndex)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	name := "kubernetes.default.svc." + clusterDomain + "."
	family := "ip4"
	if want.Is6() {
		family = "ip6"
	}
	found, err := t.resolver(net.JoinHostPort(server.String(), "53")).LookupNetIP(ctx, family, name)
	if err != nil {
		return fmt.Errorf("the cluster's DNS at %s does not answer on %s: %w", server, t.Name, err)
	}
	if !slices.Contains(found, want) {
		return fmt.Errorf("the cluster's DNS says that %s is %v, but it is %s", name, found, want)
	}
	return nil
}

// kubeadm gives the first address of the services to the API server and the tenth to DNS.
const (
	apiServiceIndex = 1
	dnsServiceIndex = 10
)

func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// imagesAreBundled checks that everything that an installation runs came from the bundle. What else runs in the cluster
// may have come later, from another one: that is worth a warning.
func (t *Target) imagesAreBundled(ctx context.Context) error {
	pods, err := t.kube().Pods(ctx, "--all-namespaces")
	if err != nil {
		return err
	}
	own := ownNamespaces(t.run.cluster)
	if t.run.distribution.ownImages {
		own = nil
	}
	for _, a := range t.run.cluster.Addons {
		own = append(own, a.Namespace)
	}
	var foreign, others []string
	for _, p := range pods {
		for _, c := range kube.Containers(&p) {
			if c.ImageID == "" {
				continue // it has not been pulled
			}
			_, hex, _ := strings.Cut(c.ImageID, "sha256:")
			if _, ok := t.run.Bundle.Stat(digest.NewDigestFromEncoded(digest.SHA256, hex)); ok {
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
		t.run.found(finding("verify-images", "", report.Warning, notBundled(others)))
	}
	if len(foreign) > 0 {
		return errors.New(notBundled(foreign))
	}
	return nil
}

func notBundled(images []string) string {
	return "images run that the bundle does not hold:\n  " + strings.Join(slices.Compact(slices.Sorted(slices.Values(images))), "\n  ")
}
