package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestAlone installs a host from itself: its directory has only the program and the bundle. Later a timer renews
// certificates.
func TestAlone(t *testing.T) {
	th := start(t, scenario{
		hosts:  1,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}, "etcd": {1}, "image_registry": {1}},
	})
	steps(t, []step{
		{"build", th.makeBundle},
		{"what half an installation leaves is collected", th.halfCollected},
		{"install without arguments, on the host", th.installHere},
		{"the timer's service renews a certificate that ends soon", th.renewedInTime},
		{"no packet left the hosts' network", th.packets},
	})
}

// halfCollected asks for a support bundle when there is a kubelet, and no cluster.
func (th *thread) halfCollected(t *testing.T) {
	th.killAt(t, "kubeadm-init")
	file := filepath.Join(t.TempDir(), "support.tar.zst")
	r := run(t, th.site(t, "support-bundle", "-o", file)).must(t, 0)
	t.Logf("%s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	list, err := exec.CommandContext(t.Context(), "tar", "--zstd", "-tf", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"support/hosts/host1/units.log", "install.log"} {
		if !strings.Contains(string(list), want) {
			t.Errorf("no %s in\n%s", want, list)
		}
	}
	run(t, th.site(t, "reset", "--yes")).must(t, 0)
}

// here runs a shell line on the host, in the directory with program and bundle.
func (th *thread) here(t *testing.T, line string) result {
	t.Helper()
	return run(t, th.lab.SSH(t.Context(), th.lab.Hosts[0], "cd /srv/site && "+line))
}

func (th *thread) installHere(t *testing.T) {
	th.on(t, 1, "mkdir -p /srv/site")
	for name, from := range map[string]string{"kkbundle": th.kkbundle, "site.kkb": th.bundle()} {
		f, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		cmd := th.lab.SSH(t.Context(), th.lab.Hosts[0], "cat > /srv/site/"+name+" && chmod 755 /srv/site/"+name)
		cmd.Stdin = f
		out, err := cmd.CombinedOutput()
		_ = f.Close() // it was only read
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if r := th.here(t, "./kkbundle install </dev/null"); r.code == 0 || !strings.Contains(r.stderr, "--yes") {
		t.Errorf("without anybody to ask: exit code %d\n%s", r.code, r.stderr)
	}
	if out := th.on(t, 1, "ls /srv/site; ls -d /etc/kubernetes 2>/dev/null; true"); out != "kkbundle\nsite.kkb\n" {
		t.Errorf("without an answer there is\n%s", out)
	}
	r := th.here(t, "./kkbundle install --yes").must(t, 0)
	t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
	if nodes := th.kubectl(t, "get nodes --no-headers"); strings.Count(nodes, " Ready ") != 1 {
		t.Errorf("want one node that is Ready, got\n%s", nodes)
	}
	if r = th.here(t, "./kkbundle install --yes").must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("want 0 changed, got\n%s", r.stderr)
	}
}

// renewedInTime gives the API server a certificate of ten days and starts what the timer starts. The lab has one
// clock for all hosts, so that the day can't be moved instead.
func (th *thread) renewedInTime(t *testing.T) {
	const days = 24 * time.Hour
	th.shortCertificate(t, 10*days)
	check := "./kkbundle certs check -i inventory.yaml --fail site.kkb"
	if r := th.here(t, check).must(t, 22); !strings.Contains(r.stdout, "/etc/kubernetes/pki/apiserver.crt") {
		t.Errorf("got\n%s", r.stdout)
	}
	begin := time.Now()
	th.on(t, 1, "systemctl start kkbundle-certificates.service")
	th.waitFor(t, 2*time.Minute, "the API server is ready", 1,
		"kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw=/readyz")
	t.Logf("renewed, and ready again after %s", time.Since(begin).Round(100*time.Millisecond))
	if end := th.served(t); time.Until(end) < 300*days {
		t.Errorf("the API server's certificate ends at %s", end)
	}
	th.here(t, check).must(t, 0)
	// The next night there is nothing to do.
	before := th.on(t, 1, "sha256sum /etc/kubernetes/pki/*.crt /etc/kubernetes/*.conf; pgrep --exact kube-apiserver")
	th.on(t, 1, "systemctl start kkbundle-certificates.service")
	if after := th.on(t, 1, "sha256sum /etc/kubernetes/pki/*.crt /etc/kubernetes/*.conf; pgrep --exact kube-apiserver"); after != before {
		t.Errorf("it was renewed again:\n%s", difference(before, after))
	}
	r := th.here(t, "./kkbundle install --yes").must(t, 0)
	t.Logf("install after it:\n%s", r.stderr)
}

// shortCertificate replaces the API server's certificate with one for the same key that ends after left, issued by the
// cluster's authority, and waits until the API server has it.
func (th *thread) shortCertificate(t *testing.T, left time.Duration) {
	t.Helper()
	const dir = "/etc/kubernetes/pki/"
	pair, err := tls.X509KeyPair([]byte(th.on(t, 1, "cat "+dir+"ca.crt")), []byte(th.on(t, 1, "cat "+dir+"ca.key")))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(th.on(t, 1, "cat "+dir+"apiserver.crt")))
	if block == nil {
		t.Fatal("the API server's certificate is not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	cert.NotAfter = time.Now().Add(left)
	der, err := x509.CreateCertificate(rand.Reader, cert, pair.Leaf, cert.PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cmd := th.lab.SSH(t.Context(), th.lab.Hosts[0], "cat > "+dir+"apiserver.crt")
	cmd.Stdin = bytes.NewReader(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The API server reads a changed certificate by itself, within a minute.
	deadline := time.Now().Add(2 * time.Minute)
	for time.Until(th.served(t)) > left {
		if time.Now().After(deadline) {
			t.Fatal("the API server has not taken the short certificate")
		}
		time.Sleep(time.Second)
	}
}

// served returns the end of the certificate that the API server shows.
func (th *thread) served(t *testing.T) time.Time {
	t.Helper()
	out := th.on(t, 1, "curl -ksv --max-time 5 -o /dev/null https://127.0.0.1:6443/livez 2>&1")
	_, rest, _ := strings.Cut(out, "expire date: ")
	text, _, _ := strings.Cut(rest, "\n")
	end, err := time.Parse("Jan _2 15:04:05 2006 MST", strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return end
}
