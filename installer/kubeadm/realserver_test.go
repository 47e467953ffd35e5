//go:build linux

package kubeadm

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/manifest"
)

// labProgram returns a program that the lab has built, or skips the test.
func labProgram(t *testing.T, pattern, name string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", pattern, name))
	if err != nil || len(found) == 0 {
		t.Skipf("the lab has not built %s", name)
	}
	return found[0]
}

// A realServer is an etcd and an API server of this machine.
type realServer struct {
	dir, etcd, api string
	stop           func()
}

// freeAddresses returns addresses that differ: each is held until all are known.
func freeAddresses(t *testing.T, n int) (addresses []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}

// background starts a program that ends with the test, and returns a function that ends it.
func background(t *testing.T, log string, args ...string) func() {
	t.Helper()
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Stdout, command.Stderr = out, out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = command.Wait(); close(done) }()
	stop := func() { cancel(); <-done; _ = out.Close() }
	t.Cleanup(stop)
	return stop
}

func newRealServer(t *testing.T) *realServer {
	t.Helper()
	free := freeAddresses(t, 3)
	s, peer := &realServer{dir: t.TempDir(), etcd: free[0], api: free[1]}, free[2]
	background(t, filepath.Join(s.dir, "etcd.log"), labProgram(t, "etcd-amd64-*", "etcd"), "--data-dir="+s.dir+"/etcd",
		"--unsafe-no-fsync",
		"--listen-client-urls=http://"+s.etcd, "--advertise-client-urls=http://"+s.etcd, "--listen-peer-urls=http://"+
			peer)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "tokens.csv", []byte("test,admin,admin\n"))
	s.write(t, "sa.key", pem.EncodeToMemory(&pem.Block{
		Type:  "RSA PRIVATE KEY",
		Bytes: x509.MarshalPKCS1PrivateKey(key),
	}))
	for name, d := range map[string]kube.Document{
		"admission.yaml":    AdmissionConfig(manifest.SecurityBaseline),
		"audit-policy.yaml": AuditPolicy(manifest.SecurityBaseline),
	} {
		data, err := kube.Documents(d)
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, name, data)
	}
	return s
}

func (s *realServer) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// restart starts the API server with an EncryptionConfiguration, as a baseline cluster has it otherwise.
func (s *realServer) restart(t *testing.T, encryption []byte) {
	t.Helper()
	if s.stop != nil {
		s.stop()
	}
	s.write(t, EncryptionFile, encryption)
	_, port, _ := net.SplitHostPort(s.api)
	s.stop = background(t, filepath.Join(s.dir, "api.log"), labProgram(t, "kubernetes-amd64-*", "kube-apiserver"),
		"--etcd-servers=http://"+s.etcd, "--secure-port="+port, "--bind-address=127.0.0.1", "--allow-privileged",
		"--cert-dir="+s.dir, "--authorization-mode=AlwaysAllow", "--token-auth-file="+s.dir+"/tokens.csv",
		"--service-account-issuer=https://a.example", "--service-account-key-file="+s.dir+"/sa.key",
		"--service-account-signing-key-file="+s.dir+"/sa.key",
		"--encryption-provider-config="+s.dir+"/"+EncryptionFile, "--admission-control-config-file="+s.dir+
			"/admission.yaml",
		"--audit-policy-file="+s.dir+"/audit-policy.yaml", "--audit-log-path="+s.dir+"/audit.log",
		"--service-cluster-ip-range=10.0.0.0/24")
	said := ""
	for range 600 { // five minutes: a busy machine
		out, err := s.kubectl(t, "", "get", "--raw=/readyz")
		if said = out; err == nil {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	log, _ := os.ReadFile(filepath.Join(s.dir, "api.log"))
	t.Fatalf("the API server does not start: %s\n%s", said, log[max(0, len(log)-2000):])
}

func (s *realServer) command(t *testing.T) []string {
	return []string{
		labProgram(t, "kubernetes-amd64-*", "kubectl"), "--server=https://" + s.api,
		"--insecure-skip-tls-verify", "--token=test",
	}
}

func (s *realServer) kubectl(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	whole := append(s.command(t), args...)
	command := exec.CommandContext(t.Context(), whole[0], whole[1:]...)
	command.Stdin = strings.NewReader(stdin)
	out, err := command.CombinedOutput()
	return string(out), err
}

// prefixes counts the Secrets in etcd by the key that encrypts them.
func (s *realServer) prefixes(t *testing.T) map[string]int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), labProgram(t, "etcdctl-amd64-*", "etcdctl"), "--endpoints=http://"+
		s.etcd, "get", "--prefix", "/registry/secrets/").Output()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for part := range bytes.SplitSeq(out, []byte("/registry/secrets/")) {
		if _, value, ok := bytes.Cut(part, []byte("\n")); ok {
			end := min(len(value), 60)
			name := string(value[:end])
			if rest, ok := strings.CutPrefix(name, "k8s:enc:secretbox:v1:"); ok {
				name, _, _ = strings.Cut(rest, ":")
			}
			counts[name]++
		}
	}
	return counts
}

