package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/crypto/bcrypt"

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// A companyCA is a certificate authority of the site's operator, with the RSA keys that openssl writes.
type companyCA struct {
	cert        *x509.Certificate
	key         *rsa.PrivateKey
	pem, keyPEM []byte
}

const companyLife = 365 * 24 * time.Hour

func newCompanyCA(t *testing.T, name string) *companyCA {
	t.Helper()
	ca := &companyCA{cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"Lab Company"}},
		NotBefore: time.Now().Add(-time.Hour),
		NotAfter:  time.Now().Add(10 * companyLife), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}}
	ca.cert, ca.key, ca.pem, ca.keyPEM = sign(t, ca.cert, nil)
	return ca
}

// issue returns a certificate and key for a server and client with these addresses.
func (ca *companyCA) issue(t *testing.T, name string, addresses ...string) (cert, key []byte) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(companyLife),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, a := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(a))
	}
	_, _, cert, key = sign(t, template, ca)
	return cert, key
}

// sign signs a template with a new key by ca, or by itself.
func sign(t *testing.T, template *x509.Certificate,
	ca *companyCA,
) (*x509.Certificate, *rsa.PrivateKey, []byte, []byte) {
	t.Helper()
	const bits = 2048
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

// send writes a file on a host.
func (th *thread) send(t *testing.T, number int, path, mode string, content io.Reader) {
	t.Helper()
	th.feed(t, number, "mkdir -p $(dirname "+path+") && cat >"+path+" && chmod "+mode+" "+path, content)
}

// feed runs a shell line on a host with standard input.
func (th *thread) feed(t *testing.T, number int, line string, content io.Reader) {
	t.Helper()
	h, err := th.lab.Host(number)
	if err != nil {
		t.Fatal(err)
	}
	cmd := th.lab.SSH(t.Context(), h, line)
	cmd.Stdin = content
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %s: %v\n%s", h.Name, line, err, out)
	}
}

// sendFiles writes files on a host with mode 0600.
func (th *thread) sendFiles(t *testing.T, number int, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		th.send(t, number, name, "600", bytes.NewReader(data))
	}
}

// sendCommand puts one of the lab's commands into /srv/bin of a host.
func (th *thread) sendCommand(t *testing.T, number int, command string) {
	t.Helper()
	f, err := os.Open(filepath.Join(th.bin, command))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	th.send(t, number, "/srv/bin/"+command, "755", f)
}

// The login of the company's registry.
const (
	companyUser     = "site"
	companyPassword = "correct-horse-battery"
)

// useCompanyRegistry makes the cluster file of a scenario name the company's registry on a host. Its password comes
// from $SITE_REGISTRY.
func useCompanyRegistry(t *testing.T, dir, address string, ca *companyCA) {
	t.Helper()
	rewrite(t, filepath.Join(dir, "cluster.yaml"), "imageRegistry: {type: registry}",
		"imageRegistry: {type: existing, address: \""+address+"\", ca: registry-ca.pem, auth: {username: "+companyUser+
			", passwordEnv: SITE_REGISTRY}}")
	if err := os.WriteFile(filepath.Join(dir, "registry-ca.pem"), ca.pem, 0o644); err != nil {
		t.Fatal(err)
	}
}

// companyRegistry runs the CNCF registry on a host, with TLS and a login, as a company has one. Nothing of kkbundle
// is on the host.
func (th *thread) companyRegistry(t *testing.T, number int, ca *companyCA) {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(companyPassword), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := ca.issue(t, "registry", th.lab.Hosts[number-1].Address)
	th.sendCommand(t, number, "registry")
	th.sendFiles(t, number, map[string][]byte{
		"/srv/registry/tls.crt": cert, "/srv/registry/tls.key": key, "/srv/registry/htpasswd": []byte(companyUser +
			":" + string(hash) + "\n"),
		"/srv/registry/config.yml": []byte(`version: 0.1
storage: {filesystem: {rootdirectory: /srv/registry/data}}
http: {addr: ":5443", secret: of-the-lab, tls: {certificate: /srv/registry/tls.crt, key: /srv/registry/tls.key}}
auth: {htpasswd: {realm: company, path: /srv/registry/htpasswd}}
`),
	})
	th.on(t, number, "systemd-run --unit=company-registry /srv/bin/registry serve /srv/registry/config.yml")
	th.waitFor(t, time.Minute, "the company's registry asks for a login", number,
		"curl -sk https://127.0.0.1:5443/v2/ | grep -q UNAUTHORIZED")
}

