//go:build linux

package installer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

// A quota of the cluster file reaches the members of kubeadm's etcd and kubeadm's configuration, and nothing is done
// twice.
func TestEtcdQuotaIsApplied(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]string{
		"etcd's default": "",
		"another quota":  "    - --quota-backend-bytes=4294967296\n",
	} {
		s, r, _, config := sitetest.QuotaSite(t, "8Gi", arguments)
		tasks := slices.DeleteFunc(plan.Tasks(r.Cluster),
			func(one task.Task) bool { return !strings.HasPrefix(one.Name, "etcd-quota") })
		if len(tasks) != 2 {
			t.Fatalf("%s: tasks %v", name, tasks)
		}
		for _, one := range tasks {
			if done, err := one.Done(t.Context(), r.Hosts[0]); err != nil || done {
				t.Errorf("%s: %s before: %t, %v", name, one.Name, done, err)
			}
			if err := one.Do(t.Context(), r.Hosts[0]); err != nil {
				t.Fatalf("%s: %s: %v", name, one.Name, err)
			}
			if done, err := one.Done(t.Context(), r.Hosts[0]); err != nil || !done {
				t.Errorf("%s: %s after: %t, %v", name, one.Name, done, err)
			}
		}
		text := s.Hosts["cp1"].Content(sitetest.QuotaManifest)
		if strings.Count(text, "quota-backend-bytes") != 1 ||
			!strings.Contains(text, "    - --quota-backend-bytes=8589934592\n") ||
			!strings.Contains(text, "    - --name=cp1\n") {
			t.Errorf("%s: the manifest is\n%s", name, text)
		}
		var made struct {
			Etcd struct {
				Local struct {
					DataDir   string
					ExtraArgs []struct{ Name, Value string }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(*config), &made); err != nil || made.Etcd.Local.DataDir != "/var/lib/etcd" ||
			fmt.Sprint(made.Etcd.Local.ExtraArgs) != "[{log-level warn} {quota-backend-bytes 8589934592}]" {
			t.Errorf("%s: kubeadm's configuration is %+v, %v", name, made, err)
		}
	}
}

// A member is not restarted while another is not healthy, and no quota goes below a database.
func TestEtcdQuotaIsRefused(t *testing.T) {
	t.Parallel()
	const eight = "    - --quota-backend-bytes=8589934592\n"
	for name, c := range map[string]struct {
		quota string
		other etcd.Database
		want  string
	}{
		"below the database": {
			"2560Mi",
			etcd.Database{Endpoint: "https://10.0.0.4:2379", Member: 4, Leader: 3},
			"the database of https://10.0.0.3:2379 has 3.0 GiB",
		},
		"without a leader": {"16Gi", etcd.Database{Endpoint: "https://10.0.0.4:2379", Member: 4}, "knows no leader"},
	} {
		s, r, e, _ := sitetest.QuotaSite(t, c.quota, eight)
		e.Members = append(e.Members, c.other)
		at := slices.IndexFunc(plan.Tasks(r.Cluster), func(one task.Task) bool { return one.Name == "etcd-quota" })
		if err := plan.Tasks(r.Cluster)[at].Do(t.Context(), r.Hosts[0]); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if text := s.Hosts["cp1"].Content(sitetest.QuotaManifest); !strings.Contains(text, eight) {
			t.Errorf("%s: the manifest is\n%s", name, text)
		}
	}
}

// Members before etcd 3.6 do not name their quota: it is the cluster file's, or etcd's default.
func TestEtcdQuotaOfOldMembers(t *testing.T) {
	t.Parallel()
	for quota, want := range map[string]int64{"8Gi": 8 << 30, "": 2 << 30} {
		_, r, _, _ := sitetest.QuotaSite(t, quota, "")
		list, err := etcd.Databases(t.Context(), r.Hosts[0], false)
		if err != nil || list[0].Quota != want {
			t.Errorf("%q: %+v, %v", quota, list, err)
		}
	}
}

// External etcd has the quota in its environment. A smaller one than the database is refused before the file is
// written.
func TestEtcdQuotaOfExternalEtcd(t *testing.T) {
	t.Parallel()
	s, _, _ := sitetest.EtcdSite(t, "external")
	const env = "/etc/kkbundle/etcd/etcd.env"
	h := s.Hosts["cp1"]
	e := &sitetest.SizedEtcd{Members: []etcd.Database{{
		Endpoint: "https://10.0.0.3:2379", Member: 3, Leader: 3,
		Size: 3 << 30, Used: 1 << 30,
	}}}
	h.Answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return e.Control(cmd) })
	for _, c := range []struct{ before, quota, want string }{
		{"", "quota: 8Gi", "ETCD_QUOTA_BACKEND_BYTES=8589934592\n"},
		{"ETCD_QUOTA_BACKEND_BYTES=4294967296\n", "quota: 8Gi", "ETCD_QUOTA_BACKEND_BYTES=8589934592\n"},
		{"ETCD_QUOTA_BACKEND_BYTES=8589934592\n", "", "refused"},
		{"ETCD_QUOTA_BACKEND_BYTES=8589934592\n", "quota: 2560Mi", "refused"},
		{"ETCD_NAME=cp1\n", "", ""},
	} {
		h.Put(t, env, c.before)
		s.Options.Cluster = tasktest.Cluster(t, "etcd: {type: external, "+c.quota+"}")
		r := s.Run(t, nil)
		file, err := etcd.Environment(t.Context(), r.Hosts[0])
		switch {
		case c.want == "refused":
			if err == nil || !strings.Contains(err.Error(), "has 3.0 GiB") {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil || !strings.Contains(string(file.Data), c.want) ||
			strings.Contains(string(file.Data), "QUOTA") != (c.want != ""):
			t.Errorf("%+v: %v\n%s", c, err, file.Data)
		}
	}
}

// A full external etcd gets its larger quota: the restart of a member does not wait for the alarm NOSPACE, which only
// etcd defrag takes back.
func TestEtcdRestartsWhenFull(t *testing.T) {
	t.Parallel()
	s, r, f := sitetest.EtcdSite(t, "external")
	formed(t, r)
	f.Said()
	full := &sitetest.SizedEtcd{Members: []etcd.Database{{
		Endpoint: "https://10.0.0.3:2379", Member: 3, Leader: 3,
		Faults: []string{"memberID:3 alarm:NOSPACE "},
	}}}
	s.Hosts["cp1"].Answer("etcdctl", func(_ context.Context, cmd host.Cmd) error {
		switch line := strings.Join(cmd.Args, " "); {
		case strings.Contains(line, "endpoint health"):
			return sitetest.Exits(cmd, 1, "unhealthy cluster: Active Alarm(s): NOSPACE")
		case strings.Contains(line, "endpoint status"):
			return full.Control(cmd)
		}
		return f.Control(cmd)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := etcd.RunMember(ctx, r.Hosts[0]); err != nil || !slices.Contains(f.Said(), "start cp1") {
		t.Errorf("the restart ends with %v", err)
	}
}

// etcd suggests 8 GiB at most.
func TestEtcdQuotaWarning(t *testing.T) {
	t.Parallel()
	for text, warns := range map[string]bool{"": false, "etcd: {quota: 8Gi}": false, "etcd: {quota: 9Gi}": true} {
		if got := etcd.QuotaWarning(tasktest.Cluster(t, text)); (got != "") != warns {
			t.Errorf("%q: %q", text, got)
		}
	}
}
