//go:build linux

package etcdops

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node/s3test"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

func backupTask(t *testing.T, c *manifest.Cluster) (task.Task, bool) {
	t.Helper()
	list := plan.Tasks(c)
	at := slices.IndexFunc(list, func(one task.Task) bool { return one.Name == "etcd-backup" })
	if at < 0 {
		return task.Task{}, false
	}
	return list[at], true
}

// A cluster whose file says nothing of copies has them; off removes the timer and the login, and leaves the copies.
func TestEtcdCopiesAreOnByDefault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": true, "etcd: {type: external}": true, "etcd: {backup: {keep: 2}}": true,
		"etcd: {type: provided, endpoints: ['https://10.0.0.1:2379'], ca: a, cert: b, key: c}": false,
		"kubernetes: {distribution: k3s, version: v1.34.3+k3s1}":                               false,
	} {
		if _, has := backupTask(t, tasktest.Cluster(t, text)); has != want {
			t.Errorf("%q: copies %t, want %t", text, has, want)
		}
	}
	b := tasktest.Cluster(t, "etcd: {backup: {keep: 2}}").Etcd.Backup
	if b.Keep != 2 || time.Duration(b.Every) != 6*time.Hour {
		t.Errorf("keep: 2 means %+v", b)
	}
	s, r, _ := sitetest.EtcdSite(t, "internal")
	h := s.Hosts["cp1"]
	off, has := backupTask(t, tasktest.Cluster(t, "etcd: {backup: {off: true}}"))
	if !has {
		t.Fatal("without copies, nothing removes an earlier timer")
	}
	if done, err := off.Done(t.Context(), r.Hosts[0]); err != nil || !done {
		t.Errorf("a host without the timer: %t, %v", done, err)
	}
	kept := etcd.Backups + "/etcd-20261123T000000Z.db"
	for _, name := range []string{
		"/etc/systemd/system/kkbundle-etcd-backup.timer", "/etc/kkbundle/etcd-backup-s3.json",
		kept,
	} {
		h.Put(t, name, "x")
	}
	if done, err := off.Done(t.Context(), r.Hosts[0]); err != nil || done {
		t.Errorf("a host with the timer: %t, %v", done, err)
	}
	if err := off.Do(t.Context(), r.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	if done, err := off.Done(t.Context(), r.Hosts[0]); err != nil || !done {
		t.Errorf("afterwards: %t, %v", done, err)
	}
	if h.Content(kept) != "x" {
		t.Error("the copies are gone")
	}
}

// savingScript returns the script of the timer on a host, with programs that stand for etcd's.
func savingScript(t *testing.T, one *task.Host, snapshot, copies string) string {
	t.Helper()
	bin := t.TempDir()
	for name, text := range map[string]string{
		"etcdctl": `for last; do :; done; cp ` + snapshot + ` "$last"`,
		"etcdutl": "exit 0",
	} {
		sitetest.WriteProgram(t, filepath.Join(bin, name), "#!/bin/sh\n"+text+"\n")
	}
	helper := filepath.Join(bin, "helper")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", helper,
		"../../cmd/kkbundle-node").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.NewReplacer(etcd.Backups, copies, "PATH=", "PATH="+bin+":", host.HelperPath,
		helper).Replace(string(etcd.BackupScript(one, 2)))
}