// pushToCompany pushes the bundle into the company's registry.
func (th *thread) pushToCompany(t *testing.T, address string) {
	t.Helper()
	cmd := th.lab.Command(t.Context(), th.kkbundle, "push", "--registry", address, "--ca",
		filepath.Join(th.dir, "registry-ca.pem"),
		"--username", companyUser, "--password-stdin", th.bundle())
	cmd.Stdin = strings.NewReader(companyPassword + "\n")
	r := run(t, cmd).must(t, 0)
	t.Logf("push: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
}

// withCompany runs a command with a password of the company's registry, which must not be in its output.
func (th *thread) withCompany(t *testing.T, secret, command string, flags ...string) result {
	t.Helper()
	cmd := th.site(t, command, append(flags, "-c", filepath.Join(th.dir, "cluster.yaml"))...)
	cmd.Env = append(os.Environ(), "SITE_REGISTRY="+secret)
	r := run(t, cmd)
	if strings.Contains(r.stdout+r.stderr, secret) {
		t.Error("the output has the password")
	}
	return r
}

// companyEtcd runs etcd on a host, with TLS for clients,.
func (th *thread) companyEtcd(t *testing.T, number int, ca *companyCA) {
	t.Helper()
	address := th.lab.Hosts[number-1].Address
	cert, key := ca.issue(t, "etcd", address, "127.0.0.1")
	th.sendCommand(t, number, "etcd")
	th.sendFiles(t, number, map[string][]byte{
		"/srv/etcd/ca.crt": ca.pem, "/srv/etcd/tls.crt": cert,
		"/srv/etcd/tls.key": key,
	})
	th.on(t, number, "systemd-run --unit=company-etcd /srv/bin/etcd --name company --data-dir /srv/etcd/data --client-cert-auth --trusted-ca-file /srv/etcd/ca.crt"+
		" --cert-file /srv/etcd/tls.crt --key-file /srv/etcd/tls.key --listen-client-urls https://0.0.0.0:2379 --advertise-client-urls https://"+address+":2379")
	th.waitFor(t, time.Minute, "the company's etcd is healthy", number,
		"curl -fsS --cacert /srv/etcd/ca.crt --cert /srv/etcd/tls.crt --key /srv/etcd/tls.key https://127.0.0.1:2379/health | grep -q true")
}

// companyBalancer runs haproxy on a host in front of the API servers of the hosts with these numbers. It is Debian's
// haproxy.
func (th *thread) companyBalancer(t *testing.T, number int, servers ...int) {
	t.Helper()
	config := `global
  maxconn 1000
defaults
  mode tcp
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen api
  bind :8443
  option httpchk GET /readyz
  default-server check check-ssl verify none inter 1s fall 2 rise 1
`
	for _, s := range servers {
		h := th.lab.Hosts[s-1]
		config += "  server " + h.Name + " " + h.Address + ":6443\n"
	}
	root := th.rootOf(t, "docker.io/library/haproxy:"+software.HAProxyImageTag)
	defer root.Close()
	th.feed(t, number, "mkdir -p /srv/haproxy && tar -x -C /srv/haproxy", root)
	th.send(t, number, "/srv/haproxy/haproxy.cfg", "644", strings.NewReader(config))
	th.on(t, number, "systemd-run --unit=company-balancer chroot /srv/haproxy haproxy -db -f /haproxy.cfg")
	th.waitFor(t, time.Minute, "the company's balancer listens", number, "ss -ltn | grep -q :8443")
}

// rootOf returns the file system of one of the upstream's images as a tar stream.
func (th *thread) rootOf(t *testing.T, image string) io.ReadCloser {
	t.Helper()
	return mutate.Extract(th.image(t, image))
}

// image returns one of the upstream's images, for this machine.
func (th *thread) image(t *testing.T, image string) v1.Image {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(th.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	ref, err := name.ParseReference(th.upstream.Addr + "/" + image)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", filepath.Join(th.dir, "docker"))
	img, err := remote.Image(ref, remote.WithContext(t.Context()), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(&http.Transport{TLSClientConfig: &tls.Config{
			RootCAs:    roots,
			MinVersion: tls.VersionTLS12,
		}}))
	if err != nil {
		t.Fatal(err)
	}
	return img
}
