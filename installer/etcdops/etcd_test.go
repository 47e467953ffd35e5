//go:build linux

package etcdops

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// The script that the timer runs, run for real but for etcd itself.
func TestEtcdBackupScript(t *testing.T) {
	t.Parallel()
	_, r, _ := sitetest.EtcdSite(t, "external")
	dir, bin := t.TempDir(), t.TempDir()
	snapshot := filepath.Join(dir, "snapshot")
	if err := os.WriteFile(snapshot, sitetest.EtcdCopy("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"etcdctl": `for last; do :; done; cp ` + snapshot + ` "$last"`,
		"etcdutl": "exit 0",
		"date": `n=$(cat ` + dir + `/n 2>/dev/null || echo 0); echo $((n + 1)) >` + dir +
			`/n; echo "2026112${n}T000000Z"`,
	} {
		sitetest.WriteProgram(t, filepath.Join(bin, name), "#!/bin/sh\n"+text+"\n")
	}
	copies := filepath.Join(dir, "copies")
	script := strings.NewReplacer(etcd.Backups, copies, "PATH=", "PATH="+bin+
		":").Replace(string(etcd.BackupScript(r.Hosts[0], 2)))
	save := func() error {
		h := sitetest.NewRooted(t, "save")
		return h.Run(t.Context(), host.Cmd{Args: []string{"sh", "-c", script}})
	}
	for range 4 {
		if err := save(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(snapshot, append(sitetest.EtcdCopy("x")[1:], 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := save(); err == nil || !strings.Contains(err.Error(), "not what etcd sent") {
		t.Errorf("a damaged copy: %v", err)
	}
	entries, err := os.ReadDir(copies)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v)", e.Name(), info.Mode(), err)
		}
		names = append(names, e.Name())
	}
	if diff := cmp.Diff(names, []string{".lock", "etcd-20261122T000000Z.db", "etcd-20261123T000000Z.db"}); diff != "" {
		t.Errorf("kept (-got +want):\n%s", diff)
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	r.Hosts[0].Site.Cluster.Backup.Recipients = []string{key.Recipient().String()}
	if err := os.WriteFile(snapshot, sitetest.EtcdCopy("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	helper := filepath.Join(bin, "helper")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", helper,
		"../../cmd/kkbundle-node").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script = strings.NewReplacer(etcd.Backups, copies, "PATH=", "PATH="+bin+":", host.HelperPath,
		helper).Replace(string(etcd.BackupScript(r.Hosts[0], 2)))
	if err := save(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(copies + "/etcd-*")
	if err != nil || len(files) != 2 || !strings.HasSuffix(files[1], ".db.age") {
		t.Fatalf("with recipients there are %q", files)
	}
	if _, err := ReadSnapshot(files[1]); err == nil || !strings.Contains(err.Error(), "--identity") {
		t.Errorf("without the identity: %v", err)
	}
	if got, err := ReadSnapshot(files[1], key); err != nil || got.Size != int64(len(sitetest.EtcdCopy("x"))) {
		t.Errorf("with the identity: %+v, %v", got, err)
	}
	data, err := os.ReadFile(files[1])
	if err != nil || bytes.Contains(data, sitetest.EtcdCopy("x")[:64]) || !bytes.HasPrefix(data, []byte(ageMagic)) {
		t.Errorf("the copy is no age file: %q, %v", data[:min(len(data), 40)], err)
	}
}
