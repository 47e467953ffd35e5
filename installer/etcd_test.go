//go:build linux

package installer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
)

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
	s, r, f := sitetest.EtcdSite(t, "external")
	formed(t, r)
	if diff := cmp.Diff(f.Said(), []string{"start cp1", "start node1", "start node2"}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	for name, h := range s.Hosts {
		const want = "ETCD_INITIAL_CLUSTER=cp1=https://10.0.0.3:2380,node1=https://10.0.0.4:2380,node2=https://10.0.0.5:2380\nETCD_INITIAL_CLUSTER_STATE=new\n"
		if got := h.Content(etcd.InitialEnv); !strings.Contains(got, want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	// A repeated request restarts members, but adds and removes none.
	if err := etcd.RunMember(t.Context(), r.Hosts[1]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.Said(), []string{"start node1"}); diff != "" {
		t.Errorf("restart (-got +want):\n%s", diff)
	}
}

// A member that lost its data, or was lost with its host, is replaced: the old one goes, the new one learns before it
// votes.
func TestEtcdMemberComesBack(t *testing.T) {
	t.Parallel()
	s, r, f := sitetest.EtcdSite(t, "external")
	formed(t, r)
	f.Said()
	lost := strings.TrimSpace(f.Members[2].HexID())
	f.Runs["node2"] = false
	if err := os.RemoveAll(filepath.Join(s.Hosts["node2"].Root, etcd.DefaultDataDir)); err != nil {
		t.Fatal(err)
	}
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); err != nil {
		t.Fatal(err)
	}
	added := f.Members[2].HexID()
	if diff := cmp.Diff(f.Said(), []string{
		"member remove " + lost, "member add node2", "start node2",
		"member promote " + added,
	}); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if got := s.Hosts["node2"].Content(etcd.InitialEnv); !strings.Contains(got, "STATE=existing") {
		t.Errorf("initial.env: %s", got)
	}
}

// Data of an etcd that the host is no member of are kept beside the new ones.
func TestEtcdKeepsStrangeData(t *testing.T) {
	t.Parallel()
	s, r, f := sitetest.EtcdSite(t, "external")
	formed(t, r)
	f.Members = f.Members[:2] // somebody has removed it
	f.Runs["node2"] = false
	s.Hosts["node2"].Put(t, etcd.DefaultDataDir+"/member/snap/db", "old")
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); err != nil {
		t.Fatal(err)
	}
	if got := s.Hosts["node2"].Content(only(t, s.Hosts["node2"], etcd.DefaultDataDir+
		"/kkbundle-before-*/member/snap/db")); got != "old" {
		t.Errorf("the old data are %q", got)
	}
}

// onlyThese finds the one file of a host that a pattern means.
func only(t *testing.T, h *sitetest.Rooted, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(h.Root + pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return strings.TrimPrefix(found[0], h.Root)
}

func TestEtcdQuorumIsKept(t *testing.T) {
	t.Parallel()
	s, r, f := sitetest.EtcdSite(t, "external")
	formed(t, r)
	f.Runs["node2"] = false
	f.Said()
	var quorum interface{ Hint() string }
	if err := etcd.RunMember(t.Context(), r.Hosts[1]); !errors.As(err, &quorum) ||
		!strings.Contains(err.Error(), "1 of the other 2 members are healthy, 2 must be") {
		t.Errorf("restarted with one other: %v", err)
	}
	if said := f.Said(); len(said) > 0 {
		t.Errorf("did %v", said)
	}
	// The one that is down is started: that takes nothing away.
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); err != nil {
		t.Error(err)
	}
	// Without a quorum, nobody without data is taken for the first member of a new etcd.
	f.Runs["node1"], f.Runs["node2"] = false, false
	if err := os.RemoveAll(filepath.Join(s.Hosts["node2"].Root, etcd.DefaultDataDir)); err != nil {
		t.Fatal(err)
	}
	f.Said()
	if err := etcd.RunMember(t.Context(), r.Hosts[2]); !errors.As(err, &quorum) {
		t.Errorf("without a quorum: %v", err)
	}
	if said := f.Said(); len(said) > 0 {
		t.Errorf("without a quorum did %v", said)
	}
}

// The authority's key survives the work directory on the hosts of etcd, and certificates are good for their purpose
// only.
func TestEtcdCertificates(t *testing.T) {
	t.Parallel()
	s, r, _ := sitetest.EtcdSite(t, "external")
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
	s.Options.WorkDir = filepath.Join(t.TempDir(), "other")
	other := s.Run(t, nil)
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
	s.Options.WorkDir = filepath.Join(t.TempDir(), "third")
	limited := s.Run(t, nil)
	limited.Hosts[1].Conn = nil
	if _, err := etcd.MemberFiles(t.Context(), limited.Hosts[0]); err == nil ||
		!strings.Contains(err.Error(), "--limit") {
		t.Errorf("where the host that has it is left out: %v", err)
	}
}

// A member that hangs does not hold the lock of the copies for ever.
func TestEtcdBackupEndsWithAHungMember(t *testing.T) {
	t.Parallel()
	_, r, _ := sitetest.EtcdSite(t, "external")
	dir, bin := t.TempDir(), t.TempDir()
	sitetest.WriteProgram(t, filepath.Join(bin, "etcdctl"), "#!/bin/sh\nexec sleep 3600\n")
	script := strings.NewReplacer(etcd.Backups, dir, "PATH=", "PATH="+bin+":", "timeout 600",
		"timeout 0.2").Replace(string(etcd.BackupScript(r.Hosts[0], 2)))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := sitetest.NewRooted(t, "save").Run(ctx, host.Cmd{Args: []string{"sh", "-c", script}})
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "etcd did not send a copy within 10 minutes") {
		t.Errorf("got %v, %v", err, ctx.Err())
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new*")); err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}
