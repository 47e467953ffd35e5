//go:build linux

package health

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestProofObjects(t *testing.T) {
	t.Parallel()
	nodes := []*task.Host{{Host: manifest.Host{Name: "cp1"}}, {Host: manifest.Host{Name: "node1"}}}
	objects := append(proofServices(nodes), proofPods(nodes, map[string][]string{
		proofName(0): {"10.233.1.1"},
		proofName(1): {"10.233.1.2", "fd00:233::2"},
	}, "registry.k8s.io/coredns/coredns:v1.12.1")...)
	got, err := kube.YAML(objects...)
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "proof.yaml", got)
}

func TestServiceObject(t *testing.T) {
	t.Parallel()
	got, err := kube.YAML(serviceObject(12345))
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Golden(t, "service.yaml", got)
}

func TestNth(t *testing.T) {
	t.Parallel()
	p := netip.MustParsePrefix("10.233.0.0/18")
	if got := task.NthAddress(p, apiServiceIndex).String() + " " +
		task.NthAddress(p, kube.DNSServiceIndex).String(); got != "10.233.0.1 10.233.0.10" {
		t.Error("got", got)
	}
}

func TestEtcdMetrics(t *testing.T) {
	t.Parallel()
	got := parseEtcdMetrics(`# HELP etcd_server_has_leader Whether or not a leader exists. 1 is existence, 0 is not.
etcd_server_has_leader 1
etcd_server_is_leader 1
etcd_mvcc_db_total_size_in_bytes 1.646592e+06
etcd_server_version{server_version="3.6.5"} 1
etcd_cluster_version{cluster_version="3.6"} 1
`)
	if want := (EtcdMetrics{true, true, "3.6.5", 1646592, "3.6"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestCertificatesThatAreNeeded(t *testing.T) {
	t.Parallel()
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"/etc/kubernetes/pki/ca.crt":       string(ca),
		"/etc/kubernetes/kubelet.conf":     "users: [{user: {client-certificate: /var/lib/kubelet/pki/x.pem}}]\n",
		"/etc/kubernetes/pki/broken.crt":   "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		"/var/lib/kubelet/pki/kubelet.crt": string(ca), // for nobody
	} {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
			os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	facts, err := node.CollectBelow(t.Context(), root, nil, node.Probe{
		Only:         true,
		Certificates: node.CertificatePlaces(),
	})
	if err != nil {
		t.Fatal(err)
	}
	all := facts.ClusterCertificates()
	if len(all) != 3 {
		t.Errorf("got %+v", all)
	}
	list := Needed(all)
	if len(list) != 1 || list[0].Path != "/etc/kubernetes/pki/ca.crt" || list[0].NotAfter.IsZero() {
		t.Errorf("got %+v", list)
	}
}

func TestFailedChecks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\nlivez check failed": "[-]etcd failed: reason withheld",
		"Internal Server Error": "Internal Server Error",
	} {
		if got := failedChecks(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// The verification asks for a name in the cluster's own domain.
func TestAPINameIsInTheDomain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "kubernetes.default.svc.cluster.local.",
		"dns: {domain: k8s.corp.example}\n": "kubernetes.default.svc.k8s.corp.example.",
	} {
		if got := apiName(tasktest.Cluster(t, text)); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}
