//go:build linux

package etcdops

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/sitetest"
)

// Members are defragmented one by one, the leader last, where it pays, and never while one of them is not healthy.
func TestEtcdDefrag(t *testing.T) {
	t.Parallel()
	s, r, _ := sitetest.EtcdSite(t, "external")
	e := &sitetest.SizedEtcd{}
	s.Hosts["cp1"].Answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return e.Control(cmd) })
	member := func(number uint64, size, used int64) etcd.Database {
		return etcd.Database{
			Endpoint: fmt.Sprintf("https://10.0.0.%d:2379", number), Member: number, Leader: 3,
			Size: size << 20, Used: used << 20,
		}
	}
	for name, c := range map[string]struct {
		members []etcd.Database
		always  bool
		want    []string
		refused string
	}{
		"the leader is the last": {
			[]etcd.Database{member(3, 900, 100), member(4, 900, 100), member(5, 900, 600)},
			false,
			[]string{"https://10.0.0.4:2379", "https://10.0.0.3:2379"},
			"",
		},
		"little to win": {[]etcd.Database{member(3, 99, 1), member(4, 900, 600)}, false, nil, ""},
		"little to win, but always": {
			[]etcd.Database{member(3, 99, 1), member(4, 99, 98)},
			true,
			[]string{"https://10.0.0.4:2379", "https://10.0.0.3:2379"},
			"",
		},
		"a member without a leader": {[]etcd.Database{
			member(3, 900, 100),
			{Endpoint: "https://10.0.0.4:2379", Member: 4},
		}, true, nil, "knows no leader"},
		"a damaged member": {
			[]etcd.Database{
				member(3, 900, 100),
				{Endpoint: "https://10.0.0.4:2379", Member: 4, Leader: 3, Faults: []string{"memberID:4 alarm:CORRUPT "}},
			},
			true, nil, "alarm:CORRUPT",
		},
	} {
		e.Members, e.Asked = slices.Clone(c.members), nil
		done, err := defragMembers(t.Context(), r, r.Hosts[0], c.always)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || len(e.Asked) > 0 {
				t.Errorf("%s: %v, did %v", name, err, e.Asked)
			}
			continue
		}
		if diff := cmp.Diff(e.Asked, c.want); diff != "" || err != nil || len(done) != len(c.members) {
			t.Errorf("%s: %v, %+v (-got +want):\n%s", name, err, done, diff)
		}
	}
}

// A member that does not answer refuses all: etcdctl names the others and fails.
func TestEtcdDefragNeedsAllMembers(t *testing.T) {
	t.Parallel()
	s, r, _ := sitetest.EtcdSite(t, "external")
	s.Hosts["cp1"].Answer("etcdctl", func(_ context.Context, cmd host.Cmd) error {
		if strings.Contains(strings.Join(cmd.Args, " "), "defrag") {
			t.Error("a member was defragmented while another did not answer")
		}
		_, _ = cmd.Stdout.Write([]byte(
			`[{"Endpoint":"https://10.0.0.3:2379","Status":{"header":{"member_id":3},"leader":3,"dbSize":900000000,"dbSizeInUse":1}}]`))
		return sitetest.Exits(cmd, 1, "context deadline exceeded")
	})
	if _, err := defragMembers(t.Context(), r, r.Hosts[0], true); err == nil ||
		!strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("got %v", err)
	}
}

// status fails with an alarm, and warns of a database that is nearly as large as its quota.
func TestStatusJudgesDatabases(t *testing.T) {
	t.Parallel()
	for want, d := range map[report.State]etcd.Database{
		report.OK:      {Member: 1, Leader: 1, Size: 79, Used: 79, Quota: 100},
		report.Warning: {Member: 1, Leader: 1, Size: 80, Used: 10, Quota: 100},
		report.Failed:  {Member: 1, Leader: 1, Size: 10, Used: 10, Quota: 100, NoSpace: true},
	} {
		if got := judgeDatabase("cp1", d); got.State != want {
			t.Errorf("%+v: %+v, want %s", d, got, want)
		}
	}
	if got := judgeDatabase("cp1", etcd.Database{
		Leader: 1, Quota: 100,
		Faults: []string{"alarm:CORRUPT"},
	}); got.State != report.Failed {
		t.Errorf("a damaged member: %+v", got)
	}
}

