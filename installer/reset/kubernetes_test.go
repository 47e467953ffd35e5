//go:build linux

package reset

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kubeadm"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
)

func TestReset(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	r := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster))
	h := s.Hosts["cp1"]
	if err := r.Phases(t.Context(),
		[]task.Phase{{Name: "install", Tasks: []task.Task{
			cri.ContainerdTask(),
			kubeadm.KubeletTask(tasktest.Cluster(t, "")),
		}}}); err != nil {
		t.Fatal(err)
	}
	h.Put(t, "/usr/local/bin/mine", "")
	h.Put(t, "/etc/kubernetes/manifests/etcd.yaml", "")
	h.Put(t, "/var/lib/etcd/member/wal", "")
	h.Put(t, "/opt/cni/bin/mine", "")
	h.Put(t, siteregistry.DataDir+"/blob", "")
	for range 2 {
		if err := reset(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	for _, dir := range []string{"/usr", "/opt", "/etc", "/var"} {
		out, err := r.Hosts[0].Output(t.Context(), "find", dir, "-type", "f")
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, strings.Fields(string(out))...)
	}
	want := []string{
		"/usr/local/bin/mine", "/opt/cni/bin/mine", "/etc/hosts", "/etc/resolv.conf",
		siteregistry.DataDir + "/blob",
	}
	if diff := cmp.Diff(sitetest.Sorted(left), sitetest.Sorted(want)); diff != "" {
		t.Errorf("left (-got +want):\n%s", diff)
	}
}

// kubeadm removes the host's member of etcd through the API servers' address, which the host may hold: it does so before
// the address is taken off the host.
func TestResetLeavesEtcdByTheAddress(t *testing.T) {
	t.Parallel()
	const (
		first, second = "kubeadm reset phase remove-etcd-member", "systemctl stop kubelet.service"
		all           = "kubeadm reset --force --cri-socket=" + cri.ContainerdSocket
		without       = all + " --skip-phases=remove-etcd-member"
		vip           = "spec: {containers: [{name: kube-vip, env: [{name: address, value: 10.0.0.100}]}]}\n"
	)
	for name, c := range map[string]struct {
		vip   string
		scope task.Scope
		want  []string
	}{
		"one host":                      {vip, task.Scope{Hosts: []string{"cp1"}}, []string{first, second, without}},
		"one host without kube-vip":     {"", task.Scope{Hosts: []string{"cp1"}}, []string{all}},
		"all hosts":                     {vip, task.Scope{}, []string{second, without}},
		"one that has no member by now": {vip, task.Scope{Hosts: []string{"cp1"}, Leaving: true}, []string{second, without}},
	} {
		s := sitetest.NewSite(t, "cp1", "node1")
		h := s.Hosts["cp1"]
		var said []string
		for _, program := range []string{"kubeadm", "systemctl"} {
			h.Answer(program, func(_ context.Context, cmd host.Cmd) error {
				said = append(said, strings.Join(cmd.Args, " "))
				return nil
			})
		}
		h.Put(t, "/usr/local/bin/kubeadm", "")
		if err := os.Chmod(filepath.Join(h.Root, "usr/local/bin/kubeadm"), 0o755); err != nil {
			t.Fatal(err)
		}
		if c.vip != "" {
			h.Put(t, endpoint.KubeVIPManifest, c.vip)
		}
		on := s.Run(t, nil).Hosts[0]
		on.Site.Scope = c.scope
		if err := removeKubernetes(t.Context(), on); err != nil {
			t.Fatal(err)
		}
		if len(said) < len(c.want) || !slices.Equal(said[:len(c.want)], c.want) {
			t.Errorf("%s:\n%s", name, strings.Join(said, "\n"))
		}
	}
}

// The registry's user owns the images, so it goes when they go.
func TestResetRegistryUser(t *testing.T) {
	t.Parallel()
	s := sitetest.NewSite(t, "cp1")
	r := s.Run(t, sitetest.ClusterBundle(t, s.Options.Cluster))
	h := s.Hosts["cp1"]
	there := true
	h.Answer("getent", func(_ context.Context, cmd host.Cmd) error {
		if there && slices.Equal(cmd.Args[1:], []string{"passwd", siteregistry.Account}) {
			return nil
		}
		return &host.ExitError{Code: 2}
	})
	h.Answer("userdel", func(_ context.Context, cmd host.Cmd) error {
		there = !slices.Equal(cmd.Args[1:], []string{siteregistry.Account})
		return nil
	})
	for _, step := range []struct {
		name             string
		files            []string
		withData, before bool // the user is there before
		stays            bool
	}{
		{"images stay", []string{task.UnitDir + siteregistry.Unit, siteregistry.DataDir + "/blob"}, false, true, true},
		{"images are left of an earlier reset", nil, true, true, false},
		{
			"everything at once",
			[]string{task.UnitDir + siteregistry.Unit, siteregistry.DataDir + "/blob"},
			true, true,
			false,
		},
		{"killed before there were images", []string{task.UnitDir + siteregistry.Unit}, false, true, false},
		{"killed before the user went", nil, true, true, false},
		{"no user", nil, true, false, false},
	} {
		h.Mkdir(t, task.StateDir) // which the lock makes
		for _, path := range step.files {
			h.Put(t, path, "")
		}
		there, r.WithData = step.before, step.withData
		if err := reset(t.Context(), r); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if there != step.stays {
			t.Errorf("%s: the user is there: %t", step.name, there)
		}
	}
}
