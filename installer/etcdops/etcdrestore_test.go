//go:build linux

package etcdops

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

func TestReadEtcdSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := sitetest.EtcdCopy("keys")
	damaged := append([]byte{1}, good[1:]...)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"good":       {good, ""},
		"damaged":    {damaged, "the checksum does not match"},
		"cut off":    {good[:len(good)-100], "the checksum at its end is missing"},
		"without":    {good[:len(good)-32], "the checksum at its end is missing"},
		"empty":      {nil, "the checksum at its end is missing"},
		"only a sum": {good[len(good)-32:], "the checksum at its end is missing"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := ReadSnapshot(file)
		if c.want == "" && (err != nil || s.Size != int64(len(good)) ||
			s.SHA256 != fmt.Sprintf("%x", sha256.Sum256(good))) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

const etcdManifest = `spec:
  containers:
  - command:
    - etcd
    - --data-dir=/var/lib/etcd
    - --initial-advertise-peer-urls=https://10.0.0.3:2380
    - --name=cp1
`

// restoreSite is a cluster with old data in its etcd and a copy beside it. etcdutl is the test's: what it makes of a
// copy is the copy.
func restoreSite(t *testing.T, kind string) (*sitetest.Site, *engine.Run, *restoring) {
	t.Helper()
	s, r, _ := sitetest.EtcdSite(t, kind)
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		s.Hosts["cp1"].Put(t, kube.ManifestsDir+"/"+name+".yaml", name)
	}
	if kind == "internal" {
		s.Hosts["cp1"].Put(t, kube.ManifestsDir+"/etcd.yaml", etcdManifest)
	}
	for _, h := range s.Hosts {
		for _, name := range []string{"etcdctl", "etcdutl"} {
			if err := os.WriteFile(filepath.Join(h.Stubs, name), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		h.Answer("systemctl", func(context.Context, host.Cmd) error { return nil })
		h.Answer("etcdctl", func(context.Context, host.Cmd) error { return nil })
		h.Answer("pgrep", func(_ context.Context, cmd host.Cmd) error { return sitetest.Exits(cmd, 1, "") })
		h.Answer("etcdutl", func(_ context.Context, cmd host.Cmd) error {
			if cmd.Args[2] == "status" {
				_, err := fmt.Fprintln(cmd.Stdout, `{"revision":5,"totalKey":1}`)
				return err
			}
			return makeMember(h, cmd)
		})
	}
	for _, one := range r.WithRole("etcd") {
		s.Hosts[one.Name].Put(t, etcd.DefaultDataDir+"/member/db", "old")
	}
	file := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(file, sitetest.EtcdCopy("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, r, newRestoring(t, r, file)
}

func makeMember(h *sitetest.Rooted, cmd host.Cmd) error {
	for _, a := range cmd.Args {
		if dir, ok := strings.CutPrefix(a, "--data-dir="); ok {
			to := filepath.Join(h.Root, dir, "member")
			if err := os.Mkdir(filepath.Dir(to), 0o700); err != nil {
				return sitetest.Exits(cmd, 1, err.Error()) // etcdutl refuses what is there
			}
			return errors.Join(os.MkdirAll(to, 0o700), os.WriteFile(filepath.Join(to, "db"),
				[]byte(h.Content(cmd.Args[3])[:3]), 0o600))
		}
	}
	return sitetest.Exits(cmd, 1, "no data-dir")
}

func newRestoring(t *testing.T, r *engine.Run, file string) *restoring {
	t.Helper()
	snapshot, err := ReadSnapshot(file)
	if err != nil {
		t.Fatal(err)
	}
	r.Operation = engine.SavingEtcd()
	return &restoring{run: r, snapshot: snapshot, token: "kkbundle-test", before: marks.OldDataDir(r.Site)}
}

// A dying host is one that kkbundle is killed in front of: from some command on, nothing reaches it.
type dying struct {
	host.Host
	left *atomic.Int32
	kill context.CancelCauseFunc
}

func (d dying) Run(ctx context.Context, cmd host.Cmd) error {
	if d.left.Add(-1) < 0 {
		d.kill(sitetest.ErrKilled)
		return sitetest.ErrKilled
	}
	return d.Host.Run(ctx, cmd)
}

// A restore is killed before each of its commands in turn (without KKBUNDLE_BIG=1, before some) and run again: etcd
// has the copy, its old data are kept, and the control plane has its manifests.
func TestEtcdRestoreKilledAnywhere(t *testing.T) {
	t.Parallel()
	step := sitetest.OneOf(t, 5)
	for _, kind := range []string{"internal", "external"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			commands := killRestore(t, kind, math.MaxInt32)
			if commands < 20 {
				t.Fatalf("only %d commands: the test does not look at what it should", commands)
			}
			for n := 0; n < commands; n += step {
				killRestore(t, kind, n)
			}
		})
	}
}

// killRestore kills a restore before one of its commands and says how many there were.
func killRestore(t *testing.T, kind string, before int) (commands int) {
	t.Helper()
	s, r, restore := restoreSite(t, kind)
	var left atomic.Int32
	left.Store(int32(before))
	ctx, kill := context.WithCancelCause(t.Context())
	defer kill(nil)
	var real []host.Host
	for _, one := range r.Hosts {
		real = append(real, one.Conn)
		one.Conn = dying{one.Conn, &left, kill}
	}
	err := restore.choose(ctx)
	if err == nil {
		err = restore.work(ctx)
	}
	commands = before - int(left.Load())
	if commands > before != errors.Is(err, sitetest.ErrKilled) || err != nil && !errors.Is(err, sitetest.ErrKilled) {
		t.Fatalf("%s, killed before command %d of %d: %v", kind, before, commands, err)
	}
	if err != nil {
		for i, one := range r.Hosts {
			one.Conn = real[i]
		}
		again := newRestoring(t, r, restore.snapshot.Path)
		again.before = "kkbundle-before-20990101T000000Z"
		if err := errors.Join(again.choose(t.Context()), again.work(t.Context())); err != nil {
			t.Fatalf("%s, again after command %d: %v", kind, before, err)
		}
	}
	isRestoredSite(t, s, r, fmt.Sprintf("%s, killed before command %d", kind, before))
	return commands
}

func isRestoredSite(t *testing.T, s *sitetest.Site, r *engine.Run, when string) {
	t.Helper()
	for _, one := range r.WithRole("etcd") {
		h := s.Hosts[one.Name]
		if got := h.Content(etcd.DefaultDataDir + "/member/db"); got != "new" {
			t.Errorf("%s: %s has %q", when, one.Name, got)
		}
		old, _ := filepath.Glob(h.Root + etcd.DefaultDataDir + "/kkbundle-before-*/member/db")
		kept := 0
		for _, file := range old {
			if data, err := os.ReadFile(file); err == nil && string(data) == "old" {
				kept++
			}
		}
		if kept != 1 {
			t.Errorf("%s: the old data of %s are there %d times (%v)", when, one.Name, kept, old)
		}
		entries, _ := os.ReadDir(h.Root + etcd.DefaultDataDir)
		for _, e := range entries {
			if e.Name() != "member" && !strings.HasPrefix(e.Name(), "kkbundle-before-") {
				t.Errorf("%s: %s is left on %s", when, e.Name(), one.Name)
			}
		}
		if h.Content(etcd.DefaultDataDir+"/member/"+marks.UnfinishedData) != "" ||
			h.Content(marks.Snapshot+"/snapshot.db") != "" {
			t.Errorf("%s: the copy or a mark is left on %s", when, one.Name)
		}
	}
	var names []string
	entries, _ := os.ReadDir(s.Hosts["cp1"].Root + kube.ManifestsDir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"kube-apiserver.yaml", "kube-controller-manager.yaml", "kube-scheduler.yaml"}
	if r.Cluster.Etcd.Type == "internal" {
		want = append([]string{"etcd.yaml"}, want...)
	}
	if diff := cmp.Diff(names, want); diff != "" {
		t.Errorf("%s: manifests (-got +want):\n%s", when, diff)
	}
}

// Nothing is stopped where a host is missing or the preparation fails.
func TestEtcdRestoreStopsNothingInVain(t *testing.T) {
	t.Parallel()
	s, r, restore := restoreSite(t, "external")
	r.Hosts[2].Conn, r.Hosts[2].Err = nil, errors.New("no route to host")
	var missing interface{ Hint() string }
	if err := restore.choose(t.Context()); !errors.As(err, &missing) ||
		!strings.HasSuffix(missing.Hint(), "--without node2") {
		t.Errorf("without node2: %v", err)
	}
	r.Excluded = []string{"node2"}
	if err := restore.choose(t.Context()); err != nil || len(restore.members) != 2 {
		t.Errorf("--without node2: %d members, %v", len(restore.members), err)
	}
	s.Hosts["node1"].Answer("etcdutl", func(_ context.Context,
		cmd host.Cmd,
	) error {
		return sitetest.Exits(cmd, 1, "no space left on device")
	})
	err := restore.work(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("disk full: %v", err)
	}
	for _, h := range s.Hosts {
		if h.Content(etcd.DefaultDataDir+"/member/db") != "old" {
			t.Errorf("%s lost its data", h.Name)
		}
		for _, line := range h.Said("systemctl") {
			t.Errorf("%s: %s", h.Name, line)
		}
	}
	if s.Hosts["cp1"].Content(etcd.APIServerManifest) == "" {
		t.Error("the API server was stopped")
	}
}
