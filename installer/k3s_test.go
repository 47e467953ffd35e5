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

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/member"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// newLivingK3s is newLivingSite with servers and agents of k3s, of which all but node2 are nodes and ready.
func newLivingK3s(t *testing.T) (*site, *livingCluster) {
	t.Helper()
	nodes := []string{"cp1", "cp2", "cp3", "node1"}
	s, l := newLivingSite(t, nodes...)
	l.ready, l.members = slices.Clone(nodes), nil // nobody has etcdctl for k3s' members
	s.options.Cluster = tasktest.Cluster(t, "kubernetes: {distribution: k3s, version: v1.34.3+k3s1}\ncontrolPlaneEndpoint: {type: external, address: api.example}\n")
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	r := s.run(t, nil)
	for _, name := range nodes {
		h := s.hosts[name]
		h.put(t, k3s.CA, string(ca))
		h.put(t, member.Path, string(member.File(r.Site).Data))
		unit := "/etc/systemd/system/" + k3s.Unit(strings.HasPrefix(name, "cp"))
		h.put(t, unit, hostfile.Mark+"\n[Unit]\n")
	}
	for _, h := range s.hosts {
		h.answer("k3s", func(ctx context.Context, cmd host.Cmd) error {
			cmd.Args = cmd.Args[1:] // k3s kubectl is kubectl
			return l.kubectl(ctx, cmd)
		})
	}
	return s, l
}

// k3s takes a server out of its etcd when the node is deleted. The server may not start again in the time until its host is
// reset: it would come back as a new member.
func TestK3sDeletesNodes(t *testing.T) {
	t.Parallel()
	s, l := newLivingK3s(t)
	l.fail = "delete node"
	d := Deletion{Hosts: []string{"cp2", "node1"}}
	if _, err := DeleteNodes(t.Context(), s.options, d, yes); err == nil {
		t.Fatal("it went on although the cluster kept the node")
	}
	if got := s.hosts["cp2"].content(k3s.NoRestartDropIn); got != hostfile.Mark+"\n[Service]\nRestart=no\n" {
		t.Errorf("before the node is deleted, cp2 has %q", got)
	}
	l.fail, l.asked = "", nil
	if _, err := DeleteNodes(t.Context(), s.options, d, yes); err != nil {
		t.Fatal(err)
	}
	const drain = " --ignore-daemonsets --delete-emptydir-data --force --timeout=5m0s"
	want := []string{
		"cordon cp2", "drain cp2" + drain, "delete node cp2 --ignore-not-found", "cordon node1", "drain node1" + drain, "delete node node1 --ignore-not-found",
	}
	if diff := cmp.Diff(l.asked, want); diff != "" {
		t.Errorf("asked of the cluster (-got +want):\n%s", diff)
	}
	for _, name := range []string{"cp2", "node1"} {
		if text := s.hosts[name].tree(t); strings.Contains(text, "kkbundle") || strings.Contains(text, "k3s") {
			t.Errorf("%s was not reset:\n%s", name, text)
		}
	}
	if strings.Contains(s.hosts["cp1"].tree(t), "kkbundle-leaving") {
		t.Error("a server that stays was kept from starting again")
	}
}

func TestK3sKeepsQuorum(t *testing.T) {
	t.Parallel()
	s, l := newLivingK3s(t)
	l.ready = []string{"cp1", "cp2", "node1"}
	_, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: []string{"cp2"}}, yes)
	var keep *task.KeepError
	if !errors.As(err, &keep) || !strings.Contains(err.Error(), "not healthy: cp3") || len(l.asked) > 0 {
		t.Errorf("with another server down: %v, asked %q", err, l.asked)
	}
	if _, err := DeleteNodes(t.Context(), s.options, Deletion{Hosts: []string{"node1"}}, yes); err != nil {
		t.Errorf("an agent has no part in it: %v", err)
	}
}

// The authority of k3s' API server is in k3s' own file: kubeadm's is not there, and status would say that no API server works.
func TestK3sIsTrusted(t *testing.T) {
	t.Parallel()
	s, _ := newLivingK3s(t)
	if err := os.Remove(filepath.Join(s.hosts["cp1"].root, k3s.CA)); err != nil {
		t.Fatal(err)
	}
	err := health.APIHealth(t.Context(), s.run(t, nil).HostNamed("cp1"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), k3s.CA) {
		t.Errorf("without the authority: %v", err)
	}
}

// Commands of kubeadm and etcd are refused before any host is asked.
func TestK3sHasNoKubeadm(t *testing.T) {
	t.Parallel()
	s, _ := newLivingK3s(t)
	s.options.Cluster.ImageRegistry.Type = manifest.RegistryNone // certs renew renews the registry's certificate
	_, renew := RenewCertificates(t.Context(), s.options, 0)
	_, keys := Keys(t.Context(), s.options)
	_, save := BackupEtcd(t.Context(), s.options, t.TempDir()+"/etcd.db")
	for name, err := range map[string]error{"renew": renew, "keys": keys, "save": save} {
		var refused *k3s.UnsupportedError
		if !errors.As(err, &refused) || refused.Hint() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, h := range s.hosts {
		if ran := h.said("k3s"); len(ran) > 0 {
			t.Errorf("%s was asked %q", name, ran)
		}
	}
}
