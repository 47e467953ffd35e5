package kube

import (
	"context"
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ConfigAnnotation is the digest of a static pod and of the configuration that it reads. When it changes, the kubelet starts
// another pod. The kubelet shows it in the cluster.
const ConfigAnnotation = "kkbundle.io/config"

// StaticPod renders a pod of the host's network that the kubelet runs without the API server. config is the configuration that
// the pod reads.
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

// StaticPodDigest returns the digest in a static pod that StaticPod has rendered.
func StaticPodDigest(manifest []byte) (string, error) {
	var pod metav1.PartialObjectMetadata
	err := yaml.Unmarshal(manifest, &pod)
	return pod.Annotations[ConfigAnnotation], err
}

// StaticPodRuns returns nil when the kubelet of a node runs the static pod with this digest, and not an earlier one. The kubelet
// shows the pod to the cluster under the name of pod and node.
func (c Client) StaticPodRuns(ctx context.Context, name, node, digest string) error {
	var pod corev1.Pod
	if err := c.Get(ctx, &pod, "pod", name+"-"+node, "--namespace="+metav1.NamespaceSystem); err != nil {
		return err
	}
	if !IsPodReady(&pod) || pod.Annotations[ConfigAnnotation] != digest {
		return fmt.Errorf("pod %s of %s does not run yet as it shall: %s", name, node, readiness(&pod).Message)
	}
	return nil
}
