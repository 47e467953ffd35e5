package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Paths of kubeadm on control planes.
const (
	AdminConf    = "/etc/kubernetes/admin.conf"
	PKIDir       = "/etc/kubernetes/pki"
	ClusterCA    = PKIDir + "/ca.crt"
	ManifestsDir = "/etc/kubernetes/manifests"
)

// Names in every cluster.
const (
	SystemNamespace = "kube-system"
	PublicNamespace = "kube-public"
	// ControlPlaneLabel is also the key of the control planes' taint.
	ControlPlaneLabel = "node-role.kubernetes.io/control-plane"
	// DNSServiceIndex is the position of the DNS service's address in the service CIDR.
	DNSServiceIndex = 10
	// NodeDNSLink is the network interface of the DNS cache.
	NodeDNSLink = "nodelocaldns"
	// DNSSelector is kubectl's option for the objects of CoreDNS.
	DNSSelector = "--selector=k8s-app=kube-dns"
	// FieldManager owns the labels and annotations of the inventory. Server-side apply removes those that it no longer
	// applies and keeps those of others: https://kubernetes.io/docs/reference/using-api/server-side-apply/
	FieldManager = "kkbundle"
)

// CheckKubeconfig refuses fields that kubeadm does not write into admin.conf. A kubeconfig can run programs (exec) and
// read files (tokenFile, client-key and others) on this machine, and a host must not control that.
func CheckKubeconfig(data []byte) error {
	var allowed struct {
		APIVersion     string         `json:"apiVersion"`
		Kind           string         `json:"kind"`
		CurrentContext string         `json:"current-context"`
		Preferences    map[string]any `json:"preferences"`
		Clusters       []struct {
			Name    string `json:"name"`
			Cluster struct {
				Server        string `json:"server"`
				TLSServerName string `json:"tls-server-name"`
				CA            string `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Contexts []struct {
			Name    string `json:"name"`
			Context struct {
				Cluster   string `json:"cluster"`
				User      string `json:"user"`
				Namespace string `json:"namespace"`
			} `json:"context"`
		} `json:"contexts"`
		Users []struct {
			Name string `json:"name"`
			User struct {
				Certificate string `json:"client-certificate-data"`
				Key         string `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.UnmarshalStrict(data, &allowed); err != nil {
		return fmt.Errorf("%s has fields that kubeadm does not write; not copied to this machine: %w", AdminConf, err)
	}
	return nil
}

// Document is a YAML document of another program. kubeadm's types and those of the configuration of API server, kubelet
// and kube-proxy are in modules that are not linked, and the operator's settings are merged into them.
type Document = map[string]any

// NamespaceObject returns a Namespace.
func NamespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
