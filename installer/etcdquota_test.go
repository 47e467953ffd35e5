//go:build linux

package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

const quotaManifest = "/etc/kubernetes/manifests/etcd.yaml"

// quotaSite is a control plane with kubeadm's etcd. It pretends the kubelet, which restarts etcd with the manifest's arguments, and
// kubeadm's configuration in the cluster. TestHA of the lab has real ones.
func quotaSite(t *testing.T, quota, arguments string) (s *site, r *engine.Run, e *sizedEtcd, config *string) {
	t.Helper()
	s, _, _ = etcdSite(t, "internal")
	s.options.Cluster = tasktest.Cluster(t, "")
	if quota != "" {
		s.options.Cluster = tasktest.Cluster(t, "etcd: {quota: "+quota+"}")
	}
	h := s.hosts["cp1"]
	h.put(t, quotaManifest, "spec:\n  containers:\n  - command:\n    - etcd\n    - --name=cp1\n"+arguments+"    image: etcd:3.6.6\n")
	e = &sizedEtcd{members: []etcd.Database{{Endpoint: "https://10.0.0.3:2379", Member: 3, Leader: 3, Size: 3 << 30, Used: 1 << 30}}}
	h.answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return e.control(cmd) })
	h.answer("pgrep", func(_ context.Context, cmd host.Cmd) error {
		_, wanted, _ := strings.Cut(cmd.Args[len(cmd.Args)-1], ".*")
		wanted, _, _ = strings.Cut(wanted, "(")
		if !strings.Contains(h.content(quotaManifest), "- "+wanted+"\n") {
			return exits(cmd, 1, "")
		}
		return nil
	})
	text := "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd: {local: {dataDir: /var/lib/etcd, extraArgs: [{name: log-level, value: warn}]}}\n"
	config = &text
	h.answer("kubectl", func(_ context.Context, cmd host.Cmd) error {
		switch line := strings.Join(cmd.Args, " "); {
		case strings.Contains(line, "get configmap kubeadm-config"):
			return json.NewEncoder(cmd.Stdout).Encode(map[string]any{"data": map[string]string{"ClusterConfiguration": *config}})
		case strings.Contains(line, "patch configmap kubeadm-config"):
			_, patch, _ := strings.Cut(line, "--patch=")
			var p struct{ Data map[string]string }
			err := json.Unmarshal([]byte(patch), &p)
			*config = p.Data["ClusterConfiguration"]
			return err
		case strings.Contains(line, "--raw=/readyz"):
			_, err := io.WriteString(cmd.Stdout, "ok")
			return err
		}
		return fmt.Errorf("%v is not known to this test", cmd.Args)
	})
	return s, s.run(t, nil), e, config
}

// A quota of the cluster file reaches the members of kubeadm's etcd and kubeadm's configuration, and nothing is done twice.
func TestEtcdQuotaIsApplied(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]string{"etcd's default": "", "another quota": "    - --quota-backend-bytes=4294967296\n"} {
		s, r, _, config := quotaSite(t, "8Gi", arguments)
		tasks := slices.DeleteFunc(tasksOf(r.Cluster), func(one task.Task) bool { return !strings.HasPrefix(one.Name, "etcd-quota") })
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
		text := s.hosts["cp1"].content(quotaManifest)
		if strings.Count(text, "quota-backend-bytes") != 1 || !strings.Contains(text, "    - --quota-backend-bytes=8589934592\n") || !strings.Contains(text, "    - --name=cp1\n") {
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
		"below the database": {"2560Mi", etcd.Database{Endpoint: "https://10.0.0.4:2379", Member: 4, Leader: 3}, "the database of https://10.0.0.3:2379 has 3.0 GiB"},
		"without a leader":   {"16Gi", etcd.Database{Endpoint: "https://10.0.0.4:2379", Member: 4}, "knows no leader"},
	} {
		s, r, e, _ := quotaSite(t, c.quota, eight)
		e.members = append(e.members, c.other)
		at := slices.IndexFunc(tasksOf(r.Cluster), func(one task.Task) bool { return one.Name == "etcd-quota" })
		if err := tasksOf(r.Cluster)[at].Do(t.Context(), r.Hosts[0]); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if text := s.hosts["cp1"].content(quotaManifest); !strings.Contains(text, eight) {
			t.Errorf("%s: the manifest is\n%s", name, text)
		}
	}
}

