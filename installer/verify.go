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

// What is read of the objects that kubectl prints.
type (
	objectMeta struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		Deleted     string            `json:"deletionTimestamp"`
	}
	condition struct {
		Type    string `json:"type"`
		Status  string `json:"status"`
		Message string `json:"message"`
	}
	taint struct {
		Key    string `json:"key"`
		Effect string `json:"effect"`
	}
	nodeObject struct {
		Metadata objectMeta `json:"metadata"`
		Spec     struct {
			Taints []taint `json:"taints"`
		} `json:"spec"`
		Status struct {
			Conditions []condition `json:"conditions"`
			Addresses  []struct {
				Type    string `json:"type"`
				Address string `json:"address"`
			} `json:"addresses"`
			NodeInfo struct {
				KubeletVersion string `json:"kubeletVersion"`
			} `json:"nodeInfo"`
		} `json:"status"`
	}
	podObject struct {
		Metadata objectMeta `json:"metadata"`
		Spec     struct {
			NodeName string `json:"nodeName"`
		} `json:"spec"`
		Status struct {
			Phase                 string            `json:"phase"`
			PodIP                 string            `json:"podIP"`
			Conditions            []condition       `json:"conditions"`
			ContainerStatuses     []containerStatus `json:"containerStatuses"`
			InitContainerStatuses []containerStatus `json:"initContainerStatuses"`
		} `json:"status"`
	}
	containerStatus struct {
		Name    string `json:"name"`
		Image   string `json:"image"`
		ImageID string `json:"imageID"`
		State   struct {
			Waiting *struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"waiting"`
		} `json:"state"`
	}
	serviceObject struct {
		Metadata objectMeta `json:"metadata"`
		Spec     struct {
			ClusterIPs []string `json:"clusterIPs"`
		} `json:"spec"`
	}
)

func isTrue(conditions []condition, kind string) bool {
	return slices.ContainsFunc(conditions, func(c condition) bool { return c.Type == kind && c.Status == "True" })
}

func (t *Target) nodes(ctx context.Context) ([]nodeObject, error) {
	var list struct {
		Items []nodeObject `json:"items"`
	}
	err := t.kubectlJSON(ctx, &list, "get", "nodes")
	return list.Items, err
}

func (t *Target) pods(ctx context.Context, args ...string) ([]podObject, error) {
	var list struct {
		Items []podObject `json:"items"`
	}
	err := t.kubectlJSON(ctx, &list, append([]string{"get", "pods"}, args...)...)
	return list.Items, err
}

// nodesAreReady checks that the inventory's hosts are nodes, Ready and of the right version. Hosts that this run is not
// about need not be nodes yet.
func (t *Target) nodesAreReady(ctx context.Context) error {
	nodes, err := t.nodes(ctx)
	if err != nil {
		return err
	}
	byName := map[string]nodeObject{}
	for _, n := range nodes {
		byName[n.Metadata.Name] = n
	}
	var errs []error
	for _, host := range t.run.withRole(manifest.RoleCluster) {
		n, ok := byName[host.Name]
		switch version := n.Status.NodeInfo.KubeletVersion; {
		case t.run.leftOut(host.Name): // that was said already
		case !ok && !t.run.isWanted(host):
		case !ok:
			errs = append(errs, fmt.Errorf("%s is not a node of the cluster", host.Name))
		case !isTrue(n.Status.Conditions, "Ready") && t.run.cluster.CNI.Type != manifest.NetworkNone:
			errs = append(errs, fmt.Errorf("node %s is not ready: %s", host.Name, messageOf(n.Status.Conditions, "Ready")))
		case version != t.run.cluster.Kubernetes.Version:
			errs = append(errs, fmt.Errorf("node %s runs kubelet %s, not %s", host.Name, version, t.run.cluster.Kubernetes.Version))
		}
	}
	return errors.Join(errs...)
}

// isSilent tells whether the node's kubelet has stopped to report.
func (n nodeObject) isSilent() bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c condition) bool { return c.Type == "Ready" && c.Status == "Unknown" })
}

func messageOf(conditions []condition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return c.Message
		}
	}
	return "it has not reported yet"
}

// podsAreReady checks the pods of Kubernetes itself and of the pod network.
func (t *Target) podsAreReady(ctx context.Context) error {
	var errs []error
	for _, namespace := range ownNamespaces(t.run.cluster) {
		pods, err := t.pods(ctx, "--namespace="+namespace)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			errs = append(errs, fmt.Errorf("there are no pods in %s", namespace))
		}
		for _, p := range pods {
			if !p.isOver() && !p.proves() && !t.run.leftOut(p.Spec.NodeName) && !isTrue(p.Status.Conditions, "Ready") {
				errs = append(errs, fmt.Errorf("pod %s/%s on %s is not ready: %s",
					namespace, p.Metadata.Name, orDash(p.Spec.NodeName), p.reason()))
			}
		}
	}
	return errors.Join(errs...)
}

// isOver tells whether a pod will never be ready and need not be: it has ended, was evicted and replaced, or is being
// deleted.
func (p podObject) isOver() bool {
	return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" || p.Metadata.Deleted != ""
}

// proves tells whether a pod is one of a proof's, which an interrupted run may have left.
func (p podObject) proves() bool {
	_, ok := p.Metadata.Labels[proofLabel]
	return ok
}

// reason says why a pod is not ready, in the words of what holds it up.
func (p podObject) reason() string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(c.Name+": "+w.Reason+": "+w.Message, ": ")
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status != "True" && c.Message != "" {
			return c.Message
		}
	}
	return p.Status.Phase
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
	pods, err := t.pods(ctx, "--all-namespaces")
	if err != nil {
		return err
	}
	own := ownNamespaces(t.run.cluster)
	if distributionOf(t.run.cluster).ownImages {
		own = nil
	}
	for _, a := range t.run.cluster.Addons {
		own = append(own, a.Namespace)
	}
	var foreign, others []string
	for _, p := range pods {
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.ImageID == "" {
				continue // it has not been pulled
			}
			_, hex, _ := strings.Cut(c.ImageID, "sha256:")
			if _, ok := t.run.Bundle.Stat(digest.NewDigestFromEncoded(digest.SHA256, hex)); ok {
				continue
			}
			text := fmt.Sprintf("%s (pod %s/%s)", c.ImageID, p.Metadata.Namespace, p.Metadata.Name)
			if slices.Contains(own, p.Metadata.Namespace) {
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
