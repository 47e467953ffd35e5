package e2e

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kkbundle/kkbundle/testdata/lab/hosts"
	"github.com/kkbundle/kkbundle/testdata/lab/software"
)

// TestEtcd installs external etcd with three members, renews its certificates, loses a member's data, defragments,
// and restores a copy. Two of the members are nodes. The run that restores is killed while the control plane is
// stopped. Copies are then sent to a storage with the S3 API, and one is restored from there.
func TestEtcd(t *testing.T) {
	th := start(t, scenario{
		hosts: 3,
		groups: hosts.Groups{
			"kube_control_plane": {1}, "image_registry": {1}, "kube_worker": {2}, "etcd": {1, 2, 3},
		},
		edit: func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "cluster.yaml"), "etcd: {type: internal}",
				"etcd: {type: external, dataDir: /var/lib/etcd-own}\nbackup: {recipients: [\""+backupKey(t, dir)+"\"]}")
		},
	})
	th.makeBundle(t)
	run(t, th.site(t, "install")).must(t, 0)
	t.Run("TimerSaves", func(t *testing.T) {
		th.waitFor(t, 3*time.Minute, "the timer has saved a first copy", 3,
			"sudo ls /var/backups/kkbundle/etcd | grep -q db.age")
		th.on(t, 3, "sudo head -c 21 /var/backups/kkbundle/etcd/etcd-*.db.age | grep -q age-encryption.org/v1")
	})
	t.Run("CertificatesAreRenewed", th.leavesRenewed)
	t.Run("MemberLosesData", func(t *testing.T) {
		th.on(t, 3, "sudo systemctl stop etcd && sudo rm -rf /var/lib/etcd-own")
		run(t, th.site(t, "install")).must(t, 0)
		if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
			t.Errorf("a rerun changes something:\n%s", r.stderr)
		}
	})
	t.Run("Defragmented", th.defragmented)
	t.Run("Restored", th.restoreEtcd)
	t.Run("CopiesInS3", th.copiesInS3)
	t.Run("Quota", func(t *testing.T) {
		th.raiseQuota(t, "tr '\\0' '\\n' </proc/$(pgrep --exact etcd)/environ | grep --line-regexp ETCD_QUOTA_BACKEND_BYTES=3221225472", 1, 2, 3)
	})
}

