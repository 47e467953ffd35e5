package node

import (
	"path"
	"slices"
	"strings"
)

// A CertificateKind says what a certificate of a cluster is for, and so who renews it.
type CertificateKind int

// The kinds of certificates.
const (
	UnknownCertificate        CertificateKind = iota
	KubeadmCertificate                        // kubeadm makes and renews it
	PKICertificate                            // beside kubeadm's, by somebody else
	KubeconfigCertificate                     // in a kubeconfig of kubeadm's for a control plane
	KubeletFirstCertificate                   // in the kubelet's kubeconfig, until it has another one
	KubeletClientCertificate                  // the kubelet renews it
	KubeletServingCertificate                 // the API server does not look at it
	RegistryCertificate                       // of the site's registry
	EtcdCertificate                           // of etcd beside the cluster, and of its clients
)

// InKubernetesPKI reports whether the certificate is in kubeadm's directory.
func (k CertificateKind) InKubernetesPKI() bool {
	return k == KubeadmCertificate || k == PKICertificate
}

const kubernetesPKI = "/etc/kubernetes/pki"

// certificatePlaces returns the files and directories in which a machine has the certificates of a cluster.
func certificatePlaces() map[string]CertificateKind {
	return map[string]CertificateKind{
		kubernetesPKI:                                     PKICertificate, // or KubeadmCertificate: see Kind
		kubernetesPKI + "/etcd":                           PKICertificate,
		"/etc/kubernetes/admin.conf":                      KubeconfigCertificate,
		"/etc/kubernetes/super-admin.conf":                KubeconfigCertificate,
		"/etc/kubernetes/controller-manager.conf":         KubeconfigCertificate,
		"/etc/kubernetes/scheduler.conf":                  KubeconfigCertificate,
		"/etc/kubernetes/kubelet.conf":                    KubeletFirstCertificate,
		"/var/lib/kubelet/pki/kubelet-client-current.pem": KubeletClientCertificate,
		"/var/lib/kubelet/pki/kubelet-server-current.pem": KubeletServingCertificate,
		"/var/lib/kubelet/pki/kubelet.crt":                KubeletServingCertificate,
		"/etc/kkbundle/registry":                          RegistryCertificate,
		"/etc/kkbundle/etcd":                              EtcdCertificate,
		"/etc/kkbundle/etcd-client":                       EtcdCertificate,
	}
}

// CertificatePlaces returns the files and directories in which a machine has the certificates of a cluster, for
// Probe.Certificates. With kinds, only those of these.
func CertificatePlaces(kinds ...CertificateKind) []string {
	var list []string
	for name, kind := range certificatePlaces() {
		if kinds == nil || slices.Contains(kinds, kind) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// Kind returns what the certificate is for, by its path.
func (c Certificate) Kind() CertificateKind {
	places := certificatePlaces()
	kind, ok := places[c.Path]
	if !ok {
		kind = places[path.Dir(c.Path)]
	}
	if name := strings.TrimPrefix(c.Path, kubernetesPKI+"/"); kind == PKICertificate &&
		slices.Contains(kubeadmCertificates(), name) {
		return KubeadmCertificate
	}
	return kind
}

// kubeadmCertificates returns the names of kubeadm's certificates below its directory (kubeadm init phase certs).
func kubeadmCertificates() []string {
	return []string{
		"ca.crt", "apiserver.crt", "apiserver-kubelet-client.crt", "apiserver-etcd-client.crt", "front-proxy-ca.crt",
		"front-proxy-client.crt",
		"etcd/ca.crt", "etcd/server.crt", "etcd/peer.crt", "etcd/healthcheck-client.crt",
	}
}

// ClusterCertificates returns the certificates at CertificatePlaces, and those there that cannot be read.
func (f *Facts) ClusterCertificates() []Certificate {
	return slices.DeleteFunc(slices.Clone(f.Certificates), func(c Certificate) bool {
		return c.Kind() == UnknownCertificate || c.NotAfter.IsZero() && c.Problem == ""
	})
}
