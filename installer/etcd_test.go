//go:build linux

package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// A fakeEtcd stands for etcd on rooted hosts, which have no network: it keeps who is a member and whose unit runs, and answers
// etcdctl as etcd 3.6 does in what these tests look at.
type fakeEtcd struct {
	mu      sync.Mutex
	members []etcd.Member
	runs    map[string]bool // unit of a host
	asked   []string        // what changed something
	next    uint64
}

// etcdSite is three hosts with etcd, the first of which is also the control plane.
func etcdSite(t *testing.T, kind string) (*site, *engine.Run, *fakeEtcd) {
	t.Helper()
	s := newSite(t, "cp1", "node1", "node2")
	etcd := "[cp1, node1, node2]"
	if kind == "internal" {
		etcd = "[cp1]"
	}
	inv, err := manifest.ParseInventory("inventory.yaml", []byte(`apiVersion: kkbundle.io/v1
kind: Inventory
hosts:
  cp1: {address: 10.0.0.3, internalIPv4: 10.0.0.3}
  node1: {address: 10.0.0.4, internalIPv4: 10.0.0.4}
  node2: {address: 10.0.0.5, internalIPv4: 10.0.0.5}
groups: {kube_control_plane: [cp1], image_registry: [cp1], kube_worker: [node1, node2], etcd: `+etcd+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.options.Inventory = inv
	s.options.Cluster = tasktest.Cluster(t, "etcd: {type: "+kind+"}")
	f := &fakeEtcd{runs: map[string]bool{}, next: 0xa1}
	for name, h := range s.hosts {
		h.answer("systemctl", func(_ context.Context, cmd host.Cmd) error { return f.unit(h, name, cmd) })
		h.answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return f.control(cmd) })
	}
	return s, s.run(t, nil), f
}

func exits(cmd host.Cmd, code int, why string) error {
	return &host.ExitError{Host: "test", Args: cmd.Args, Code: code, Stderr: why}
}

// unit is systemctl. A member that is started without data makes them, and is a member from then on if the others know it.
func (f *fakeEtcd) unit(h *rooted, name string, cmd host.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch cmd.Args[1] {
	case "is-active":
		if !f.runs[name] {
			return exits(cmd, 3, "")
		}
	case "stop":
		f.runs[name] = false
	case "restart":
		f.asked = append(f.asked, "start "+name)
		f.runs[name] = true
		if err := os.MkdirAll(filepath.Join(h.root, etcd.DefaultDataDir, "member"), 0o700); err != nil {
			return err
		}
		url := "https://" + map[string]string{"cp1": "10.0.0.3", "node1": "10.0.0.4", "node2": "10.0.0.5"}[name]
		if strings.Contains(h.content(etcd.InitialEnv), "STATE=new") && len(f.members) == 0 {
			for i, one := range []string{"cp1", "node1", "node2"} {
				at := fmt.Sprintf("https://10.0.0.%d", 3+i)
				f.next++
				f.members = append(f.members, etcd.Member{ID: f.next, Name: one, PeerURLs: []string{at + ":2380"}, ClientURLs: []string{at + ":2379"}})
			}
		}
		for i, m := range f.members {
			if m.PeerURLs[0] == url+":2380" {
				f.members[i].Name, f.members[i].ClientURLs = name, []string{url + ":2379"}
			}
		}
	}
	return nil
}

func (f *fakeEtcd) control(cmd host.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	works := func(m etcd.Member) bool { return m.Name != "" && f.runs[m.Name] && !m.Learner }
	voters := 0
	up := 0
	for _, m := range f.members {
		if !m.Learner {
			voters++
		}
		if works(m) {
			up++
		}
	}
	var words []string
	flags := map[string]string{}
	for _, a := range cmd.Args[1:] {
		if name, value, ok := strings.Cut(a, "="); ok || strings.HasPrefix(a, "--") {
			flags[name] = value
			continue
		}
		words = append(words, a)
	}
	reached := slices.ContainsFunc(f.members, func(m etcd.Member) bool {
		return works(m) && slices.ContainsFunc(strings.Split(flags["--endpoints"], ","), func(e string) bool { return slices.Contains(m.ClientURLs, e) })
	})
	if !reached || up < voters/2+1 {
		return exits(cmd, 1, "context deadline exceeded")
	}
	switch strings.Join(words[:2], " ") {
	case "endpoint health":
		return nil
	case "member list":
		return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"members": f.members})
	case "member remove":
		f.members = slices.DeleteFunc(f.members, func(m etcd.Member) bool { return m.HexID() == words[2] })
	case "member add":
		if up < voters {
			return exits(cmd, 1, "etcdserver: unhealthy cluster")
		}
		_, learner := flags["--learner"]
		f.next++
		f.members = append(f.members, etcd.Member{ID: f.next, PeerURLs: []string{flags["--peer-urls"]}, Learner: learner})
		words = []string{"member", "add", words[2]}
	case "member promote":
		for i, m := range f.members {
			if m.HexID() == words[2] {
				f.members[i].Learner = false
			}
		}
	default:
		return fmt.Errorf("etcdctl %v is not known to this test", words)
	}
	f.asked = append(f.asked, strings.Join(words, " "))
	return nil
}

