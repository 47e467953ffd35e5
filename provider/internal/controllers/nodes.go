package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A NodeError means that a machine's node was not found, or is another machine's.
type NodeError struct{ Message string }

func (e *NodeError) Error() string { return e.Message }

// WorkloadNodes are the nodes of workload clusters, reached with the kubeconfig that Cluster API keeps for each.
type WorkloadNodes struct{ Client client.Reader }

// answer is the longest time that an API server is waited for.
const answer = 10 * time.Second

// Identify implements Nodes.
func (w WorkloadNodes) Identify(ctx context.Context, cluster types.NamespacedName, node Node) error {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	api, err := w.api(ctx, cluster)
	if err != nil {
		return err
	}
	return identify(ctx, api.Nodes(), cluster.Name, node)
}

// api returns a client of a cluster.
func (w WorkloadNodes) api(ctx context.Context, cluster types.NamespacedName) (corev1client.CoreV1Interface, error) {
	config, err := w.config(ctx, cluster)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of cluster %s: %w", cluster.Name, err)
	}
	api, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of cluster %s: %w", cluster.Name, err)
	}
	return api, nil
}

// config reads the kubeconfig that Cluster API's control plane provider keeps in a Secret.
func (w WorkloadNodes) config(ctx context.Context, cluster types.NamespacedName) (*rest.Config, error) {
	name := secret.Name(cluster.Name, secret.Kubeconfig)
	var s corev1.Secret
	if err := w.Client.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: name}, &s); err != nil {
		return nil, err
	}
	config, err := restConfig(s.Data[secret.KubeconfigDataName])
	if err != nil {
		return nil, fmt.Errorf("Secret %s: %w", name, err) //nolint:staticcheck // Secret is a kind
	}
	config.Timeout = answer
	return config, nil
}

// restConfig reads a kubeconfig. Whoever may write Secrets in a namespace must not make the manager run programs or
// read its own files.
func restConfig(kubeconfig []byte) (*rest.Config, error) {
	parsed, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	var names string
	for _, u := range parsed.AuthInfos {
		switch {
		case u.Exec != nil || u.AuthProvider != nil:
			names = "a program"
		case u.TokenFile != "" || u.ClientCertificate != "" || u.ClientKey != "":
			names = "a file"
		case u.Impersonate != "":
			names = "another user"
		}
	}
	for _, c := range parsed.Clusters {
		switch {
		case c.CertificateAuthority != "":
			names = "a file"
		case c.InsecureSkipTLSVerify:
			names = "no verification"
		}
	}
	if names != "" {
		return nil, fmt.Errorf("the kubeconfig names %s; it may only have certificates, keys and tokens", names)
	}
	return clientcmd.RESTConfigFromKubeConfig(kubeconfig)
}

func identify(ctx context.Context, api corev1client.NodeInterface, cluster string, want Node) error {
	node, err := nodeOf(ctx, api, want.Name, want.Addresses)
	switch {
	case err != nil:
		return fmt.Errorf("nodes of cluster %s: %w", cluster, err)
	case node == nil:
		return &NodeError{fmt.Sprintf("cluster %s has no node %s, and none with the address %s yet", cluster, want.Name, strings.Join(want.Addresses, " or "))}
	case node.Spec.ProviderID == want.ProviderID:
		return nil
	case node.Spec.ProviderID != "":
		return &NodeError{fmt.Sprintf("node %s of cluster %s has the providerID %s of another machine; delete the node if that machine is gone", node.Name, cluster, node.Spec.ProviderID)}
	}
	change, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "spec": map[string]any{"providerID": want.ProviderID}})
	if err != nil {
		return err
	}
	if _, err := api.Patch(ctx, node.Name, types.StrategicMergePatchType, change, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("node %s of cluster %s: %w", node.Name, cluster, err)
	}
	return nil
}

// nodeOf returns the node with the machine's name, else the one with its address; nil if there is none.
func nodeOf(ctx context.Context, api corev1client.NodeInterface, name string,
	addresses []string,
) (*corev1.Node, error) {
	node, err := api.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return node, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	all, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for n := range all.Items {
		for _, a := range all.Items[n].Status.Addresses {
			if a.Type == corev1.NodeInternalIP && slices.Contains(addresses, a.Address) {
				return &all.Items[n], nil
			}
		}
	}
	return nil, nil //nolint:nilnil // there is none
}
