package begin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/manifest"
)

// keyPair makes an authority that is a server's and a client's certificate too.
func keyPair(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// etcdServer answers as etcd does, to clients with a certificate of the authority only.
func etcdServer(t *testing.T, cert, key []byte, answer http.HandlerFunc) string {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	server := httptest.NewUnstartedServer(answer)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert,
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func TestProvidedEtcd(t *testing.T) {
	t.Parallel()
	cert, key := keyPair(t)
	_, otherKey := keyPair(t)
	good := etcdServer(t, cert, key, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, `{"etcdserver":"3.5.24","etcdcluster":"3.5.0"}`)
	})
	strange := etcdServer(t, cert, key, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"etcdserver":"` + strings.Repeat("9", 1<<20)))
	})
	moved := etcdServer(t, cert, key, func(w http.ResponseWriter,
		r *http.Request,
	) {
		http.Redirect(w, r, good+"/version", http.StatusFound)
	})

	s := sitetest.NewSite(t, "cp1")
	files := map[string][]byte{"ca.crt": cert, "client.crt": cert, "client.key": key}
	s.Options.Values = func(path string) ([]byte, error) {
		if data, ok := files[path]; ok {
			return data, nil
		}
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	r := s.Run(t, nil)
	if known := providedEtcd(t.Context(), r); known != nil {
		t.Errorf("a cluster with an etcd of its own: %+v", known)
	}
	r.Cluster.Etcd = manifest.Etcd{
		Type: "provided", CA: "ca.crt", Cert: "client.crt", Key: "client.key",
		Endpoints: []string{good, strange, moved, "https://127.0.0.1:1"},
	}
	known := providedEtcd(t.Context(), r)
	if known.Problem != "" || len(known.Versions) != 4 {
		t.Fatalf("got %+v", known)
	}
	for i, v := range known.Versions {
		if i == 0 && (v.Version != "3.5.24" || v.Problem != "") || i > 0 && (v.Version != "" || v.Problem == "" ||
			len(v.Problem) > 500) {
			t.Errorf("%s: version %q, problem %q", v.Endpoint, v.Version, v.Problem)
		}
	}
	files["client.key"] = otherKey
	if known := providedEtcd(t.Context(), r); !strings.Contains(known.Problem, "client.crt with client.key") ||
		known.Versions != nil {
		t.Errorf("another key: %+v", known)
	}
	delete(files, "client.crt")
	if known := providedEtcd(t.Context(), r); !strings.Contains(known.Problem, "client.crt") {
		t.Errorf("a missing file: %+v", known)
	}
}

// TestPrecheckSaysWhatTheBundleLacks: a precheck reports it with everything else, an installation ends before it
// begins.
func TestPrecheckSaysWhatTheBundleLacks(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	r := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster, "runc", "pause"))
	if _, err := input(t.Context(), r); err == nil {
		t.Error("an installation would begin")
	}
	r.Operation = engine.Prechecking()
	in, err := input(t.Context(), r)
	if err != nil || len(in.Missing) != 2 || !in.Install || in.Inventory == nil {
		t.Fatalf("missing %q, %v", in.Missing, err)
	}
	for i, want := range []string{"file runc", "image pause"} {
		if !strings.Contains(in.Missing[i], want) {
			t.Errorf("%q, want %s", in.Missing[i], want)
		}
	}
}

// TestProbe: a host is asked by its own settings, for packages if the bundle has some, and for what takes long only
// if that is wanted.
func TestProbe(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1", "node1")
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  cp1: {address: 10.0.0.3, cluster: {etcd: {dataDir: /fast/etcd}}}
  node1: {address: 10.0.0.4, cluster: {kubernetes: {maxPods: 5000}}}
groups: {kube_control_plane: [cp1], kube_worker: [node1], image_registry: [cp1]}
`))
	if err != nil {
		t.Fatal(err)
	}
	s.Options.Inventory = inv
	ask := func(target int) node.Probe {
		r := s.Run(t, nil)
		r.Packages.Wanted = true
		return probe(r, r.Hosts[target], precheck.Host{Host: r.Hosts[target].Host})
	}
	p := ask(0)
	if p.Sync != "/fast/etcd" || !slices.Contains(p.Dirs, "/fast/etcd") {
		t.Errorf("the disk is measured in %q, of %q", p.Sync, p.Dirs)
	}
	for _, name := range []string{"conntrack", "conntrack-tools"} { // Debian's, and that of RPM
		if !slices.Contains(p.Packages, name) {
			t.Errorf("%s is not among %q", name, p.Packages)
		}
	}
	if p := ask(1); len(p.Ports) == 0 { // although its settings do not fit
		t.Errorf("node1 is asked for %+v", p)
	}
	s.Options.Selection.Skip = []string{"etcd-latency"}
	if p := ask(0); p.Sync != "" {
		t.Errorf("the disk is measured for nobody, in %s", p.Sync)
	}
	r := s.Run(t, nil)
	if p := probe(r, r.Hosts[0], precheck.Host{Host: r.Hosts[0].Host}); len(p.Packages) > 0 {
		t.Errorf("packages are asked for without a bundle of some: %q", p.Packages)
	}
}