// raiseQuota gives etcd another quota, and looks for it on the hosts of members with a command.
func (th *thread) raiseQuota(t *testing.T, shows string, members ...int) {
	t.Helper()
	file := filepath.Join(th.dir, "cluster-quota.yaml")
	text, err := os.ReadFile(filepath.Join(th.dir, "cluster.yaml"))
	if err == nil {
		err = os.WriteFile(file, bytes.Replace(text, []byte("etcd: {"), []byte("etcd: {quota: 3Gi, "), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, th.site(t, "install", "-c", file)).must(t, 0)
	t.Logf("another quota: %s", r.took)
	for _, number := range members {
		th.on(t, number, shows)
	}
	if s := run(t, th.site(t, "status", "-c", file)).must(t, 0); strings.Count(s.stdout, "of 3.0 GiB") < len(members) {
		t.Errorf("status does not show the quota:\n%s", s.stdout)
	}
	if r := run(t, th.site(t, "install", "-c", file)).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("a rerun changes something:\n%s", r.stderr)
	}
}

// defragmented defragments all members, and looks at what status says of them.
func (th *thread) defragmented(t *testing.T) {
	if r := run(t, th.etcd(t, "defrag")).must(t, 0); strings.Count(r.stderr, "--always") != 3 {
		t.Errorf("members without free room are not skipped:\n%s", r.stderr)
	}
	r := run(t, th.etcd(t, "defrag", "--always", "--json")).must(t, 0)
	var said struct {
		Defrag []struct {
			Before, After int64
			Skipped       bool
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &said); err != nil || len(said.Defrag) != 3 {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	for _, d := range said.Defrag {
		if d.Skipped || d.After == 0 || d.After > d.Before {
			t.Errorf("defragmented: %+v", d)
		}
	}
	if s := run(t, th.site(t, "status")).must(t, 0); !strings.Contains(s.stdout, "of 2.0 GiB") {
		t.Errorf("status does not say how large the databases are:\n%s", s.stdout)
	}
	th.on(t, 2, "sudo systemctl stop etcd")
	if r := run(t, th.etcd(t, "defrag", "--always")); r.code == 0 {
		t.Errorf("with a member down, others are defragmented:\n%s", r.stderr)
	}
	th.on(t, 2, "sudo systemctl start etcd")
	th.waitFor(t, time.Minute, "the member is back", 2, "systemctl is-active etcd")
}

// copiesInS3 runs a storage on the third host, as a site would have one, sends it a copy, and restores that. The
// server is versitygw, which verifies signatures and checksums.
func (th *thread) copiesInS3(t *testing.T) {
	const storage, secret = "https://10.250.0.13:9000", "secret-of-the-site"
	ca := newCompanyCA(t, "Company storage")
	server, err := software.S3Server(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(server)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	th.send(t, 3, "/srv/bin/versitygw", "755", f)
	cert, key := ca.issue(t, "storage", "10.250.0.13")
	th.sendFiles(t, 3, map[string][]byte{"/srv/s3/tls.crt": cert, "/srv/s3/tls.key": key})
	th.on(t, 3, "mkdir -p /srv/s3/data/backups && systemd-run --unit=company-s3 /srv/bin/versitygw --access=site --secret="+secret+
		" --port=:9000 --cert=/srv/s3/tls.crt --key=/srv/s3/tls.key --quiet posix --nometa /srv/s3/data")
	th.waitFor(t, time.Minute, "the storage listens", 3, "ss -ltn | grep -q :9000")
	file := filepath.Join(th.dir, "cluster-s3.yaml")
	text, err := os.ReadFile(filepath.Join(th.dir, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("backup: {"), []byte("backup: {s3: {endpoint: \""+storage+
		"\", bucket: backups, prefix: etcd, accessKey: site, secretKeyFile: s3.secret, ca: s3-ca.crt}, "), 1)
	for name, data := range map[string][]byte{
		file: text, filepath.Join(th.dir, "s3.secret"): []byte(secret + "\n"),
		filepath.Join(th.dir, "s3-ca.crt"): ca.pem,
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	th.kubectl(t, "create configmap in-s3 --from-literal=is=there")
	if r := run(t, th.site(t, "install", "-c", file)).must(t, 0); strings.Contains(r.stdout+r.stderr, secret) {
		t.Errorf("the secret is shown:\n%s", r.stderr)
	}
	th.on(t, 1, "systemctl start kkbundle-etcd-backup.service && stat -c %a /etc/kkbundle/etcd-backup-s3.json | grep -qx 600")
	th.kubectl(t, "delete configmap in-s3")
	list := run(t, th.etcd(t, "copies", "-c", file, "--json")).must(t, 0)
	var said struct{ Copies []struct{ Copy string } }
	if err := json.Unmarshal([]byte(list.stdout), &said); err != nil {
		t.Fatalf("%v: %s", err, list.stdout)
	}
	name, onHosts := "", 0
	for _, c := range said.Copies {
		if strings.HasPrefix(c.Copy, "s3:host1/") && name == "" {
			name = c.Copy
		} else if !strings.HasPrefix(c.Copy, "s3:") {
			onHosts++
		}
	}
	if name == "" || onHosts == 0 {
		t.Fatalf("etcd copies lists\n%s", list.stdout)
	}
	fetched := filepath.Join(t.TempDir(), "fetched.db.age")
	run(t, th.etcd(t, "fetch", "-c", file, "--copy", name, "-o", fetched)).must(t, 0)
	run(t, th.etcd(t, "restore", "--yes", "--from", fetched, "--identity",
		filepath.Join(th.dir, backupKeyFile))).must(t, 0)
	if names := th.kubectl(t, "get configmap --output=name"); !strings.Contains(names, "/in-s3") {
		t.Errorf("after the restore of the stored copy there are %s", names)
	}
	th.on(t, 3, "systemctl stop company-s3")
}

// leavesRenewed renews the certificates of etcd and of the registry, on a host as its timer does and from outside, and
// reads and pulls with the new ones.
func (th *thread) leavesRenewed(t *testing.T) {
	serial := func(number int, file string) string {
		return th.on(t, number, "sudo openssl x509 -noout -serial -in "+file+" 2>/dev/null || sudo sha256sum "+file)
	}
	const server, registry = "/etc/kkbundle/etcd/server.crt", "/etc/kkbundle/registry/tls.crt"
	member, site := serial(3, server), serial(1, registry)
	th.on(t, 3, "sudo systemctl start kkbundle-leaf-certificates.service")
	if serial(3, server) != member {
		t.Error("the timer's service renews certificates that do not end soon")
	}
	// As the timer does, but as if every certificate ended soon.
	for _, number := range []int{1, 3} {
		th.on(t, number, "sed 's/ 60 / 400 /' /opt/kkbundle/bin/renew-leaf-certificates | sudo sh -e")
	}
	renewed := serial(3, server) + serial(1, registry)
	if serial(3, server) == member || serial(1, registry) == site {
		t.Errorf("not renewed: %s", renewed)
	}
	th.kubectl(t, "create configmap renewed --from-literal=is=written")
	th.waitFor(t, time.Minute, "the registry answers", 1, "sudo systemctl is-active kkbundle-registry.service")
	run(t, th.site(t, "certs renew")).must(t, 0)
	if now := serial(3, server) + serial(1, registry); now == renewed {
		t.Error("certs renew changes nothing")
	}
	th.kubectl(t, "delete configmap renewed")
	run(t, th.site(t, "install")).must(t, 0)
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("a rerun changes something:\n%s", r.stderr)
	}
	if r := run(t, th.site(t, "certs check")).must(t, 0); !strings.Contains(r.stdout, server) ||
		!strings.Contains(r.stdout, registry) {
		t.Errorf("certs check lacks them:\n%s", r.stdout)
	}
}

// restoreEtcd saves etcd, changes the cluster, and restores the copy, by a run that is killed while the control plane
// stands and one that finishes.
func (th *thread) restoreEtcd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "etcd.db")
	th.kubectl(t, "create configmap etcd-before --from-literal=is=there")
	th.kubectl(t, "create secret generic etcd-before --from-literal=is=readable")
	old := th.encryptedWith(t, "etcd-before")
	run(t, th.etcd(t, "backup", "-o", file)).must(t, 0)
	restore := []string{"--yes", "--from", file}
	if key := filepath.Join(th.dir, backupKeyFile); exists(key) {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(data, []byte("age-encryption.org/v1\n")) {
			t.Errorf("with recipients, the copy is no age file (%v)", err)
		}
		if r := run(t, th.etcd(t, "restore", restore...)); r.code == 0 || !strings.Contains(r.stderr, "--identity") {
			t.Errorf("a restore without the identity: exit code %d\n%s", r.code, r.stderr)
		}
		restore = append(restore, "--identity", key)
	}
	rotate := run(t, th.site(t, "secrets rotate-key")).must(t, 0)
	t.Logf("rotation of the encryption key: %s", rotate.took)
	if now := th.encryptedWith(t, "etcd-before"); now == old {
		t.Errorf("after a rotation, Secrets are still encrypted with %s", now)
	}
	if r := run(t, th.site(t, "install")).must(t, 0); !strings.Contains(r.stderr, "0 changed") {
		t.Errorf("a rerun after a rotation changes something:\n%s", r.stderr)
	}
	th.kubectl(t, "delete configmap etcd-before")
	th.kubectl(t, "create configmap etcd-after --from-literal=is=there")
	killCommandAt(t, th.etcd(t, "restore", append(restore, "--json")...), "start-etcd")
	r := run(t, th.etcd(t, "restore", restore...)).must(t, 0)
	if !strings.Contains(r.stderr, "kkbundle-before-") {
		t.Errorf("it does not say where the old data are:\n%s", r.stderr)
	}
	t.Logf("restore: %s", r.took)
	if names := th.kubectl(t, "get configmap --output=name"); !strings.Contains(names, "/etcd-before") ||
		strings.Contains(names, "/etcd-after") {
		t.Errorf("after the restore there are %s", names)
	}
	if now := th.encryptedWith(t, "etcd-before"); now != old {
		t.Errorf("the copy has a Secret encrypted with %s, not with %s", now, old)
	}
}

// encryptedWith returns the key that encrypts a Secret in etcd, as etcd stores its name, and checks that the API server
// decrypts it.
func (th *thread) encryptedWith(t *testing.T, name string) string {
	t.Helper()
	if got := th.kubectl(t, "get secret "+name+" --output=jsonpath='{.data.is}'"); got != "cmVhZGFibGU=" {
		t.Errorf("Secret %s is %s", name, got)
	}
	const external = "/etc/kkbundle/etcd-client"
	line := "if [ -e " + external + "/ca.crt ]; then sudo etcdctl --endpoints=https://127.0.0.1:2379 --cacert " +
		external + "/ca.crt --cert " + external + "/client.crt --key " + external + "/client.key "
	get := "get --print-value-only /registry/secrets/default/" + name
	value := th.on(t, th.adminHost(), line+get+"; else "+etcdctl(get)+"; fi | head -c 80 | tr -c '[:print:]' '?'")
	parts := strings.SplitN(value, ":", 6)
	if len(parts) < 6 || parts[0] != "k8s" || parts[1] != "enc" {
		t.Fatalf("etcd has Secret %s as %q", name, value)
	}
	return parts[4]
}

// backupKeyFile has the private key of the recipient that a test's cluster file names.
const backupKeyFile = "backup-key"

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// backupKey makes an SSH key and returns its public half.
func backupKey(t *testing.T, dir string) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, backupKeyFile), pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// etcd is a command of kkbundle etcd in the hosts' network.
func (th *thread) etcd(t *testing.T, command string, flags ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{"etcd", command, "-i", th.inventory, "--known-hosts", th.lab.KnownHostsFile()}, flags...)
	return th.lab.Command(t.Context(), th.kkbundle, append(args, th.bundle())...)
}

// killCommandAt ends a command that says what it does with --json without a word (SIGKILL), as soon as a task has
// started anywhere. It fails the test if the task never starts.
func killCommandAt(t *testing.T, cmd *exec.Cmd, task string) {
	t.Helper()
	var errs bytes.Buffer
	kill := sync.OnceFunc(func() { _ = cmd.Process.Kill() })
	killed := false
	cmd.Stderr = io.MultiWriter(&errs, lines(func(line []byte) {
		var e struct{ Task, State string }
		if json.Unmarshal(line, &e) == nil && e.Task == task && e.State == "started" {
			killed = true
			kill()
		}
	}))
	if err := cmd.Run(); !killed {
		t.Fatalf("it ended before %s: %v\n%s", task, err, errs.String())
	}
}
