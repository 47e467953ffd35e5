package controllers

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestIdentify: a node is found by name, else by address. One that is another machine's is left alone.
func TestIdentify(t *testing.T) {
	t.Parallel()
	node := func(name, address, id string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: id}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}},
		}}
	}
	api := fake.NewClientset(node("m1", "10.0.0.1", ""), node("server2", "10.0.0.2", ""), node("server3", "10.0.0.3", "kk:///site/old")).CoreV1().Nodes()
	for _, c := range []struct{ machine, address, node, problem string }{
		{"m1", "10.0.0.9", "m1", ""},
		{"m1", "10.0.0.9", "m1", ""}, // again
		{"m2", "10.0.0.2", "server2", ""},
		{"m3", "10.0.0.3", "server3", "has the providerID kk:///site/old of another machine; delete the node"},
		{"m4", "10.0.0.4", "", "cluster prod has no node m4, and none with the address 10.0.0.4 yet"},
	} {
		err := identify(t.Context(), api, "prod", Node{Name: c.machine, Addresses: []string{c.address}, ProviderID: "kk:///site/" + c.machine})
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v", c.machine, err)
		}
		if c.problem == "" {
			got, err := api.Get(t.Context(), c.node, metav1.GetOptions{})
			if err != nil || got.Spec.ProviderID != "kk:///site/"+c.machine {
				t.Errorf("%s: %v, %v", c.machine, got.Spec, err)
			}
		}
	}
}

// TestRestConfig: a kubeconfig that runs programs or reads files of the manager is refused.
func TestRestConfig(t *testing.T) {
	t.Parallel()
	kubeconfig := func(cluster, user string) []byte {
		return []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: \"https://10.0.0.1:6443\"" +
			cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\n")
	}
	if c, err := restConfig(kubeconfig(", certificate-authority-data: Q0E=", "token: t")); err != nil || c.Host != "https://10.0.0.1:6443" {
		t.Errorf("%v, %v", c, err)
	}
	for what, data := range map[string][]byte{
		"a program":       kubeconfig("", "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}"),
		"a file":          kubeconfig("", "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"),
		"another user":    kubeconfig("", "token: t, as: admin"),
		"no verification": kubeconfig(", insecure-skip-tls-verify: true", "token: t"),
	} {
		if _, err := restConfig(data); err == nil || !strings.Contains(err.Error(), "names "+what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := restConfig(nil); err == nil {
		t.Error("no kubeconfig was accepted")
	}
}