// An upgrade makes kubeadm write the member's manifest from the cluster file, so it is refused where that file's quota is below a database.
func TestUpgradeKeepsEtcdQuota(t *testing.T) {
	t.Parallel()
	const eight = "    - --quota-backend-bytes=8589934592\n"
	for text, refused := range map[string]bool{
		"":                       true,
		"etcd: {quota: 2560Mi}":  true,
		"etcd: {quota: 4Gi}":     false,
		"etcd: {type: external}": false,
	} {
		s, _, _, _ := quotaSite(t, "8Gi", eight)
		s.options.Cluster = tasktest.Cluster(t, text)
		r := s.run(t, nil)
		err := errors.Join(quotaHolds(t.Context(), r.Hosts[0])...)
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), "the database of https://10.0.0.3:2379 has 3.0 GiB") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Members before etcd 3.6 do not name their quota: it is the cluster file's, or etcd's default.
func TestEtcdQuotaOfOldMembers(t *testing.T) {
	t.Parallel()
	for quota, want := range map[string]int64{"8Gi": 8 << 30, "": 2 << 30} {
		_, r, _, _ := quotaSite(t, quota, "")
		list, err := etcd.Databases(t.Context(), r.Hosts[0], false)
		if err != nil || list[0].Quota != want {
			t.Errorf("%q: %+v, %v", quota, list, err)
		}
	}
}

// External etcd has the quota in its environment. A smaller one than the database is refused before the file is written.
func TestEtcdQuotaOfExternalEtcd(t *testing.T) {
	t.Parallel()
	s, _, _ := etcdSite(t, "external")
	const env = "/etc/kkbundle/etcd/etcd.env"
	h := s.hosts["cp1"]
	e := &sizedEtcd{members: []etcd.Database{{Endpoint: "https://10.0.0.3:2379", Member: 3, Leader: 3, Size: 3 << 30, Used: 1 << 30}}}
	h.answer("etcdctl", func(_ context.Context, cmd host.Cmd) error { return e.control(cmd) })
	for _, c := range []struct{ before, quota, want string }{
		{"", "quota: 8Gi", "ETCD_QUOTA_BACKEND_BYTES=8589934592\n"},
		{"ETCD_QUOTA_BACKEND_BYTES=4294967296\n", "quota: 8Gi", "ETCD_QUOTA_BACKEND_BYTES=8589934592\n"},
		{"ETCD_QUOTA_BACKEND_BYTES=8589934592\n", "", "refused"},
		{"ETCD_QUOTA_BACKEND_BYTES=8589934592\n", "quota: 2560Mi", "refused"},
		{"ETCD_NAME=cp1\n", "", ""},
	} {
		h.put(t, env, c.before)
		s.options.Cluster = tasktest.Cluster(t, "etcd: {type: external, "+c.quota+"}")
		r := s.run(t, nil)
		file, err := etcd.Environment(t.Context(), r.Hosts[0])
		switch {
		case c.want == "refused":
			if err == nil || !strings.Contains(err.Error(), "has 3.0 GiB") {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil || !strings.Contains(string(file.Data), c.want) || strings.Contains(string(file.Data), "QUOTA") != (c.want != ""):
			t.Errorf("%+v: %v\n%s", c, err, file.Data)
		}
	}
}

// A full external etcd gets its larger quota: the restart of a member does not wait for the alarm NOSPACE, which only etcd defrag takes back.
func TestEtcdRestartsWhenFull(t *testing.T) {
	t.Parallel()
	s, r, f := etcdSite(t, "external")
	formed(t, r)
	f.said()
	full := &sizedEtcd{members: []etcd.Database{{Endpoint: "https://10.0.0.3:2379", Member: 3, Leader: 3, Faults: []string{"memberID:3 alarm:NOSPACE "}}}}
	s.hosts["cp1"].answer("etcdctl", func(_ context.Context, cmd host.Cmd) error {
		switch line := strings.Join(cmd.Args, " "); {
		case strings.Contains(line, "endpoint health"):
			return exits(cmd, 1, "unhealthy cluster: Active Alarm(s): NOSPACE")
		case strings.Contains(line, "endpoint status"):
			return full.control(cmd)
		}
		return f.control(cmd)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := etcd.RunMember(ctx, r.Hosts[0]); err != nil || !slices.Contains(f.said(), "start cp1") {
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
