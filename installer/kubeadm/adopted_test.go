package kubeadm

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A kubelet keeps its arguments, and gets its node's address and name where it has none in kubeadm's file.
func TestArgumentsOfAdopted(t *testing.T) {
	t.Parallel()
	args := []argument{{"node-ip", "10.0.0.3"}, {"hostname-override", "cp1"}}
	for text, want := range map[string]string{
		"": "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.3 --hostname-override=cp1\"\n",
		"KUBELET_KUBEADM_ARGS=\"--cgroup-driver=systemd\"\n":                      "KUBELET_KUBEADM_ARGS=\"--cgroup-driver=systemd --node-ip=10.0.0.3 --hostname-override=cp1\"\n",
		"# theirs\nKUBELET_KUBEADM_ARGS='--node-ip 10.0.0.4'\nOTHER=a\n":          "# theirs\nOTHER=a\nKUBELET_KUBEADM_ARGS=\"--node-ip 10.0.0.4 --hostname-override=cp1\"\n",
		"KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.4 --hostname-override=other\"\n": "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.4 --hostname-override=other\"\n",
	} {
		if got := withArguments(text, args); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// A joining kubelet asks the DNS that is there: Kubespray's has another address than the one in the cluster's settings.
func TestDNSOfOthers(t *testing.T) {
	t.Parallel()
	service := func(ip string) corev1.Service { return corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: ip}} }
	for _, c := range []struct {
		setting  any
		services []corev1.Service
		want     string
	}{
		{[]any{"10.96.0.10"}, []corev1.Service{service("None"), service("10.96.0.3")}, "[10.96.0.3]"},
		{[]any{"10.96.0.10"}, []corev1.Service{service("10.96.0.3"), service("10.96.0.10")}, "[]"},
		{[]any{"169.254.25.10"}, []corev1.Service{service("10.96.0.3")}, "[]"},
		{[]any{"10.96.0.10"}, nil, "[]"},
	} {
		if got := fmt.Sprint(dnsOf(c.setting, c.services)); got != c.want {
			t.Errorf("%v with %d services: got %s, want %s", c.setting, len(c.services), got, c.want)
		}
	}
}
