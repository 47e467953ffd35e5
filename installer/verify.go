package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// How long the cluster may take to be as it shall be after everything was installed.
const (
	nodesWait = 3 * time.Minute
	podsWait  = 5 * time.Minute
	dnsWait   = time.Minute
	peerWait  = 2 * time.Minute
)

// verifyTasks prove that the cluster works. They change nothing that lasts.
func verifyTasks() []Task {
	onFirst := func(name string, do func(ctx context.Context, t *Target) error) Task {
		return Task{Name: name, Roles: []manifest.Role{manifest.RoleControlPlane}, Where: First, Do: do}
	}
	return []Task{
		onFirst("verify-nodes", func(ctx context.Context, t *Target) error {
			return eventually(ctx, nodesWait, t.nodesAreReady)
		}),
		onFirst("verify-pods", func(ctx context.Context, t *Target) error {
			return eventually(ctx, podsWait, t.podsAreReady)
		}),
		{
			Name:  "verify-dns",
			Roles: []manifest.Role{manifest.RoleCluster},
			Do: func(ctx context.Context, t *Target) error {
				return eventually(ctx, dnsWait, t.dnsAnswers)
			},
		},
		networkTask(),
		onFirst("verify-images", func(ctx context.Context, t *Target) error { return t.imagesAreBundled(ctx) }),
	}
}

// What is read of the objects that kubectl prints.
type (
	objectMeta struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	}
	condition struct {
		Type    string `json:"type"`
		Status  string `json:"status"`
		Message string `json:"message"`
	}
	nodeObject struct {
		Metadata objectMeta `json:"metadata"`
		Status   struct {
			Conditions []condition `json:"conditions"`
			NodeInfo   struct {
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
			ClusterIP string `json:"clusterIP"`
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

// nodesAreReady checks that exactly the inventory's hosts are nodes, Ready and of the right version.
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
		case !ok:
			errs = append(errs, fmt.Errorf("%s is not a node of the cluster", host.Name))
		case !isTrue(n.Status.Conditions, "Ready"):
			errs = append(errs, fmt.Errorf("node %s is not ready: %s", host.Name, messageOf(n.Status.Conditions, "Ready")))
		case version != t.run.cluster.Kubernetes.Version:
			errs = append(errs, fmt.Errorf("node %s runs kubelet %s, not %s", host.Name, version, t.run.cluster.Kubernetes.Version))
		}
	}
	return errors.Join(errs...)
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
	for _, namespace := range []string{"kube-system", "kube-flannel"} {
		pods, err := t.pods(ctx, "--namespace="+namespace)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			errs = append(errs, fmt.Errorf("there are no pods in %s", namespace))
		}
		for _, p := range pods {
			if p.Status.Phase != "Succeeded" && !isTrue(p.Status.Conditions, "Ready") {
				errs = append(errs, fmt.Errorf("pod %s/%s on %s is not ready: %s",
					namespace, p.Metadata.Name, orDash(p.Spec.NodeName), p.reason()))
			}
		}
	}
	return errors.Join(errs...)
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
	found, err := t.resolver(net.JoinHostPort(server.String(), "53")).LookupNetIP(ctx, "ip4", name)
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

// imagesAreBundled checks that everything that runs came from the bundle.
func (t *Target) imagesAreBundled(ctx context.Context) error {
	pods, err := t.pods(ctx, "--all-namespaces")
	if err != nil {
		return err
	}
	var foreign []string
	for _, p := range pods {
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.ImageID == "" {
				continue // it has not been pulled
			}
			_, hex, _ := strings.Cut(c.ImageID, "sha256:")
			if _, ok := t.run.Bundle.Stat(digest.NewDigestFromEncoded(digest.SHA256, hex)); !ok {
				foreign = append(foreign, fmt.Sprintf("%s (pod %s/%s)", c.ImageID, p.Metadata.Namespace, p.Metadata.Name))
			}
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	slices.Sort(foreign)
	return fmt.Errorf("images run that the bundle does not hold:\n  %s", strings.Join(slices.Compact(foreign), "\n  "))
}

const (
	proofNamespace = "kkbundle-verify"
	proofPath      = stampDir + "/network-proof"
)

// networkTask proves that a pod on every node reaches a service whose pod is on the next node. The pods are CoreDNS,
// whose image every cluster has: each forwards questions to the service of the next one, which answers with its node's
// name. It is done once for a set of nodes, because it makes objects for a moment.
func networkTask() Task {
	return Task{
		Name:  "verify-network",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			return t.has(ctx, t.proofFile())
		},
		Do: func(ctx context.Context, t *Target) (err error) {
			defer func() {
				// Deleting waits until the pods are gone.
				_, gone := t.kubectl(context.WithoutCancel(ctx), "delete", "namespace", proofNamespace, "--ignore-not-found", "--timeout=2m")
				err = errors.Join(err, gone)
				if err == nil {
					err = t.write(ctx, t.proofFile())
				}
			}()
			return t.proveNetwork(ctx)
		},
	}
}

// proofFile says for which nodes the network was proven.
func (t *Target) proofFile() textFile {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s\n", t.run.cluster.Kubernetes.Version, t.run.cluster.CNI.Type)
	for _, n := range t.run.withRole(manifest.RoleCluster) {
		fmt.Fprintf(&b, "%s %s\n", n.Name, n.IP)
	}
	return textFile{proofPath, 0o600, b.Bytes()}
}