// labEtcd returns a program of etcd that the lab has built.
func labEtcd(t *testing.T, name string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "kkbundle-lab", name+"-amd64-*", name))
	if err != nil || len(found) == 0 {
		t.Skipf("the lab has not built %s", name)
	}
	return found[0]
}

// freeURLs returns addresses with ports that differ: each is held until all are known.
func freeURLs(t *testing.T, n int) (urls []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		urls = append(urls, "http://"+l.Addr().String())
	}
	return urls
}

// A real etcd that has reached its quota takes changes again.
func TestEtcdDefragNoSpace(t *testing.T) {
	t.Parallel()
	server, ctl := labEtcd(t, "etcd"), labEtcd(t, "etcdctl")
	urls := freeURLs(t, 2)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, server, "--data-dir="+t.TempDir(), "--listen-client-urls="+urls[0],
		"--advertise-client-urls="+urls[0], "--listen-peer-urls="+urls[1],
		"--initial-advertise-peer-urls="+urls[1], "--initial-cluster=default="+urls[1],
		"--quota-backend-bytes=16777216", "--log-level=error")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	s, r, _ := sitetest.EtcdSite(t, "external")
	call := func(ctx context.Context, cmd host.Cmd) error {
		args := slices.DeleteFunc(slices.Clone(cmd.Args[1:]), func(a string) bool {
			return strings.HasPrefix(a, "--cacert") || strings.HasPrefix(a, "--cert") || strings.HasPrefix(a, "--key")
		})
		args[0] = "--endpoints=" + urls[0]
		c := exec.CommandContext(ctx, ctl, args...)
		var stderr bytes.Buffer
		c.Stdin, c.Stdout, c.Stderr = cmd.Stdin, cmd.Stdout, &stderr
		if err := c.Run(); err != nil {
			return sitetest.Exits(cmd, 1, stderr.String())
		}
		return nil
	}
	s.Hosts["cp1"].Answer("etcdctl", call)
	put := func() error {
		data := make([]byte, 900_000)
		_, _ = rand.Read(data)
		return call(t.Context(), host.Cmd{
			Args:  []string{"etcdctl", "", "put", "key"},
			Stdin: strings.NewReader(base64.StdEncoding.EncodeToString(data)), Stdout: &bytes.Buffer{},
		})
	}
	var err error
	for range 1500 { // five minutes: a busy machine
		if err = put(); err == nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	for range 40 {
		if err == nil {
			err = put()
		}
	}
	if err == nil || !strings.Contains(err.Error(), "space exceeded") {
		t.Fatalf("the database does not get full: %v", err)
	}
	list, err := etcd.Databases(t.Context(), r.Hosts[0], true)
	if err != nil || len(list) != 1 || !list[0].NoSpace || list[0].Quota != 16<<20 {
		t.Fatalf("etcd is %+v, %v", list, err)
	}
	if f := judgeDatabase("cp1", list[0]); f.State != report.Failed || !strings.Contains(f.Found, "NOSPACE") {
		t.Errorf("status says %+v", f)
	}
	done, err := defragMembers(t.Context(), r, r.Hosts[0], false)
	if err != nil || len(done) != 1 || done[0].Skipped || done[0].After >= done[0].Before {
		t.Fatalf("defragmented %+v, %v", done, err)
	}
	if err := put(); err != nil {
		t.Errorf("afterwards: %v", errors.Unwrap(err))
	}
	t.Logf("%+v", done)
}