// TestRotationOnARealServer takes an API server through the steps of a rotation: more Secrets than a page holds are
// encrypted, rewritten with the new key, and read without the old one.
func TestRotationOnARealServer(t *testing.T) {
	s := newRealServer(t)
	old, err := newEncryption()
	if err != nil {
		t.Fatal(err)
	}
	s.restart(t, old)
	const secrets = 230
	list := "apiVersion: v1\nkind: List\nitems:\n"
	for i := range secrets {
		// A Secret's own key is no token of the next page.
		list += fmt.Sprintf("- {apiVersion: v1, kind: Secret, metadata: {name: a%d, namespace: default}, immutable: %v, stringData: {continue: plain-%d}}\n", i, i%2 == 0, i)
	}
	if out, err := s.kubectl(t, list, "create", "--filename=-"); err != nil {
		t.Fatal(err, out[max(0, len(out)-500):])
	}
	if got := s.prefixes(t); got["kkbundle1"] != secrets || len(got) != 1 {
		t.Fatalf("before the rotation: %v", got)
	}
	config, err := parseEncryption(old)
	if err != nil {
		t.Fatal(err)
	}
	key := newRotationKey()
	for _, keys := range [][]encryptionKey{append(config.keys, key), append([]encryptionKey{key}, config.keys...)} {
		data, err := config.with(keys)
		if err != nil {
			t.Fatal(err)
		}
		s.restart(t, data)
	}
	script := append(host.Script("encrypt-secrets.sh", encryptSecretsScript, s.dir), s.command(t)...)
	if out, err := exec.CommandContext(t.Context(), script[0], script[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := s.prefixes(t); got[key.Name] != secrets || len(got) != 1 {
		t.Fatalf("after rewriting: %v", got)
	}
	data, err := config.with([]encryptionKey{key})
	if err != nil {
		t.Fatal(err)
	}
	s.restart(t, data)
	if out, err := s.kubectl(t, "", "get", "secrets", "--namespace=default", "--output=name"); err != nil ||
		strings.Count(out, "secret/") != secrets {
		t.Errorf("without the old key: %v, %s", err, out[max(0, len(out)-500):])
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "secrets-page*")); len(left) > 0 {
		t.Errorf("Secrets are left in %q", left)
	}
	audit, err := os.ReadFile(filepath.Join(s.dir, "audit.log"))
	if err != nil || !bytes.Contains(audit, []byte(`"name":"a7"`)) || bytes.Contains(audit, []byte("plain-7")) {
		t.Errorf("the audit log lacks a change of a Secret, or has its content (%d bytes, %v)", len(audit), err)
	}
	if out, err := s.kubectl(t, "", "create", "serviceaccount", "default"); err != nil {
		t.Fatal(err, out)
	}
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"a","image":"a","securityContext":{"privileged":true}}]}}`
	out, err := s.kubectl(t, pod, "create", "--dry-run=server", "--filename=-")
	if err != nil || !strings.Contains(out, `would violate PodSecurity "baseline:latest"`) {
		t.Errorf("a privileged pod causes no warning: %v, %s", err, out)
	}
}