func (f *fakeEtcd) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.asked
	f.asked = nil
	return list
}

// formed makes the three hosts members, as the tasks do.
func formed(t *testing.T, r *engine.Run) {
	t.Helper()
	for _, one := range r.Hosts {
		if err := etcd.RunMember(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	for _, one := range r.Hosts {
		if err := etcd.HealthTask().Do(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEtcdForms(t *testing.T) {
	t.Parallel()
	s, r, f := etcdSite(t, "external")
	formed(t, r)
	if diff := cmp.Diff(f.said(), []string{"start cp1", "start node1", "start node2"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	for name, h := range s.hosts {
		const want = "ETCD_INITIAL_CLUSTER=cp1=https://10.0.0.3:2380,node1=https://10.0.0.4:2380,node2=https://10.0.0.5:2380\nETCD_INITIAL_CLUSTER_STATE=new\n"
		if got := h.content(etcd.InitialEnv); !strings.Contains(got, want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	// A repeated request restarts members, but adds and removes none.
	if err := etcd.RunMember(t.Context(), r.Hosts[1]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.said(), []string{"start node1"}); diff != "" {
		t.Errorf("restart (-got +want):\n%s", diff)
	}
}

// A member that lost its data, or was lost with its host, is replaced: the old one goes, the new one learns before it votes.
func TestEtcdMemberComesBack(t *testing.T) {
	t.Parallel()
	s, r, f := etcdSite(t, "external")
	formed(t, r)
	f.said()
	lost := strings.TrimSpace(f.members[2].HexID())
	f.runs["node2"] = false
	if err := os.RemoveAll(filepath.Join(s.hosts["node2"].root, etcd.DefaultDataDir)); err != nil {
		t.Fatal(err)
	}
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); err != nil {
		t.Fatal(err)
	}
	added := f.members[2].HexID()
	if diff := cmp.Diff(f.said(), []string{"member remove " + lost, "member add node2", "start node2", "member promote " + added}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if got := s.hosts["node2"].content(etcd.InitialEnv); !strings.Contains(got, "STATE=existing") {
		t.Errorf("initial.env: %s", got)
	}
}

// Data of an etcd that the host is no member of are kept beside the new ones.
func TestEtcdKeepsStrangeData(t *testing.T) {
	t.Parallel()
	s, r, f := etcdSite(t, "external")
	formed(t, r)
	f.members = f.members[:2] // somebody has removed it
	f.runs["node2"] = false
	s.hosts["node2"].put(t, etcd.DefaultDataDir+"/member/snap/db", "old")
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); err != nil {
		t.Fatal(err)
	}
	if got := s.hosts["node2"].content(only(t, s.hosts["node2"], etcd.DefaultDataDir+"/kkbundle-before-*/member/snap/db")); got != "old" {
		t.Errorf("the old data are %q", got)
	}
}

// onlyThese finds the one file of a host that a pattern means.
func only(t *testing.T, h *rooted, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(h.root + pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return strings.TrimPrefix(found[0], h.root)
}

func TestEtcdQuorumIsKept(t *testing.T) {
	t.Parallel()
	s, r, f := etcdSite(t, "external")
	formed(t, r)
	f.runs["node2"] = false
	f.said()
	var quorum interface{ Hint() string }
	if err := etcd.RunMember(t.Context(), r.Hosts[1]); !errors.As(err, &quorum) || !strings.Contains(err.Error(), "1 of the other 2 members are healthy, 2 must be") {
		t.Errorf("restarted with one other: %v", err)
	}
	if said := f.said(); len(said) > 0 {
		t.Errorf("did %v", said)
	}
	// The one that is down is started: that takes nothing away.
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); err != nil {
		t.Error(err)
	}
	// Without a quorum, nobody without data is taken for the first member of a new etcd.
	f.runs["node1"], f.runs["node2"] = false, false
	if err := os.RemoveAll(filepath.Join(s.hosts["node2"].root, etcd.DefaultDataDir)); err != nil {
		t.Fatal(err)
	}
	f.said()
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); !errors.As(err, &quorum) {
		t.Errorf("without a quorum: %v", err)
	}
	if said := f.said(); len(said) > 0 {
		t.Errorf("without a quorum did %v", said)
	}
}

// The authority's key survives the work directory on the hosts of etcd, and certificates are good for their purpose only.
func TestEtcdCertificates(t *testing.T) {
	t.Parallel()
	s, r, _ := etcdSite(t, "external")
	first, err := etcd.MemberFiles(t.Context(), r.Hosts[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Hosts[1].Write(t.Context(), first...); err != nil {
		t.Fatal(err)
	}
	again, err := etcd.MemberFiles(t.Context(), r.Hosts[1])
	if err != nil || cmp.Diff(first, again, cmp.AllowUnexported(task.File{})) != "" {
		t.Errorf("asked again, they are others (%v)", err)
	}
	for _, f := range first {
		if strings.HasSuffix(f.Path, ".key") != (f.Mode == 0o600) {
			t.Errorf("%s has mode %o", f.Path, f.Mode)
		}
	}
	s.options.WorkDir = filepath.Join(t.TempDir(), "other")
	other := s.run(t, nil)
	files, err := etcd.MemberFiles(t.Context(), other.Hosts[0])
	if err != nil {
		t.Fatal(err)
	}
	at := func(list []task.File, name string) string {
		return string(list[slices.IndexFunc(list, func(f task.File) bool { return f.Path == name })].Data)
	}
	if at(files, etcd.AuthorityFiles().Key) != at(first, etcd.AuthorityFiles().Key) {
		t.Error("a lost work directory made a new authority, which the other members do not trust")
	}
	s.options.WorkDir = filepath.Join(t.TempDir(), "third")
	limited := s.run(t, nil)
	limited.Hosts[1].Conn = nil
	if _, err := etcd.MemberFiles(t.Context(), limited.Hosts[0]); err == nil || !strings.Contains(err.Error(), "--limit") {
		t.Errorf("where the host that has it is left out: %v", err)
	}
}

// The script that the timer runs, run for real but for etcd itself.
func TestEtcdBackupScript(t *testing.T) {
	t.Parallel()
	_, r, _ := etcdSite(t, "external")
	dir, bin := t.TempDir(), t.TempDir()
	snapshot := filepath.Join(dir, "snapshot")
	if err := os.WriteFile(snapshot, etcdCopy("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"etcdctl": `for last; do :; done; cp ` + snapshot + ` "$last"`,
		"etcdutl": "exit 0",
		"date":    `n=$(cat ` + dir + `/n 2>/dev/null || echo 0); echo $((n + 1)) >` + dir + `/n; echo "2026112${n}T000000Z"`,
	} {
		writeProgram(t, filepath.Join(bin, name), "#!/bin/sh\n"+text+"\n")
	}
	copies := filepath.Join(dir, "copies")
	script := strings.NewReplacer(etcd.Backups, copies, "PATH=", "PATH="+bin+":").Replace(string(etcd.BackupScript(r.Hosts[0], 2)))
	save := func() error {
		h := newRooted(t, "save")
		return h.Run(t.Context(), host.Cmd{Args: []string{"sh", "-c", script}})
	}
	for range 4 {
		if err := save(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(snapshot, append(etcdCopy("x")[1:], 0), 0o600); err != nil {
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
	if err := os.WriteFile(snapshot, etcdCopy("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	helper := filepath.Join(bin, "helper")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", helper, "../cmd/kkbundle-node").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script = strings.NewReplacer(etcd.Backups, copies, "PATH=", "PATH="+bin+":", host.HelperPath, helper).Replace(string(etcd.BackupScript(r.Hosts[0], 2)))
	if err := save(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(copies + "/etcd-*")
	if err != nil || len(files) != 2 || !strings.HasSuffix(files[1], ".db.age") {
		t.Fatalf("with recipients there are %q", files)
	}
	if _, err := ReadEtcdSnapshot(files[1]); err == nil || !strings.Contains(err.Error(), "--identity") {
		t.Errorf("without the identity: %v", err)
	}
	if got, err := ReadEtcdSnapshot(files[1], key); err != nil || got.Size != int64(len(etcdCopy("x"))) {
		t.Errorf("with the identity: %+v, %v", got, err)
	}
	data, err := os.ReadFile(files[1])
	if err != nil || bytes.Contains(data, etcdCopy("x")[:64]) || !bytes.HasPrefix(data, []byte(ageMagic)) {
		t.Errorf("the copy is no age file: %q, %v", data[:min(len(data), 40)], err)
	}
}

// A member that hangs does not hold the lock of the copies for ever.
func TestEtcdBackupEndsWithAHungMember(t *testing.T) {
	t.Parallel()
	_, r, _ := etcdSite(t, "external")
	dir, bin := t.TempDir(), t.TempDir()
	writeProgram(t, filepath.Join(bin, "etcdctl"), "#!/bin/sh\nexec sleep 3600\n")
	script := strings.NewReplacer(etcd.Backups, dir, "PATH=", "PATH="+bin+":", "timeout 600", "timeout 0.2").Replace(string(etcd.BackupScript(r.Hosts[0], 2)))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := newRooted(t, "save").Run(ctx, host.Cmd{Args: []string{"sh", "-c", script}})
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "etcd did not send a copy within 10 minutes") {
		t.Errorf("got %v, %v", err, ctx.Err())
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new*")); err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}