// No copy fills the disk: 1 GiB stays free.
func TestEtcdBackupLeavesRoom(t *testing.T) {
	t.Parallel()
	_, r, _ := sitetest.EtcdSite(t, "external")
	dir := t.TempDir()
	snapshot, copies := filepath.Join(dir, "snapshot"), filepath.Join(dir, "copies")
	if err := os.WriteFile(snapshot, sitetest.EtcdCopy("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := savingScript(t, r.Hosts[0], snapshot, copies)
	for free, fits := range map[string]bool{"2000000000": true, "1000000000": false} {
		df := `df() { printf 'Avail\n` + free + `\n'; }` + "\n"
		err := sitetest.NewRooted(t, "save").Run(t.Context(),
			host.Cmd{Args: []string{"sh", "-c", strings.Replace(script, "set -eu", df+"set -eu", 1)}})
		if fits != (err == nil) || err != nil && !strings.Contains(err.Error(), "nothing was saved") {
			t.Errorf("with %s bytes free: %v", free, err)
		}
	}
	if made, _ := filepath.Glob(copies + "/etcd-*"); len(made) != 1 {
		t.Errorf("there are %q", made)
	}
}

// The timer's script encrypts a copy and sends it; with all hosts lost, it comes back from the storage.
func TestEtcdCopiesInS3(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	storage, _ := s3test.Start(t, "copies")
	s, _, _ := sitetest.EtcdSite(t, "external")
	s.Options.Cluster = tasktest.Cluster(t, "etcd: {type: external}\nbackup: {recipients: ["+key.Recipient().String()+
		"], s3: {endpoint: 'http://"+storage+"', bucket: copies, prefix: etcd/site1, accessKey: "+s3test.AccessKey+
		", secretKeyFile: s3.secret}}")
	s.Options.Values = func(name string) ([]byte, error) {
		if name != "s3.secret" {
			return nil, fs.ErrNotExist
		}
		return []byte(s3test.SecretKey + "\n"), nil
	}
	r := s.Run(t, nil)
	dir := t.TempDir()
	snapshot, config := filepath.Join(dir, "snapshot"), filepath.Join(dir, "s3.json")
	if err := os.WriteFile(snapshot, sitetest.EtcdCopy("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := s.Hosts["cp1"]
	files, err := etcd.BackupFiles(r.Hosts[0], *r.Cluster.Etcd.Backup)
	if err == nil {
		err = r.Hosts[0].Write(t.Context(), files...)
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(h.Root, "etc/kkbundle/etcd-backup-s3.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the login has mode %v (%v)", info.Mode(), err)
	}
	if strings.Contains(h.Content("/opt/kkbundle/bin/etcd-backup"), "secret-of-the-site") ||
		r.Mask.Mask("secret-of-the-site") == "secret-of-the-site" {
		t.Error("the secret is in the script, or is shown")
	}
	if err := os.WriteFile(config, []byte(h.Content("/etc/kkbundle/etcd-backup-s3.json")), 0o600); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(savingScript(t, r.Hosts[0], snapshot, filepath.Join(dir, "copies")),
		"/etc/kkbundle/etcd-backup-s3.json", config)
	if err := sitetest.NewRooted(t, "save").Run(t.Context(), host.Cmd{Args: []string{"sh", "-c", script}}); err != nil {
		t.Fatal(err)
	}
	list, err := storedCopies(t.Context(), r.Site)
	if err != nil || len(list) != 1 || list[0].Host != "cp1" || list[0].Time().IsZero() {
		t.Fatalf("the storage has %v, %v", list, err)
	}
	to := filepath.Join(dir, "fetched")
	made, err := fetchStored(t.Context(), r.Site, "cp1/"+list[0].Name, to)
	if err != nil || made.Size != list[0].Size {
		t.Fatalf("fetched %+v, %v", made, err)
	}
	if got, err := ReadSnapshot(to, key); err != nil || got.Size != int64(len(sitetest.EtcdCopy("x"))) {
		t.Errorf("the fetched copy: %+v, %v", got, err)
	}
	if _, err := fetchStored(t.Context(), r.Site, "cp1/etcd-20200101T000000Z.db",
		filepath.Join(dir, "absent")); err == nil || !strings.Contains(err.Error(), "NoSuchKey") {
		t.Errorf("an absent copy: %v", err)
	}
	r.Values = func(string) ([]byte, error) { return nil, fs.ErrNotExist }
	if _, err := etcd.Storage(r.Site); err == nil || !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "s3.secret") {
		t.Errorf("without the secret's file: %v", err)
	}
}

// Copies of hosts are listed by their names and fetched whole or not at all.
// status warns of a copy that failed and of copies that are late, and says nothing of hosts without the timer.
func TestStatusJudgesCopies(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	day := func(n int) string {
		return "etcd-" + now.AddDate(0, 0, -n).Format("20060102T150405Z") + ".db"
	}
	for name, c := range map[string]struct {
		enabled bool
		result  string // of the unit's last run
		copies  []string
		want    string // state and text, "" for no finding
	}{
		"no timer":      {false, "success", []string{day(30)}, ""},
		"no copy yet":   {true, "success", nil, ""},
		"a copy of now": {true, "success", []string{day(30), day(0)}, "ok "},
		"old copies": {true, "success", []string{day(30), day(2)}, "warning the newest copy of etcd is " +
			day(2)[:13]},
		"the last failed": {
			true, "exit-code",
			[]string{day(0)},
			"warning the last copy of etcd was not saved or not sent (exit-code)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r, _ := sitetest.EtcdSite(t, "external")
			h := s.Hosts["node1"]
			h.Answer("systemctl", func(_ context.Context, cmd host.Cmd) error {
				switch {
				case cmd.Args[1] == "show":
					_, err := io.WriteString(cmd.Stdout, c.result+"\n")
					return err
				case !c.enabled:
					return &host.ExitError{Host: "node1", Args: cmd.Args, Code: 1}
				}
				return nil
			})
			for _, one := range c.copies {
				h.Put(t, etcd.Backups+"/"+one, string(sitetest.EtcdCopy("x")))
			}
			var got string
			for _, f := range judgeCopies(t.Context(), r.Hosts[1]) {
				got += string(f.State) + " " + f.Found
			}
			if got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEtcdCopiesOfHosts(t *testing.T) {
	t.Parallel()
	s, r, _ := sitetest.EtcdSite(t, "external")
	h := s.Hosts["node1"]
	if list, err := copiesOn(t.Context(), r.Hosts[1]); err != nil || list != nil {
		t.Errorf("without copies: %v, %v", list, err)
	}
	h.Put(t, etcd.Backups+"/etcd-20261123T000000Z.db", string(sitetest.EtcdCopy("x")))
	h.Put(t, etcd.Backups+"/.new.db", "half")
	list, err := copiesOn(t.Context(), r.Hosts[1])
	if err != nil || len(list) != 1 || list[0].String() != "node1/etcd-20261123T000000Z.db" ||
		list[0].Size != int64(len(sitetest.EtcdCopy("x"))) {
		t.Fatalf("there are %v, %v", list, err)
	}
	dir := t.TempDir()
	for content, want := range map[string]bool{
		string(sitetest.EtcdCopy("x")):       true,
		string(sitetest.EtcdCopy("x")[:600]): false, ageMagic + "any": true,
	} {
		to := filepath.Join(dir, "copy")
		_, err := writeCopy(to, func(w io.Writer) error { _, err := w.Write([]byte(content)); return err })
		if _, there := os.Stat(to); want != (err == nil) || want != (there == nil) {
			t.Errorf("%.20q: %v, %v", content, err, there)
		}
		_ = os.Remove(to)
	}
	if left, _ := filepath.Glob(dir + "/.*-*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	for _, name := range []string{
		"node1", "node1/../../etc/shadow", "node1/etcd-x.db",
		"s3:/etcd-20261123T000000Z.db",
	} {
		if _, err := FetchCopy(t.Context(), s.Options, name, filepath.Join(dir, "no")); err == nil ||
			!strings.Contains(err.Error(), "no copy of etcd") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
