package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/manifest"
)

const AdminConf = "/etc/kubernetes/admin.conf"

const ClusterCA = "/etc/kubernetes/pki/ca.crt"

// CheckKubeconfig refuses what kubeadm does not write into admin.conf. On this machine a kubeconfig can run programs (exec)
// and read files (tokenFile, client-key and others), and a host must not decide on that.
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
		return fmt.Errorf("%s is not as kubeadm writes it, and is not taken to this machine: %w", AdminConf, err)
	}
	return nil
}

const ClusterDomain = "cluster.local"

// Document is a YAML Document for another program, whose shape is that program's. kubeadm's types and those of the configuration of
// the API server, the kubelet and kube-proxy are in modules that are not linked, and what the operator writes is merged into them.
type Document = map[string]any

const PKIDir = "/etc/kubernetes/pki"

func NamespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

const ControlPlaneTaint = "node-role.kubernetes.io/control-plane"

// MarksManager owns, among the fields of a node, the labels and annotations of the inventory. What it owned and does not
// apply any more goes, and what others own stays:
// https://kubernetes.io/docs/reference/using-api/server-side-apply/
const MarksManager = "kkbundle"

// NodeDNSAddress is where it answers, KubeKey's and Kubespray's choice of a link-local address.
const NodeDNSAddress = "169.254.25.10"

const NodeDNSLink = "nodelocaldns"

// TakesServiceAddress tells whether the cache answers at the address of the cluster's DNS as well, so that the pods need not be
// told of it, and ask CoreDNS itself while the cache is away. That takes kube-proxy's iptables mode: the others have the address
// on an interface of their own, or see its packets first.
func TakesServiceAddress(c *manifest.Cluster) bool {
	return c.Kubernetes.ProxyMode == manifest.ProxyIPTables
}

// SystemNamespace is where what belongs to a cluster runs, unless its authors say otherwise.
const SystemNamespace = "kube-system"

const ManifestsDir = "/etc/kubernetes/manifests"

const System = "kube-system"

const Public = "kube-public"

const ControlLabel = "node-role.kubernetes.io/control-plane"

const DNSServiceIndex = 10
