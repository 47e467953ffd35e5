package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

const (
	// proofLabel is what the proof's objects have. They are in kube-system: a namespace of their own would take five seconds to
	// be deleted (namespaceDeletionGracePeriod of
	// https://github.com/kubernetes/kubernetes/blob/v1.34.3/pkg/controller/namespace/namespace_controller.go).
	proofLabel = "kkbundle.io/verify"
	proofPath  = stampDir + "/network-proof"
)

// networkTask proves that a pod on every node reaches a service whose pod is on the next node, by each family of addresses. The pods are CoreDNS,
// whose image every cluster has: each forwards questions to the service of the next one, which answers with its node's
// name. It is done once for a set of nodes, because it makes objects for a moment. Nodes that a limited run leaves out,
// and cannot ask, are left out.
func networkTask() Task {
	return Task{
		Name:  "verify-network",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: First,
		Done: func(ctx context.Context, t *Target) (bool, error) {
			nodes, err := t.run.members(ctx)
			if err != nil {
				return false, err
			}
			return t.has(ctx, t.run.proofFile(nodes))
		},
		Do: func(ctx context.Context, t *Target) error {
			nodes, err := t.run.members(ctx)
			if err != nil {
				return err
			}
			// A run that was killed may have left pods, which cannot be changed into others.
			if err := t.forgetProof(ctx); err != nil {
				return err
			}
			err = t.proveNetwork(ctx, nodes)
			if err := errors.Join(err, t.forgetProof(context.WithoutCancel(ctx))); err != nil {
				return err
			}
			return t.write(ctx, t.run.proofFile(nodes))
		},
	}
}

// forgetProof deletes the proof's objects and waits until the pods are gone.
func (t *Target) forgetProof(ctx context.Context) error {
	_, err := t.kubectl(ctx, "delete", "pods,services,configmaps", "--namespace="+systemNamespace, "--selector="+proofLabel, "--timeout=2m")
	return err
}

// proofFile says for which nodes the network was proven.
func (r *Site) proofFile(nodes []*Target) textFile {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s\n", r.cluster.Kubernetes.Version, r.cluster.CNI.Type)
	for _, n := range nodes {
		fmt.Fprintf(&b, "%s %s\n", n.Name, n.IP)
	}
	return textFile{proofPath, 0o600, b.Bytes()}
}

func (t *Target) proveNetwork(ctx context.Context, nodes []*Target) error {
	image, err := catalog.ImageRef(t.run.cluster, "coredns")
	if err != nil {
		return err
	}
	if err := t.applyObjects(ctx, proofServices(nodes)...); err != nil {
		return err
	}
	addresses, err := t.proofAddresses(ctx)
	if err != nil {
		return err
	}
	if err := t.applyObjects(ctx, proofPods(nodes, addresses, image)...); err != nil {
		return err
	}
	return eventually(ctx, peerWait, func(ctx context.Context) error { return t.peersAnswer(ctx, nodes) })
}

// proofAddresses returns the services' addresses, one of each family, by the services' names.
func (t *Target) proofAddresses(ctx context.Context) (map[string][]string, error) {
	var list corev1.ServiceList
	err := t.kube().Get(ctx, &list, "services", "--namespace="+systemNamespace, "--selector="+proofLabel)
	addresses := map[string][]string{}
	for _, s := range list.Items {
		addresses[s.Name] = s.Spec.ClusterIPs
	}
	return addresses, err
}

// Ports of the proof's pods.
const (
	answerPort  = 5353 // answers with the node's name
	forwardPort = 5354 // asks the next pod's service by its first address; the next port by its second
	healthPort  = 5380
)

func proofName(i int) string { return "kkbundle-verify-" + strconv.Itoa(i) }

// proofMeta is what an object of the proof is known by.
func proofMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: systemNamespace, Labels: map[string]string{proofLabel: name}}
}

func proofServices(nodes []*Target) []runtime.Object {
	var objects []runtime.Object
	for i := range nodes {
		objects = append(objects, &corev1.Service{
			ObjectMeta: proofMeta(proofName(i)),
			Spec: corev1.ServiceSpec{
				IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
				Selector:       map[string]string{proofLabel: proofName(i)},
				Ports:          []corev1.ServicePort{{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(answerPort)}},
			},
		})
	}
	return objects
}

func proofPods(nodes []*Target, addresses map[string][]string, image string) []runtime.Object {
	var objects []runtime.Object
	for i, n := range nodes {
		config := fmt.Sprintf(`.:%d {
	template IN TXT . {
		answer "{{ .Name }} 0 IN TXT %s"
	}
	health :%d
}
`, answerPort, n.Name, healthPort)
		for k, next := range addresses[proofName((i+1)%len(nodes))] {
			config += fmt.Sprintf(`.:%d {
	forward . %s {
		force_tcp
	}
}
`, forwardPort+k, next)
		}
		objects = append(objects,
			&corev1.ConfigMap{
				ObjectMeta: proofMeta(proofName(i)),
				Data:       map[string]string{"Corefile": config},
			},
			proofPod(proofName(i), n.Name, image))
	}
	return objects
}

func proofPod(name, nodeName, image string) *corev1.Pod {
	ready := kube.HTTPProbe("", "/health", healthPort)
	ready.PeriodSeconds = 1
	return &corev1.Pod{
		ObjectMeta: proofMeta(name),
		Spec: corev1.PodSpec{
			NodeName:                      nodeName,
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name:  "coredns",
				Image: image,
				Args:  []string{"-conf", "/etc/coredns/Corefile"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false),
					ReadOnlyRootFilesystem:   new(true),
					// As in kubeadm's deployment: the binary asks for this one, and cannot be run without it.
					Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_BIND_SERVICE"}, Drop: []corev1.Capability{"ALL"}},
				},
				ReadinessProbe: ready,
				VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/coredns", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{
				kube.ConfigVolume("config", corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}),
			},
		},
	}
}

// peersAnswer asks every pod, from its own host, for the name of the next pod's node.
func (t *Target) peersAnswer(ctx context.Context, nodes []*Target) error {
	pods, err := t.kube().Pods(ctx, "--namespace="+systemNamespace, "--selector="+proofLabel)
	if err != nil {
		return err
	}
	byNode := map[string]corev1.Pod{}
	for _, p := range pods {
		byNode[p.Spec.NodeName] = p
	}
	return t.run.onAll(nodes, func(i int, n *Target) error {
		return n.peerAnswers(ctx, byNode[n.Name], nodes[(i+1)%len(nodes)].Name)
	})
}

func (t *Target) peerAnswers(ctx context.Context, pod corev1.Pod, next string) error {
	if !kube.IsPodReady(&pod) {
		return fmt.Errorf("the pod that proves the network on %s is not ready: %s", t.Name, kube.NotReadyReason(&pod))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for k, services := range t.run.cluster.Kubernetes.ServiceCIDR {
		server := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(forwardPort+k))
		texts, err := t.resolver(server).LookupTXT(ctx, "node.kkbundle.invalid.")
		if err != nil {
			return fmt.Errorf("a pod on %s does not reach a service on %s by its address in %s: %w", t.Name, next, services, err)
		}
		if !slices.Contains(texts, next) {
			return fmt.Errorf("a pod on %s reached %v through a service on %s", t.Name, texts, next)
		}
	}
	return nil
}
