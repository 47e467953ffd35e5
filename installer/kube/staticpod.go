package kube

import (
	"context"
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ConfigAnnotation is the digest of a static pod and its configuration: the kubelet replaces the pod when it changes.
const ConfigAnnotation = "kkbundle.io/config"

// StaticPod renders a static pod in the host's network. config is the content of the pod's configuration file.
func StaticPod(name string, config []byte, spec corev1.PodSpec) ([]byte, error) {
	spec.HostNetwork, spec.PriorityClassName = true, "system-node-critical"
	plain, err := plainOf(spec)
	if err != nil {
		return nil, err
	}
	text, err := Documents(plain)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	sum.Write(text)
	sum.Write(config)
	return YAML(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceSystem, Labels: map[string]string{"app.kubernetes.io/name": name},
			Annotations: map[string]string{ConfigAnnotation: fmt.Sprintf("sha256:%x", sum.Sum(nil))},
		},
		Spec: spec,
	})
}

// ControlPlanePods returns the names of the mirror pods that kubeadm's static pods have on a control plane.
func ControlPlanePods(node string, etcd bool) []string {
	pods := []string{"kube-apiserver-" + node, "kube-controller-manager-" + node, "kube-scheduler-" + node}
	if etcd {
		pods = append(pods, "etcd-"+node)
	}
	return pods
}

// StaticPodDigest returns the digest in the output of StaticPod.
func StaticPodDigest(manifest []byte) (string, error) {
	var pod metav1.PartialObjectMetadata
	err := yaml.Unmarshal(manifest, &pod)
	return pod.Annotations[ConfigAnnotation], err
}

// StaticPodRuns returns nil if a node's mirror pod of the static pod has this digest and is ready.
func (c Client) StaticPodRuns(ctx context.Context, name, node, digest string) error {
	var pod corev1.Pod
	if err := c.Get(ctx, &pod, "pod", name+"-"+node, "--namespace="+metav1.NamespaceSystem); err != nil {
		return err
	}
	if !IsPodReady(&pod) || pod.Annotations[ConfigAnnotation] != digest {
		return fmt.Errorf("static pod %s on %s is not ready or not current: %s", name, node, readiness(&pod).Message)
	}
	return nil
}
