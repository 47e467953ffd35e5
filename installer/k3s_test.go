//go:build linux

package installer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/etcdops"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/k3s"
	"github.com/kkbundle/kkbundle/installer/nodes"
	"github.com/kkbundle/kkbundle/installer/rotate"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
	"github.com/kkbundle/kkbundle/manifest"
)

// k3s takes a server out of its etcd when the node is deleted. The server may not start again in the time until its
// host is reset: it would come back as a new member.
func TestK3sDeletesNodes(t *testing.T) {
	t.Parallel()
	s, l := sitetest.NewLivingK3s(t)
	l.Fail = "delete node"
	d := nodes.Deletion{Hosts: []string{"cp2", "node1"}}
	if _, err := nodes.Delete(t.Context(), s.Options, d, sitetest.Yes); err == nil {
		t.Fatal("it went on although the cluster kept the node")
	}
	if got := s.Hosts["cp2"].Content(k3s.NoRestartDropIn); got != hostfile.Mark+"\n[Service]\nRestart=no\n" {
		t.Errorf("before the node is deleted, cp2 has %q", got)
	}
	l.Fail, l.Asked = "", nil
	if _, err := nodes.Delete(t.Context(), s.Options, d, sitetest.Yes); err != nil {
		t.Fatal(err)
	}
	const drain = " --ignore-daemonsets --delete-emptydir-data --force --timeout=5m0s"
	want := []string{
		"cordon cp2", "drain cp2" + drain, "delete node cp2 --ignore-not-found", "cordon node1", "drain node1" + drain,
		"delete node node1 --ignore-not-found",
	}
	if diff := cmp.Diff(l.Asked, want); diff != "" {
		t.Errorf("asked of the cluster (-got +want):\n%s", diff)
	}
	for _, name := range []string{"cp2", "node1"} {
		if text := s.Hosts[name].Tree(t); strings.Contains(text, "kkbundle") || strings.Contains(text, "k3s") {
			t.Errorf("%s was not reset:\n%s", name, text)
		}
	}
	if strings.Contains(s.Hosts["cp1"].Tree(t), "kkbundle-leaving") {
		t.Error("a server that stays was kept from starting again")
	}
}

func TestK3sKeepsQuorum(t *testing.T) {
	t.Parallel()
	s, l := sitetest.NewLivingK3s(t)
	l.Ready = []string{"cp1", "cp2", "node1"}
	_, err := nodes.Delete(t.Context(), s.Options, nodes.Deletion{Hosts: []string{"cp2"}}, sitetest.Yes)
	var keep *task.KeepError
	if !errors.As(err, &keep) || !strings.Contains(err.Error(), "not healthy: cp3") || len(l.Asked) > 0 {
		t.Errorf("with another server down: %v, asked %q", err, l.Asked)
	}
	if _, err := nodes.Delete(t.Context(), s.Options, nodes.Deletion{Hosts: []string{"node1"}},
		sitetest.Yes); err != nil {
		t.Errorf("an agent has no part in it: %v", err)
	}
}

// The authority of k3s' API server is in k3s' own file: kubeadm's is not there, and status would say that no API
// server works.
func TestK3sIsTrusted(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewLivingK3s(t)
	if err := os.Remove(filepath.Join(s.Hosts["cp1"].Root, k3s.CA)); err != nil {
		t.Fatal(err)
	}
	err := health.APIHealth(t.Context(), s.Run(t, nil).HostNamed("cp1"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), k3s.CA) {
		t.Errorf("without the authority: %v", err)
	}
}

// Commands of kubeadm and etcd are refused before any host is asked.
func TestK3sHasNoKubeadm(t *testing.T) {
	t.Parallel()
	s, _ := sitetest.NewLivingK3s(t)
	s.Options.Cluster.ImageRegistry.Type = manifest.RegistryNone // certs renew renews the registry's certificate
	_, renew := rotate.RenewCertificates(t.Context(), s.Options, 0)
	_, keys := rotate.Keys(t.Context(), s.Options)
	_, save := etcdops.Backup(t.Context(), s.Options, t.TempDir()+"/etcd.db")
	for name, err := range map[string]error{"renew": renew, "keys": keys, "save": save} {
		var refused *k3s.UnsupportedError
		if !errors.As(err, &refused) || refused.Hint() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, h := range s.Hosts {
		if ran := h.Said("k3s"); len(ran) > 0 {
			t.Errorf("%s was asked %q", name, ran)
		}
	}
}
