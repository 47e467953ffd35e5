package installer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	manifestsDir = "/etc/kubernetes/manifests"
	// configAnnotation is the digest of a static pod and of the configuration that it reads: the kubelet starts another pod
	// when it changes, and shows it in the cluster.
	configAnnotation = "kkbundle.io/config"
	// staticPodWait is how long a kubelet may take to end a static pod and to start the next: it looks every 20 seconds, and
	// pods have 30 to end.
	staticPodWait = 3 * time.Minute
)

// staticPod renders a pod of the host's network that the kubelet runs by itself, and config is what it reads.
func staticPod(name string, config []byte, spec document) ([]byte, error) {
	spec = merged(spec, document{"hostNetwork": true, "priorityClassName": "system-node-critical"})
	text, err := documents(spec)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	sum.Write(text)
	sum.Write(config)
	return documents(document{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata": document{
			"name": name, "namespace": "kube-system", "labels": document{"app.kubernetes.io/name": name},
			"annotations": document{configAnnotation: fmt.Sprintf("sha256:%x", sum.Sum(nil))},
		},
		"spec": spec,
	})
}

// staticPodRuns waits until the host's kubelet runs this static pod and not an earlier one. The kubelet shows it to the
// cluster under the name of pod and node.
func (t *Target) staticPodRuns(ctx context.Context, name string, file textFile) error {
	type pod struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Status struct {
			Conditions []condition `json:"conditions"`
		} `json:"status"`
	}
	var want pod
	if err := yaml.Unmarshal(file.data, &want); err != nil {
		return fmt.Errorf("static pod %s: %w", name, err)
	}
	lead := t.run.firstControlPlane()
	return eventually(ctx, staticPodWait, func(ctx context.Context) error {
		var is pod
		if err := lead.kubectlJSON(ctx, &is, "get", "pod", name+"-"+t.Name, "--namespace=kube-system"); err != nil {
			return err
		}
		ready := slices.ContainsFunc(is.Status.Conditions, func(c condition) bool { return c.Type == "Ready" && c.Status == "True" })
		if !ready || is.Metadata.Annotations[configAnnotation] != want.Metadata.Annotations[configAnnotation] {
			return fmt.Errorf("pod %s of %s does not run yet as it shall: %s", name, t.Name, messageOf(is.Status.Conditions, "Ready"))
		}
		return nil
	})
}
