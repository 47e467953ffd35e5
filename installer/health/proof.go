package health

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
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// NetworkTask proves that a pod on every node reaches a service whose pod runs on the next node, in each address
// family. The pods run CoreDNS, whose image every cluster has: each forwards questions to the next pod's service, and
// that pod answers with its node's name. The proof creates objects for a moment, so it runs once for a set of nodes. It
// leaves out unreachable nodes of a limited run.
func NetworkTask() task.Task {
	return task.Task{
		Name:  "verify-network",
		Roles: []manifest.Role{manifest.RoleControlPlane},
		Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			nodes, err := member.Members(ctx, t.Site)
			if err != nil {
				return false, err
			}
			return t.HasFiles(ctx, proofFile(t.Site, nodes))
		},
		Do: func(ctx context.Context, t *task.Host) error {
			nodes, err := member.Members(ctx, t.Site)
			if err != nil {
				return err
			}
			// A killed run may have left pods, which cannot be changed into others.
			if err := deleteProof(ctx, t); err != nil {
				return err
			}
			err = proveNetwork(ctx, t, nodes)
			if err := errors.Join(err, deleteProof(context.WithoutCancel(ctx), t)); err != nil {
				return err
			}
			return t.Write(ctx, proofFile(t.Site, nodes))
		},
	}
}

// deleteProof deletes the proof's objects and waits until the pods are gone.
func deleteProof(ctx context.Context, t *task.Host) error {
	_, err := t.Kubectl(ctx, "delete", "pods,services,configmaps", "--namespace="+kube.SystemNamespace, "--selector="+
		marks.ProofLabel, "--timeout=2m")
	return err
}

// proofFile records the nodes for which the network was proven.
func proofFile(r *task.Site, nodes []*task.Host) task.File {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s\n", r.Cluster.Kubernetes.Version, r.Cluster.CNI.Type)
	for _, n := range nodes {
		fmt.Fprintf(&b, "%s %s\n", n.Name, n.IP)
	}
	return marks.NetworkProof.File(b.Bytes())
}

func proveNetwork(ctx context.Context, t *task.Host, nodes []*task.Host) error {
	image, err := catalog.ImageRef(t.Site.Cluster, "coredns")
	if err != nil {
		return err
	}
	if err := t.ApplyObjects(ctx, proofServices(nodes)...); err != nil {
		return err
	}
	addresses, err := proofAddresses(ctx, t)
	if err != nil {
		return err
	}
	if err := t.ApplyObjects(ctx, proofPods(nodes, addresses, image)...); err != nil {
		return err
	}
	return task.Eventually(ctx, peerWait, func(ctx context.Context) error { return peersAnswer(ctx, t, nodes) })
}

// proofAddresses returns the services' addresses, one of each family, by the services' names.
func proofAddresses(ctx context.Context, t *task.Host) (map[string][]string, error) {
	var list corev1.ServiceList
	err := t.Kube().Get(ctx, &list, "services", "--namespace="+kube.SystemNamespace, "--selector="+marks.ProofLabel)
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

// proofMeta returns the metadata of an object of the proof.
func proofMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: kube.SystemNamespace,
		Labels: map[string]string{marks.ProofLabel: name},
	}
}

func proofServices(nodes []*task.Host) []runtime.Object {
	var objects []runtime.Object
	for i := range nodes {
		objects = append(objects, &corev1.Service{
			ObjectMeta: proofMeta(proofName(i)),
			Spec: corev1.ServiceSpec{
				IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
				Selector:       map[string]string{marks.ProofLabel: proofName(i)},
				Ports: []corev1.ServicePort{{
					Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53,
					TargetPort: intstr.FromInt32(answerPort),
				}},
			},
		})
	}
	return objects
}

func proofPods(nodes []*task.Host, addresses map[string][]string, image string) []runtime.Object {
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
					Capabilities: &corev1.Capabilities{
						Add:  []corev1.Capability{"NET_BIND_SERVICE"},
						Drop: []corev1.Capability{"ALL"},
					},
				},
				ReadinessProbe: ready,
				VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/coredns", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{
				kube.ConfigVolume("config",
					corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}),
			},
		},
	}
}

// peersAnswer asks every pod, from its own host, for the name of the next pod's node.
func peersAnswer(ctx context.Context, t *task.Host, nodes []*task.Host) error {
	pods, err := t.Kube().Pods(ctx, "--namespace="+kube.SystemNamespace, "--selector="+marks.ProofLabel)
	if err != nil {
		return err
	}
	byNode := map[string]corev1.Pod{}
	for _, p := range pods {
		byNode[p.Spec.NodeName] = p
	}
	return t.Site.OnAll(nodes, func(i int, n *task.Host) error {
		return peerAnswers(ctx, n, byNode[n.Name], nodes[(i+1)%len(nodes)].Name)
	})
}

func peerAnswers(ctx context.Context, t *task.Host, pod corev1.Pod, next string) error {
	if !kube.IsPodReady(&pod) {
		return fmt.Errorf("the pod of the network proof on %s is not ready: %s", t.Name, kube.NotReadyReason(&pod))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for k, services := range t.Site.Cluster.Kubernetes.ServiceCIDR {
		server := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(forwardPort+k))
		texts, err := resolver(t, server).LookupTXT(ctx, "node.kkbundle.invalid.")
		if err != nil {
			return fmt.Errorf("a pod on %s does not reach a service on %s by its address in %s: %w", t.Name, next,
				services, err)
		}
		if !slices.Contains(texts, next) {
			return fmt.Errorf("a pod on %s reached %v through a service on %s", t.Name, texts, next)
		}
	}
	return nil
}
