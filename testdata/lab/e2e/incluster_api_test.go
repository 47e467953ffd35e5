package e2e

import (
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

	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestDeployInClusterAPI runs the genuine API server, etcd, controller manager and scheduler as processes, and no
// host: what deploy/incluster creates is real, and the kubelet is a stand-in.
func TestDeployInClusterAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the lab's software; see make e2e-one")
	}
	keepProcessResult(t, []string{"kubelet"}, nil)
	made, err := software.Build(t.Context(), software.Options{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	tests := compileTests(t, "./deploy/incluster")
	config := controlPlane(t, made.Bin)
	cmd := exec.CommandContext(t.Context(), tests, "-test.v", "-test.run=^TestAPIServer$")
	cmd.Env = append(os.Environ(), "KKBUNDLE_TEST_NODELESS="+config, "KKBUNDLE_TEST_PROGRAMS="+podPrograms(t))
	r := run(t, cmd)
	t.Logf("%s\n%s", r.stdout, r.stderr)
	if r.code != 0 || !strings.Contains(r.stdout, "--- PASS: TestAPIServer") {
		t.Errorf("exit code %d", r.code)
	}
}

// A server is an API server on the loopback address. The token guest-token is of a user without rights.
type server struct {
	dir, kubeconfig, accountKey string
}

// controlPlane starts an API server with a controller manager and a scheduler, and returns the kubeconfig.
func controlPlane(t *testing.T, bin string) string {
	t.Helper()
	s := apiServer(t, bin)
	background(t, s.dir, bin, "kube-controller-manager", "--kubeconfig="+s.kubeconfig,
		"--service-account-private-key-file="+s.accountKey,
		"--controllers=*,-node-lifecycle-controller", "--leader-elect=false", "--secure-port=0")
	background(t, s.dir, bin, "kube-scheduler", "--kubeconfig="+s.kubeconfig, "--leader-elect=false", "--secure-port=0")
	return s.kubeconfig
}

// apiServer starts etcd and an API server with more flags.
func apiServer(t *testing.T, bin string, more ...string) server {
	t.Helper()
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	token := rand.Text()
	ports := freePorts(t, 3)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	account := file("sa.key",
		string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	config := file("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, ports[0], token))
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	background(t, dir, bin, "etcd", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	background(t, dir, bin, "kube-apiserver", append(more, "--etcd-servers="+etcd,
		fmt.Sprintf("--secure-port=%d", ports[0]), "--bind-address=127.0.0.1",
		"--cert-dir="+filepath.Join(dir, "certs"), "--token-auth-file="+
			file("tokens", token+",admin,admin,system:masters\nguest-token,guest,guest\n"), "--authorization-mode=Node,RBAC",
		"--service-account-key-file="+account, "--service-account-signing-key-file="+account,
		"--service-account-issuer=https://kubernetes",
		"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none", "--allow-privileged")...)
	kubectl := filepath.Join(bin, "kubectl")
	ready := false
	for end := time.Now().Add(2 * time.Minute); !ready && time.Now().Before(end); time.Sleep(time.Second) {
		ready = exec.CommandContext(t.Context(), kubectl, "--kubeconfig", config, "get", "--raw",
			"/readyz").Run() == nil
	}
	if !ready {
		log, _ := os.ReadFile(filepath.Join(dir, "kube-apiserver.log"))
		t.Fatalf("the API server is not ready:\n%s", log)
	}
	return server{dir: dir, kubeconfig: config, accountKey: account}
}

// background runs a program until the test ends.
func background(t *testing.T, dir, bin, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
