package e2e

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
)

// TestBastions installs a host behind two bastions with the operator's own authorities, packages of the host's
// sources, and hooks. The host refuses direct logins.
func TestBastions(t *testing.T) {
	th := start(t, scenario{
		hosts:  3,
		groups: hosts.Groups{"kube_control_plane": {1}, "kube_worker": {1}, "image_registry": {1}},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}", `etcd: {type: internal}
certificates:
  ca: {cert: ca.crt, key: ca.key}
  frontProxyCA: {cert: front-proxy-ca.crt, key: front-proxy-ca.key}
  etcdCA: {cert: etcd-ca.crt, key: etcd-ca.key}
osPackages: host`)
			rewrite(t, filepath.Join(dir, "web.yaml"), "replicas: 2", "replicas: 1")
			for _, name := range []string{"ca", "front-proxy-ca", "etcd-ca"} {
				ca := newCompanyCA(t, "Company "+name)
				for file, data := range map[string][]byte{name + ".crt": ca.pem, name + ".key": ca.keyPEM} {
					if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
	})
	th.timeService(t, 1)
	th.mirrorOf(t, 1, "socat")
	th.behindBastions(t)
	th.makeBundle(t)
	th.pristine = th.traces(t)
	hooks := th.writeHooks(t)
	with := func(t *testing.T, command string, flags ...string) result {
		t.Helper()
		return run(t, th.site(t, command, append(flags, "-c", filepath.Join(th.dir, "cluster.yaml"))...))
	}
	steps(t, []step{
		{"without the bastions the host refuses", func(t *testing.T) { th.refusedDirectly(t) }},
		{"install through two bastions", func(t *testing.T) {
			r := with(t, "install", "--hooks", hooks).must(t, 0)
			t.Logf("install: %s\n%s", r.took.Round(100*time.Millisecond), r.stderr)
			th.nodesAre(t, 1, "host1")
		}},
		{"certificates are the company's", th.companySigned},
		{"a missing package came from the host's sources", func(t *testing.T) { th.on(t, 1, "socat -V") }},
		{"the hooks ran before and after", th.hooked},
		{"a rerun changes nothing", func(t *testing.T) {
			if r := with(t, "install", "--hooks", hooks).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
				t.Errorf("want 0 changed, got\n%s", r.stderr)
			}
			th.hooked(t)
		}},
		{"reset leaves nothing", func(t *testing.T) {
			with(t, "reset", "--yes", "--with-data").must(t, 0)
			if after := th.traces(t); after != th.pristine {
				t.Errorf("the reset did not make the hosts what they were:\n%s", difference(th.pristine, after))
			}
		}},
		{"no packet left the hosts' network", th.packets},
	})
}

// behindBastions lets user ops into host1 from host3 only, and into host3 from host2 only. root's login, which only
// the test uses, stays.
func (th *thread) behindBastions(t *testing.T) {
	for number, from := range map[int]int{1: 3, 3: 2} {
		th.on(t, number, "echo 'AllowUsers root ops@"+th.lab.Hosts[from-1].Address+
			"' >/etc/ssh/sshd_config.d/bastion.conf && systemctl reload ssh")
	}
	rewrite(t, th.inventory, "  host1: {address: 10.250.0.11, ssh: {user: root}}\n", `  jump1: {address: 10.250.0.12}
  jump2: {address: 10.250.0.13}
  host1: {address: 10.250.0.11, ssh: {bastion: "jump1,jump2"}}
`)
}

func (th *thread) refusedDirectly(t *testing.T) {
	through := th.inventory
	th.inventory = filepath.Join(t.TempDir(), "direct.yaml")
	defer func() { th.inventory = through }()
	data, err := os.ReadFile(through)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(th.inventory, data, 0o600); err != nil {
		t.Fatal(err)
	}
	rewrite(t, th.inventory, `, ssh: {bastion: "jump1,jump2"}`, "")
	if r := run(t, th.site(t, "precheck", "-c", filepath.Join(th.dir, "cluster.yaml"))).must(t,
		13); !strings.Contains(r.stdout+r.stderr, "host1") {
		t.Errorf("got\n%s%s", r.stdout, r.stderr)
	}
}

func (th *thread) companySigned(t *testing.T) {
	for file, name := range map[string]string{
		"apiserver.crt":          "Company ca",
		"front-proxy-client.crt": "Company front-proxy-ca", "etcd/server.crt": "Company etcd-ca",
	} {
		block, _ := pem.Decode([]byte(th.on(t, 1, "cat /etc/kubernetes/pki/"+file)))
		if block == nil {
			t.Fatalf("%s is not PEM", file)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || cert.Issuer.CommonName != name {
			t.Errorf("%s: %v, signed by %s, want %s", file, err, cert.Issuer, name)
		}
	}
}

// writeHooks returns a directory of hooks that leave their names in /run/hooked.
func (th *thread) writeHooks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "kube_control_plane"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"pre_install.sh":                     "#!/bin/sh\n[ ! -e /etc/kubernetes/admin.conf ] || exit 1\necho pre >>/run/hooked\n",
		"post_install.sh":                    "#!/bin/sh\necho post >>/run/hooked\n",
		"kube_control_plane/post_install.sh": "#!/bin/sh\nKUBECACHEDIR=/tmp/kubectl kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes --no-headers | grep -w Ready && echo ready >>/run/hooked\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (th *thread) hooked(t *testing.T) {
	if got := th.on(t, 1, "cat /run/hooked"); got != "pre\npost\nready\n" {
		t.Errorf("the hooks left %q", got)
	}
}

// timeService installs chrony, which Debian's hosts have and the lab's do not. It leaves the clock alone: all hosts
// share the machine's.
func (th *thread) timeService(t *testing.T, number int) {
	t.Helper()
	th.send(t, number, "/srv/chrony.deb", "644", bytes.NewReader(debianPackage(t, "chrony")))
	th.on(t, number, "echo 'DAEMON_OPTS=\"-F 1 -x\"' >/etc/default/chrony && dpkg --force-confold --install /srv/chrony.deb")
}

// mirrorOf removes a package from a host and makes it available from a source of the host's own.
func (th *thread) mirrorOf(t *testing.T, number int, name string) {
	t.Helper()
	data := debianPackage(t, name)
	fields := exec.CommandContext(t.Context(), "dpkg-deb", "--field", "/dev/stdin")
	fields.Stdin = bytes.NewReader(data)
	control, err := fields.Output()
	if err != nil {
		t.Fatal(err)
	}
	index := fmt.Sprintf("%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n", control, name, len(data), sha256.Sum256(data))
	th.send(t, number, "/srv/mirror/"+name+".deb", "644", bytes.NewReader(data))
	th.send(t, number, "/srv/mirror/Packages", "644", strings.NewReader(index))
	th.on(t, number, "dpkg --purge "+name+
		" && echo 'deb [trusted=yes] file:/srv/mirror ./' >/etc/apt/sources.list.d/mirror.list")
}

// debianPackage downloads a package. The machine of the test needs a way to deb.debian.org.
func debianPackage(t *testing.T, name string) []byte {
	t.Helper()
	dir := t.TempDir()
	download := exec.CommandContext(t.Context(), "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name)
	download.Dir = dir
	if out, err := download.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v: %q", err, files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return data
}