func (t *Target) proveNetwork(ctx context.Context) error {
	nodes := t.run.withRole(manifest.RoleCluster)
	image, err := catalog.ImageRef(t.run.cluster, "coredns")
	if err != nil {
		return err
	}
	services, err := documents(proofServices(nodes)...)
	if err != nil {
		return err
	}
	if err := t.kubectlApply(ctx, services); err != nil {
		return err
	}
	addresses, err := t.proofAddresses(ctx)
	if err != nil {
		return err
	}
	pods, err := documents(proofPods(nodes, addresses, image)...)
	if err != nil {
		return err
	}
	if err := t.kubectlApply(ctx, pods); err != nil {
		return err
	}
	return eventually(ctx, peerWait, func(ctx context.Context) error { return t.peersAnswer(ctx, nodes) })
}

// proofAddresses returns the services' addresses by the services' names.
func (t *Target) proofAddresses(ctx context.Context) (map[string]string, error) {
	var list struct {
		Items []serviceObject `json:"items"`
	}
	err := t.kubectlJSON(ctx, &list, "get", "services", "--namespace="+proofNamespace)
	addresses := map[string]string{}
	for _, s := range list.Items {
		addresses[s.Metadata.Name] = s.Spec.ClusterIP
	}
	return addresses, err
}

// Ports of the proof's pods.
const (
	answerPort  = 5353 // answers with the node's name
	forwardPort = 5354 // asks the next pod's service
	healthPort  = 5380
)

func proofName(i int) string { return "node-" + strconv.Itoa(i) }

func proofServices(nodes []*Target) []document {
	docs := []document{{"apiVersion": "v1", "kind": "Namespace", "metadata": document{"name": proofNamespace}}}
	for i := range nodes {
		docs = append(docs, document{
			"apiVersion": "v1",
			"kind":       "Service",
			"metadata":   document{"name": proofName(i), "namespace": proofNamespace},
			"spec": document{
				"selector": document{"kkbundle.io/verify": proofName(i)},
				"ports": []any{
					document{"name": "dns-tcp", "protocol": "TCP", "port": 53, "targetPort": answerPort},
				},
			},
		})
	}
	return docs
}

func proofPods(nodes []*Target, addresses map[string]string, image string) []document {
	var docs []document
	for i, n := range nodes {
		next := addresses[proofName((i+1)%len(nodes))]
		config := fmt.Sprintf(`.:%d {
	template IN TXT . {
		answer "{{ .Name }} 0 IN TXT %s"
	}
	health :%d
}
.:%d {
	forward . %s {
		force_tcp
	}
}
`, answerPort, n.Name, healthPort, forwardPort, next)
		docs = append(docs,
			document{
				"apiVersion": "v1",
				"kind":       "ConfigMap",
				"metadata":   document{"name": proofName(i), "namespace": proofNamespace},
				"data":       document{"Corefile": config},
			},
			proofPod(proofName(i), n.Name, image))
	}
	return docs
}

func proofPod(name, nodeName, image string) document {
	return document{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata": document{
			"name": name, "namespace": proofNamespace, "labels": document{"kkbundle.io/verify": name},
		},
		"spec": document{
			"nodeName":                      nodeName,
			"restartPolicy":                 "Always",
			"terminationGracePeriodSeconds": 0,
			"automountServiceAccountToken":  false,
			"enableServiceLinks":            false,
			"tolerations":                   []any{document{"operator": "Exists"}},
			"containers": []any{document{
				"name":  "coredns",
				"image": image,
				"args":  []any{"-conf", "/etc/coredns/Corefile"},
				"securityContext": document{
					"allowPrivilegeEscalation": false,
					"readOnlyRootFilesystem":   true,
					// As in kubeadm's deployment: the binary asks for this one, and cannot be run without it.
					"capabilities": document{"add": []any{"NET_BIND_SERVICE"}, "drop": []any{"ALL"}},
				},
				"readinessProbe": document{
					"httpGet": document{"path": "/health", "port": healthPort}, "periodSeconds": 1,
				},
				"volumeMounts": []any{document{"name": "config", "mountPath": "/etc/coredns", "readOnly": true}},
			}},
			"volumes": []any{document{"name": "config", "configMap": document{"name": name}}},
		},
	}
}

// peersAnswer asks every pod, from its own host, for the name of the next pod's node.
func (t *Target) peersAnswer(ctx context.Context, nodes []*Target) error {
	pods, err := t.pods(ctx, "--namespace="+proofNamespace)
	if err != nil {
		return err
	}
	byNode := map[string]podObject{}
	for _, p := range pods {
		byNode[p.Spec.NodeName] = p
	}
	return t.run.onAll(nodes, func(i int, n *Target) error {
		return n.peerAnswers(ctx, byNode[n.Name], nodes[(i+1)%len(nodes)].Name)
	})
}

func (t *Target) peerAnswers(ctx context.Context, pod podObject, next string) error {
	if !isTrue(pod.Status.Conditions, "Ready") {
		return fmt.Errorf("the pod that proves the network on %s is not ready: %s", t.Name, pod.reason())
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	server := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(forwardPort))
	texts, err := t.resolver(server).LookupTXT(ctx, "node.kkbundle.invalid.")
	if err != nil {
		return fmt.Errorf("a pod on %s does not reach a service on %s: %w", t.Name, next, err)
	}
	if !slices.Contains(texts, next) {
		return fmt.Errorf("a pod on %s reached %v through a service on %s", t.Name, texts, next)
	}
	return nil
}
